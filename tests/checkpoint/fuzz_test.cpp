// Headers and manifests that nobody would write: each is read, or refused with
// a clear error. TESSERA_FUZZ_INPUTS is how many are tried.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/json.h"
#include "api/checkpoint/manifest.h"
#include "api/checkpoint/safetensors.h"

namespace tessera::detail {
namespace fuzz_test {

int64_t input_count() {
  const char* text = std::getenv("TESSERA_FUZZ_INPUTS");
  return text == nullptr ? 20'000 : std::atoll(text);
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  int64_t number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  // Some changes of bytes, numbers, pieces of text.
  std::string mutated(std::string text, const std::vector<std::string>& seeds) {
    for (int64_t n = number(1, 4); n > 0; --n) change(text, seeds);
    return text;
  }

 private:
  size_t place(const std::string& text) {
    return static_cast<size_t>(number(0, static_cast<int64_t>(text.size())));
  }

  void change(std::string& text, const std::vector<std::string>& seeds) {
    static const std::vector<std::string> kWords{
        "-1",
        "0",
        "18446744073709551615",
        "9223372036854775807",
        "4294967296",
        "1e5",
        "1.5",
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"F32\"",
        "\"F64\"",
        "\"U8\"",
        "[0,0]",
        "[1,2,3]",
        ",",
        ":",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        "\\u0000",
        "\\ud800",
        "\xff",
        "\xc3\xa9",
        "\"shape\"",
        "\"dtype\"",
        "\"data_offsets\"",
        "\"__metadata__\"",
        "\"a\"",
        "\"../x\"",
        " ",
        "\n"};
    const size_t at = place(text);
    const auto rest = static_cast<int64_t>(text.size() - at);
    switch (number(0, 6)) {
      case 0:
        if (rest > 0) text[at] = static_cast<char>(number(0, 255));
        break;
      case 1:
        text.erase(at, number(0, std::min<int64_t>(rest, 20)));
        break;
      case 2:
        text.insert(at, kWords[number(0, std::ssize(kWords) - 1)]);
        break;
      case 3:  // said twice
        text.insert(place(text), text.substr(at, number(0, 60)));
        break;
      case 4: {  // another number
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(
            digit,
            (end == std::string::npos ? text.size() : end) - digit,
            number(0, 1) == 0 ? std::to_string(number(-5, 300))
                              : kWords[number(0, 5)]);
        break;
      }
      case 5: {  // a part of another
        const auto& other = seeds[number(0, std::ssize(seeds) - 1)];
        text.insert(at, other.substr(place(other), number(0, 80)));
        break;
      }
      case 6:
        text.insert(at, number(1, 200), "[{\""[number(0, 2)]);
        break;
    }
  }

  std::mt19937_64 random_;
};

// Calls `read`; only c10::Error with a text that says where may come out.
template <typename Read>
bool is_read(const Read& read) {
  try {
    read();
    return true;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_TRUE(text.starts_with("here")) << text;
    return false;
  }
}

std::vector<std::string> header_seeds() {
  std::vector<SafetensorsEntry> entries{
      {"table.weight", at::kFloat, {2, 3}},
      {"bias", at::kDouble, {4}},
      {"flag", at::kByte, {}},
      {"none", at::kHalf, {0, 7}}};
  const auto whole = make_safetensors_header(entries, {{"format", "pt"}}, 64);
  return {
      whole.substr(8),
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
      "{}",
      std::string(40, '[')};
}

TEST(Fuzz, SafetensorsHeaders) {
  const auto seeds = header_seeds();
  Mutator mutator(1);
  int64_t read = 0;
  const int64_t n = input_count() / 2;
  for (int64_t i = 0; i < n; ++i) {
    const auto text =
        mutator.mutated(seeds[mutator.number(0, std::ssize(seeds) - 1)], seeds);
    const auto header = static_cast<int64_t>(text.size());
    const int64_t bytes = 8 + header + mutator.number(0, 70);
    std::string first8(8, '\0');
    uint64_t length =
        header + (mutator.number(0, 9) == 0 ? mutator.number(-9, 1 << 30) : 0);
    if (mutator.number(0, 20) == 0)
      length = ~uint64_t{0} - mutator.number(0, 9);
    std::memcpy(first8.data(), &length, 8);
    read += is_read([&] {
      const auto said = safetensors_header_length(first8, bytes, "here");
      ASSERT_LE(said, bytes - 8);
      const auto parsed = parse_safetensors(
          text.substr(0, std::min(said, header)), bytes, "here");
      int64_t end = 0;
      for (const auto& entry : parsed.tensors) {
        ASSERT_EQ(entry.begin, end);
        end = entry.end;
      }
      ASSERT_EQ(parsed.data_begin + end, bytes);
    });
  }
  EXPECT_LT(read, n / 2);
}

TEST(Fuzz, Manifests) {
  Manifest manifest;
  manifest.ranks = 2;
  manifest.files = {{"a", 400, 50, 1}, {"b", 180, 50, 2}};
  SavedTensor tensor{at::kFloat, {4, 2}, "[S(0)] on 2", {}};
  tensor.pieces.push_back({0, 50, {{0, 0}, {3, 2}}, {11}});
  tensor.pieces.push_back({1, 60, {{3, 0}, {1, 2}}, {12}});
  manifest.tensors["x"] = tensor;
  manifest.tensors["scalar"] = {at::kDouble, {}, "plain", {{1, 70, {}, {3}}}};
  manifest.generators["cpu"] = {{0, "00"}, {1, "ff"}};
  manifest.values["a"] = "b";
  const std::vector<std::string> seeds{write_manifest(manifest)};
  const std::string before = "{\"checksum\":\"";
  const std::string between = "\",\"manifest\":";
  const size_t prefix = before.size() + 16 + between.size();
  Mutator mutator(2);
  const int64_t n = input_count() / 2;
  int64_t read = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::string text;
    if (i % 8 == 0) {
      text = mutator.mutated(seeds[0], seeds);
    } else {
      // With a checksum that is right, so that the rest is looked at.
      auto body = seeds[0].substr(prefix, seeds[0].size() - prefix - 2);
      body = mutator.mutated(std::move(body), seeds);
      text = before + hex16(checksum(body)) + between + body + "}\n";
    }
    read += is_read([&] {
      const auto parsed = parse_manifest(text, "here");
      for (const auto& [name, saved] : parsed.tensors) {
        for (const auto& piece : saved.pieces) {
          const auto& file = parsed.files.at(piece.file);
          ASSERT_GE(piece.offset, file.header_bytes);
          ASSERT_LE(
              piece.offset + piece.box.numel() * saved.item_bytes(),
              file.bytes);
        }
      }
    });
  }
  EXPECT_LT(read, n / 2);
}

}  // namespace fuzz_test
}  // namespace tessera::detail
