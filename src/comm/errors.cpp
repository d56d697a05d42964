#include "comm/errors.h"

#include <c10/util/Exception.h>

namespace tessera::detail {

void throw_error(ErrorKind kind, const std::string& text) {
  switch (kind) {
    case ErrorKind::Error:
      break;
    case ErrorKind::Value:
      TORCH_CHECK_VALUE(false, text);
      break;
    case ErrorKind::Index:
      TORCH_CHECK_INDEX(false, text);
      break;
    case ErrorKind::Type:
      TORCH_CHECK_TYPE(false, text);
      break;
    case ErrorKind::NotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
      break;
  }
  TORCH_CHECK(false, text);
}

std::string cause_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  std::string text =
      ours != nullptr ? ours->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  const size_t close = text.find("] ");
  if (text.starts_with('[') && close != std::string::npos &&
      text.find(".cc:") < close) {
    text = text.substr(close + 2);
  }
  while (text.ends_with('.') || text.ends_with(' ')) text.pop_back();
  return text;
}

std::string shortened(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  // Not before a byte that goes on with a character.
  while (bytes > 0 && (text[bytes] & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

}  // namespace tessera::detail
