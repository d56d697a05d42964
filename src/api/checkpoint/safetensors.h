// The header of a safetensors file: eight bytes that say how long it is, then
// JSON that says which bytes of the data behind it are which tensor.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec.h"

namespace tessera::detail {

struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype;
  Sizes shape;
  // Bytes, from the end of the header.
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  // In the order of the data.
  std::vector<SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
  // Where the data begins in the file.
  int64_t data_begin = 0;
};

// The name that safetensors has for a dtype; "" where it has none.
std::string safetensors_dtype(c10::ScalarType dtype);

// The bytes of a tensor of this dtype and shape. Throws c10::Error, which
// begins with `where`, on a negative size or more than 2^63 bytes.
int64_t bytes_of(
    c10::ScalarType dtype, SizesRef shape, const std::string& where);

// The length that the first eight bytes of a file give. Throws unless a header
// of this length fits into `file_bytes` and into memory.
int64_t safetensors_header_length(
    std::string_view first8, int64_t file_bytes, const std::string& where);

// What the JSON behind the first eight bytes says of a file of `file_bytes`.
// Throws c10::Error, which begins with `where`, unless the tensors cover the
// data once, without gaps, each with the bytes that its dtype and shape need.
SafetensorsHeader parse_safetensors(
    std::string_view json, int64_t file_bytes, const std::string& where);

// The header, its length included, with `begin` and `end` of every entry set.
// The data of the entries follow each other in their order. The data begins at
// a multiple of `alignment`, so that it can be mapped.
std::string make_safetensors_header(
    std::vector<SafetensorsEntry>& entries,
    const std::map<std::string, std::string>& metadata,
    int64_t alignment);

}  // namespace tessera::detail
