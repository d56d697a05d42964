// Errors that come from elsewhere: from another rank, or from c10d.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "comm/collectives.h"

namespace tessera::detail {

// Throws c10::Error, ValueError, IndexError, TypeError or NotImplementedError.
[[noreturn]] void throw_error(ErrorKind kind, const std::string& text);

// The first line of what an exception says, without a backtrace and without
// the source position that Gloo puts before it.
std::string cause_of(const std::exception& error);

// The beginning of a text in UTF-8, of at most so many bytes and of whole
// characters.
std::string shortened(const std::string& text, size_t bytes);

}  // namespace tessera::detail
