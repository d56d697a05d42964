// What calls throw. error_of([&] { ... }) is what an error says;
// throws_saying<Type>("text", [&] { ... }) checks that the call throws just
// that type, and that what it says contains the text.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <typeinfo>

namespace tessera::testing {

// The text of the error that `call` throws; empty if it throws none.
template <typename Error = c10::Error, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

template <typename ErrorType, typename Call>
void throws_saying(std::string_view text, const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    EXPECT_EQ(typeid(error).name(), typeid(ErrorType).name())
        << error.what_without_backtrace();
    EXPECT_NE(
        std::string(error.what_without_backtrace()).find(text),
        std::string::npos)
        << "expected '" << text << "' in: " << error.what_without_backtrace();
    return;
  }
  ADD_FAILURE() << "expected an error saying '" << text << "'";
}

}  // namespace tessera::testing
