// The formats of the files: checksums, JSON, headers and manifests.
#include <gtest/gtest.h>

#include <cstring>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/json.h"
#include "api/checkpoint/manifest.h"
#include "api/checkpoint/safetensors.h"
#include "api/checkpoint/strided_copy.h"
#include "testing/throws.h"

namespace tessera::detail {
namespace formats_test {

using testing::throws_saying;

// As other implementations of XXH64 give them.
TEST(Checksum, KnownValues) {
  const std::vector<std::pair<int, std::string>> known{
      {0, "ef46db3751d8e999"},
      {1, "1f25c8d0bc1f4bb6"},
      {3, "31d2363f52e564c9"},
      {4, "9bb64b7d66ee9fda"},
      {7, "9a7b149959ce60d8"},
      {8, "dab99d95c6f90092"},
      {31, "a2aa5f33cc4a6119"},
      {32, "23c3c17ef790fd97"},
      {33, "50a7cfc7ba588784"},
      {63, "f1438f15b9ed16e9"},
      {100, "778e26df8290f456"},
      {1000, "021f7a7424085ea4"}};
  for (const auto& [bytes, expected] : known) {
    std::string text;
    for (int i = 0; i < bytes; ++i) {
      text += static_cast<char>((i * 7 + 3) % 251);
    }
    EXPECT_EQ(hex16(checksum(text)), expected) << bytes;
  }
}

TEST(Json, Values) {
  const auto json = Json::parse(
      R"( {"a": [1, -2, 0.5e1, true, null], "b": {"c": "x\u00e9\ud83d\ude00\n"}} )",
      "test");
  const auto& list = json.at("a", "test").array("test");
  EXPECT_EQ(list[0].integer("test"), 1);
  EXPECT_EQ(list[1].integer("test"), -2);
  EXPECT_EQ(list[2].kind(), Json::Kind::Real);
  EXPECT_EQ(list[3].kind(), Json::Kind::Bool);
  EXPECT_EQ(list[4].kind(), Json::Kind::Null);
  EXPECT_EQ(
      json.at("b", "test").at("c", "test").string("test"),
      "x\u00e9\U0001F600\n");
}

TEST(Json, WhatIsNotJson) {
  for (const auto* text :
       {"",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "01",
        "+1",
        "1.",
        "nul",
        "\"\n\"",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"abc",
        "\"\xff\"",
        "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"",
        "[1] 2",
        "{1:2}",
        "9223372036854775808",
        "1e999",
        "'a'",
        "\xef\xbb\xbf{}"}) {
    throws_saying<c10::Error>(
        "test is no valid JSON at byte", [&] { Json::parse(text, "test"); });
  }
  throws_saying<c10::Error>("has the key 'a' twice", [&] {
    Json::parse(R"({"a":1,"b":2,"a":3})", "test");
  });
  throws_saying<c10::Error>("nested too deep", [&] {
    Json::parse(std::string(1'000'000, '['), "test");
  });
}

std::string header(const std::string& entries) {
  return "{\"__metadata__\":{\"format\":\"pt\"}," + entries + "}";
}

SafetensorsHeader parse(const std::string& json, int64_t data_bytes) {
  return parse_safetensors(
      json, 8 + static_cast<int64_t>(json.size()) + data_bytes, "f");
}

TEST(Safetensors, Header) {
  const auto parsed = parse(
      header(R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},)"
             R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
             R"("e":{"dtype":"I64","shape":[0,9],"data_offsets":[2,2]})"),
      26);
  ASSERT_EQ(parsed.tensors.size(), 3);
  EXPECT_EQ(parsed.tensors[0].name, "a");
  EXPECT_EQ(parsed.tensors[1].name, "e");
  EXPECT_EQ(parsed.tensors[2].name, "b");
  EXPECT_EQ(parsed.tensors[2].dtype, at::kFloat);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
}

TEST(Safetensors, BadHeaders) {
  const auto refused = [](const char* text, const char* entries, int64_t data) {
    throws_saying<c10::Error>(text, [&] { parse(header(entries), data); });
  };
  refused(
      "no dtype 'F7'",
      R"("a":{"dtype":"F7","shape":[1],"data_offsets":[0,4]})",
      4);
  refused(
      "needs 8 bytes",
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]})",
      4);
  refused(
      "needs 4 bytes",
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]})",
      4);
  refused(
      "negative size",
      R"("a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
      4);
  refused(
      "more than 2^63",
      R"("a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})",
      0);
  refused(
      "begins at byte 1",
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
      2);
  refused(
      "begins at byte 0",
      R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})",
      2);
  refused(
      "it is truncated",
      R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})",
      3);
  refused(
      "holds 5", R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})", 5);
  refused("has no 'shape'", R"("a":{"dtype":"U8","data_offsets":[0,4]})", 4);
  refused(
      "nothing else",
      R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1})",
      4);
  refused(
      "expected an integer",
      R"("a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})",
      4);
  refused(
      "key 'a' twice",
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})",
      1);
  throws_saying<c10::Error>(
      "expected a string", [&] { parse(R"({"__metadata__":{"a":1}})", 0); });
  throws_saying<c10::Error>("begins with '{'", [&] { parse(" {}", 0); });
  const std::string length("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  throws_saying<c10::Error>("18446744073709551615 bytes", [&] {
    safetensors_header_length(length, 100, "f");
  });
  throws_saying<c10::Error>(
      "too few", [&] { safetensors_header_length("abc", 3, "f"); });
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  std::vector<SafetensorsEntry> entries{
      {"x \"\\", at::kFloat, {2, 3}},
      {"y", at::kByte, {}},
      {"z", at::kHalf, {0}}};
  const auto text = make_safetensors_header(entries, {{"k", "v"}}, 4096);
  EXPECT_EQ(text.size() % 4096, 0);
  const auto bytes = static_cast<int64_t>(text.size()) + 25;
  EXPECT_EQ(
      safetensors_header_length(text.substr(0, 8), bytes, "f"),
      static_cast<int64_t>(text.size()) - 8);
  const auto parsed = parse_safetensors(text.substr(8), bytes, "f");
  ASSERT_EQ(parsed.tensors.size(), 3);
  EXPECT_EQ(parsed.tensors[0].name, "x \"\\");
  EXPECT_EQ(parsed.data_begin, static_cast<int64_t>(text.size()));
}

Manifest some_manifest() {
  Manifest manifest;
  manifest.id = 7;
  manifest.step = 3;
  manifest.ranks = 2;
  manifest.files = {
      {"data_0000.safetensors", 100, 50, 1},
      {"data_0001.safetensors", 80, 50, 2}};
  SavedTensor tensor{at::kFloat, {4, 2}, "[S(0)] on 2", {}};
  tensor.pieces.push_back({0, 50, {{0, 0}, {3, 2}}, {11}});
  tensor.pieces.push_back({1, 60, {{3, 0}, {1, 2}}, {12}});
  manifest.tensors["x"] = tensor;
  manifest.generators["cpu"] = {{0, "00"}, {1, "ff"}};
  manifest.values["a\n"] = "b";
  return manifest;
}

TEST(ManifestText, WhatIsWrittenIsRead) {
  const auto text = write_manifest(some_manifest());
  EXPECT_EQ(write_manifest(parse_manifest(text, "m")), text);
  // It is JSON for others too.
  EXPECT_EQ(Json::parse(text, "m").object("m").size(), 2);
}

TEST(ManifestText, EveryFlippedByteIsFound) {
  const auto text = write_manifest(some_manifest());
  for (size_t i = 0; i < text.size(); ++i) {
    auto flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    throws_saying<c10::Error>("m is ", [&] { parse_manifest(flipped, "m"); });
    throws_saying<c10::Error>(
        "m is ", [&] { parse_manifest(text.substr(0, i), "m"); });
  }
}

TEST(ManifestText, WhatCannotBe) {
  const auto refused = [](const char* text, const auto& change) {
    auto manifest = some_manifest();
    change(manifest);
    throws_saying<c10::Error>(
        text, [&] { parse_manifest(write_manifest(manifest), "m"); });
  };
  refused("hold 6 of 8", [](auto& m) { m.tensors["x"].pieces.pop_back(); });
  refused("overlap", [](auto& m) {
    m.tensors["x"].pieces[1].box = {{0, 0}, {1, 2}};
  });
  refused("not inside", [](auto& m) {
    m.tensors["x"].pieces[1].box = {{4, 0}, {1, 2}};
  });
  refused("outside the data", [](auto& m) {
    m.tensors["x"].pieces[1].offset = 73;
  });
  refused("outside the data", [](auto& m) {
    m.tensors["x"].pieces[1].offset = 49;
  });
  refused("file 2 of 2", [](auto& m) { m.tensors["x"].pieces[1].file = 2; });
  refused("checksums of 1", [](auto& m) {
    m.tensors["x"].pieces[1].checksums.clear();
  });
  refused(
      "outside its directory", [](auto& m) { m.files[0].name = "../secret"; });
  refused("'data_0001.safetensors' twice", [](auto& m) {
    m.files[0].name = m.files[1].name;
  });
  refused("cannot have", [](auto& m) { m.files[0].bytes = 3; });
}

// Every pair of boxes in a small tensor, by every window.
TEST(StridedCopies, AgainstElements) {
  const Sizes shape{3, 4, 2};
  const auto boxes = [&] {
    std::vector<Box> all;
    for (int64_t a = 0; a < 3; ++a) {
      for (int64_t b = 0; b < 4; b += 3) {
        for (int64_t n = 1; n <= 3 - a; ++n) {
          for (int64_t k = 1; k <= 4 - b; ++k) {
            for (int64_t c = 0; c < 2; ++c) {
              all.push_back({{a, b, 0}, {n, k, 1 + c}});
            }
          }
        }
      }
    }
    return all;
  }();
  const auto value = [](int64_t i, int64_t j, int64_t k) {
    return static_cast<char>(1 + (i * 4 + j) * 2 + k);
  };
  const auto filled = [&](const Box& box) {
    std::string out;
    for (int64_t i = 0; i < box.size[0]; ++i) {
      for (int64_t j = 0; j < box.size[1]; ++j) {
        for (int64_t k = 0; k < box.size[2]; ++k) {
          out += value(box.begin[0] + i, box.begin[1] + j, box.begin[2] + k);
        }
      }
    }
    return out;
  };
  for (const auto& piece : boxes) {
    const auto source = filled(piece);
    for (const auto& target : boxes) {
      const auto shared = intersection(piece, target);
      if (shared.numel() == 0) continue;
      const auto n = static_cast<int64_t>(source.size());
      for (const int64_t window : {1L, 3L, 5L, 100L}) {
        std::string memory(target.numel(), '\0');
        const StridedCopy copy(piece, target, 1, memory.data());
        EXPECT_GE(copy.begin(), 0);
        EXPECT_LE(copy.end(), n);
        for (int64_t from = 0; from < n; from += window) {
          const int64_t to = std::min(n, from + window);
          const auto before = memory;
          if (char* place = copy.place_of(from, to)) {
            ASSERT_TRUE(copy.touches(from, to));
            std::memcpy(place, source.data() + from, to - from);
          } else {
            copy.copy(source.data() + from, from, to);
          }
          ASSERT_EQ(memory != before, copy.touches(from, to));
        }
        auto expected = filled(target);
        // What the piece does not have stays 0.
        size_t at = 0;
        for (int64_t i = 0; i < target.size[0]; ++i) {
          for (int64_t j = 0; j < target.size[1]; ++j) {
            for (int64_t k = 0; k < target.size[2]; ++k, ++at) {
              const Box one{
                  {target.begin[0] + i,
                   target.begin[1] + j,
                   target.begin[2] + k},
                  {1, 1, 1}};
              if (intersection(one, piece).numel() == 0) expected[at] = 0;
            }
          }
        }
        ASSERT_EQ(memory, expected) << piece.str() << target.str() << window;
      }
    }
  }
}

}  // namespace formats_test
}  // namespace tessera::detail
