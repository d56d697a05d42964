// The message of an expected exception, for tests of error texts.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tessera::detail {

// What the Error that `call` must throw says; fails the test if it throws
// nothing. An exception of another type passes through.
template <class Error, class Call>
std::string thrown_message(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

}  // namespace tessera::detail
