// JSON as files of others have it: a strict reader that refuses what is not
// well formed, too deep or said twice, and a writer of strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::detail {

class Json {
 public:
  enum class Kind : uint8_t {
    Null,
    Bool,
    Integer,
    Real,
    String,
    Array,
    Object
  };
  using Member = std::pair<std::string, Json>;

  Json() = default;

  // The value that `text` is, whole. Throws c10::Error that begins with `where`
  // and says at which byte, if the text is no JSON (RFC 8259, UTF-8), an object
  // has a key twice, or values are nested deeper than kMaxDepth.
  static Json parse(std::string_view text, const std::string& where);
  static constexpr int kMaxDepth = 32;

  Kind kind() const { return kind_; }
  // Each throws c10::Error, which names `where`, on a value of another kind.
  bool boolean(const std::string& where) const;
  int64_t integer(const std::string& where) const;
  // An integer is a number, too.
  double number(const std::string& where) const;
  const std::string& string(const std::string& where) const;
  const std::vector<Json>& array(const std::string& where) const;
  const std::vector<Member>& object(const std::string& where) const;
  // The member `key` of an object. Throws if there is none.
  const Json& at(std::string_view key, const std::string& where) const;
  // Null where there is none.
  const Json* find(std::string_view key) const;

 private:
  friend class JsonParser;

  Kind kind_ = Kind::Null;
  int64_t integer_ = 0;  // also of a Bool
  double real_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::vector<Member> members_;
};

// `text` as a JSON string, quotes included. Bytes that are no UTF-8 are
// refused by Json::parse, not here.
std::string json_string(std::string_view text);

// Whether `text` is UTF-8.
bool is_utf8(std::string_view text);

}  // namespace tessera::detail
