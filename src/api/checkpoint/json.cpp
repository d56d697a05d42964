#include "api/checkpoint/json.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace tessera::detail {

namespace {

const char* name_of(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::Null:
      return "null";
    case Json::Kind::Bool:
      return "a boolean";
    case Json::Kind::Integer:
      return "an integer";
    case Json::Kind::Real:
      return "a number with a fraction";
    case Json::Kind::String:
      return "a string";
    case Json::Kind::Array:
      return "a list";
    case Json::Kind::Object:
      return "an object";
  }
  return "";
}

// How many bytes the UTF-8 character at the start of `text` has; 0: none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](size_t i, unsigned least, unsigned most) {
    return byte(i) >= least && byte(i) <= most;
  };
  const unsigned first = byte(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned least = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned most = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return follows(1, least, most) && follows(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned least = first == 0xF0 ? 0x90 : 0x80;
    const unsigned most = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, least, most) && follows(2, 0x80, 0xBF) &&
                   follows(3, 0x80, 0xBF)
               ? 4
               : 0;
  }
  return 0;
}

void append_utf8(std::string& out, unsigned code) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  Json whole() {
    Json value = this->value(0);
    skip_space();
    if (at_ != text_.size()) fail("expected the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* expected) const {
    TORCH_CHECK(
        false, where_, " is no valid JSON at byte ", at_, ": ", expected);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
      ++at_;
    }
  }

  void word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail("expected a value");
    at_ += word.size();
  }

  Json value(int depth) {
    if (depth > Json::kMaxDepth) fail("values are nested too deep");
    skip_space();
    Json out;
    switch (peek()) {
      case '{':
        object(out, depth);
        break;
      case '[':
        array(out, depth);
        break;
      case '"':
        out.kind_ = Json::Kind::String;
        out.string_ = string();
        break;
      case 't':
        word("true");
        out.kind_ = Json::Kind::Bool;
        out.integer_ = 1;
        break;
      case 'f':
        word("false");
        out.kind_ = Json::Kind::Bool;
        break;
      case 'n':
        word("null");
        break;
      default:
        number(out);
    }
    return out;
  }

  void object(Json& out, int depth) {
    out.kind_ = Json::Kind::Object;
    ++at_;
    skip_space();
    if (take('}')) return;
    do {
      skip_space();
      if (peek() != '"') fail("expected a key");
      auto key = string();
      skip_space();
      if (!take(':')) fail("expected ':'");
      out.members_.emplace_back(std::move(key), value(depth + 1));
      skip_space();
    } while (take(','));
    if (!take('}')) fail("expected ',' or '}'");
    check_keys(out);
  }

  // Readers of others take the first or the last of two: refused here.
  void check_keys(const Json& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.members_.size());
    for (const auto& [key, value] : object.members_) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    TORCH_CHECK(
        twice == keys.end(), where_, " has the key '", *twice, "' twice");
  }

  void array(Json& out, int depth) {
    out.kind_ = Json::Kind::Array;
    ++at_;
    skip_space();
    if (take(']')) return;
    do {
      out.array_.push_back(value(depth + 1));
      skip_space();
    } while (take(','));
    if (!take(']')) fail("expected ',' or ']'");
  }

  unsigned hex4() {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = peek();
      const unsigned digit = c >= '0' && c <= '9'   ? c - '0'
                             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                    : 16;
      if (digit == 16) fail("expected four hexadecimal digits");
      code = 16 * code + digit;
      ++at_;
    }
    return code;
  }

  void escape(std::string& out) {
    const char c = peek();
    ++at_;
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (c == 'u') {
      unsigned code = hex4();
      if (code >= 0xDC00 && code <= 0xDFFF) fail("half a surrogate pair");
      if (code >= 0xD800 && code <= 0xDBFF) {
        if (!take('\\') || !take('u')) fail("half a surrogate pair");
        const unsigned low = hex4();
        if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      append_utf8(out, code);
      return;
    }
    const size_t found = kNames.find(c);
    if (c == '\0' || found == std::string_view::npos) fail("a bad escape");
    out += kValues[found];
  }

  std::string string() {
    ++at_;
    std::string out;
    while (true) {
      if (at_ == text_.size()) fail("a string without an end");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') {
        ++at_;
        return out;
      }
      if (c == '\\') {
        ++at_;
        escape(out);
        continue;
      }
      if (c < 0x20) fail("a control character in a string");
      const size_t length = utf8_length(text_.substr(at_));
      if (length == 0) fail("a string that is no UTF-8");
      out.append(text_.substr(at_, length));
      at_ += length;
    }
  }

  void digits() {
    if (peek() < '0' || peek() > '9') fail("expected a value");
    while (peek() >= '0' && peek() <= '9') ++at_;
  }

  void number(Json& out) {
    const size_t begin = at_;
    take('-');
    if (!take('0')) digits();
    bool whole = true;
    if (take('.')) {
      whole = false;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      ++at_;
      if (!take('+')) take('-');
      digits();
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    if (whole) {
      out.kind_ = Json::Kind::Integer;
      if (std::from_chars(first, last, out.integer_).ec != std::errc()) {
        fail("an integer of more than 64 bits");
      }
      return;
    }
    out.kind_ = Json::Kind::Real;
    if (std::from_chars(first, last, out.real_).ec != std::errc()) {
      fail("a number that no double holds");
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

Json Json::parse(std::string_view text, const std::string& where) {
  return JsonParser(text, where).whole();
}

bool Json::boolean(const std::string& where) const {
  TORCH_CHECK(
      kind_ == Kind::Bool,
      where,
      ": expected a boolean but got ",
      name_of(kind_));
  return integer_ != 0;
}

double Json::number(const std::string& where) const {
  TORCH_CHECK(
      kind_ == Kind::Integer || kind_ == Kind::Real,
      where,
      ": expected a number but got ",
      name_of(kind_));
  return kind_ == Kind::Real ? real_ : static_cast<double>(integer_);
}

int64_t Json::integer(const std::string& where) const {
  TORCH_CHECK(
      kind_ == Kind::Integer,
      where,
      ": expected an integer but got ",
      name_of(kind_));
  return integer_;
}

const std::string& Json::string(const std::string& where) const {
  TORCH_CHECK(
      kind_ == Kind::String,
      where,
      ": expected a string but got ",
      name_of(kind_));
  return string_;
}

const std::vector<Json>& Json::array(const std::string& where) const {
  TORCH_CHECK(
      kind_ == Kind::Array,
      where,
      ": expected a list but got ",
      name_of(kind_));
  return array_;
}

const std::vector<Json::Member>& Json::object(const std::string& where) const {
  TORCH_CHECK(
      kind_ == Kind::Object,
      where,
      ": expected an object but got ",
      name_of(kind_));
  return members_;
}

const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key, const std::string& where) const {
  object(where);
  const Json* found = find(key);
  TORCH_CHECK(found != nullptr, where, " has no '", key, "'");
  return *found;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace tessera::detail
