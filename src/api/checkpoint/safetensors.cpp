#include "api/checkpoint/safetensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "api/checkpoint/json.h"

namespace tessera::detail {

namespace {

constexpr int64_t kMaxHeader = 100'000'000;  // what the format allows

struct NamedDtype {
  const char* name;
  c10::ScalarType dtype;
};

constexpr std::array kDtypes{
    NamedDtype{"F32", c10::ScalarType::Float},
    NamedDtype{"F16", c10::ScalarType::Half},
    NamedDtype{"BF16", c10::ScalarType::BFloat16},
    NamedDtype{"F64", c10::ScalarType::Double},
    NamedDtype{"I64", c10::ScalarType::Long},
    NamedDtype{"I32", c10::ScalarType::Int},
    NamedDtype{"I16", c10::ScalarType::Short},
    NamedDtype{"I8", c10::ScalarType::Char},
    NamedDtype{"U8", c10::ScalarType::Byte},
    NamedDtype{"U16", c10::ScalarType::UInt16},
    NamedDtype{"U32", c10::ScalarType::UInt32},
    NamedDtype{"U64", c10::ScalarType::UInt64},
    NamedDtype{"BOOL", c10::ScalarType::Bool},
    NamedDtype{"C64", c10::ScalarType::ComplexFloat},
    NamedDtype{"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    NamedDtype{"F8_E5M2", c10::ScalarType::Float8_e5m2},
    NamedDtype{"F8_E8M0", c10::ScalarType::Float8_e8m0fnu}};

c10::ScalarType dtype_named(const std::string& name, const std::string& where) {
  for (const auto& known : kDtypes) {
    if (name == known.name) return known.dtype;
  }
  TORCH_CHECK(false, where, ": torch has no dtype '", name, "'");
}

SafetensorsEntry read_entry(
    const std::string& name, const Json& json, const std::string& file) {
  const std::string where = file + ": tensor '" + name + "'";
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype_named(json.at("dtype", where).string(where), where);
  for (const auto& size : json.at("shape", where).array(where)) {
    entry.shape.push_back(size.integer(where));
  }
  TORCH_CHECK(
      entry.shape.size() <= 64,
      where,
      " has ",
      entry.shape.size(),
      " dimensions; torch has at most 64");
  const auto& offsets = json.at("data_offsets", where).array(where);
  TORCH_CHECK(
      offsets.size() == 2, where, ": expected two data_offsets, begin and end");
  entry.begin = offsets[0].integer(where);
  entry.end = offsets[1].integer(where);
  TORCH_CHECK(
      json.object(where).size() == 3,
      where,
      ": expected dtype, shape and data_offsets and nothing else");
  const int64_t bytes = bytes_of(entry.dtype, entry.shape, where);
  TORCH_CHECK(
      entry.begin >= 0 && entry.end >= entry.begin &&
          entry.end - entry.begin == bytes,
      where,
      " needs ",
      bytes,
      " bytes but its data_offsets are [",
      entry.begin,
      ", ",
      entry.end,
      "]");
  return entry;
}

void check_coverage(
    const SafetensorsHeader& header,
    int64_t data_bytes,
    const std::string& where) {
  int64_t end = 0;
  for (const auto& entry : header.tensors) {
    TORCH_CHECK(
        entry.begin == end,
        where,
        ": tensor '",
        entry.name,
        "' begins at byte ",
        entry.begin,
        " of the data, where ",
        end,
        " was expected: tensors must follow each other without gaps or "
        "overlaps");
    end = entry.end;
  }
  TORCH_CHECK(
      end == data_bytes,
      where,
      ": its tensors have ",
      end,
      " bytes but the file holds ",
      data_bytes,
      end > data_bytes ? "; it is truncated" : "");
}

}  // namespace

std::string safetensors_dtype(c10::ScalarType dtype) {
  for (const auto& known : kDtypes) {
    if (dtype == known.dtype) return known.name;
  }
  return "";
}

int64_t bytes_of(
    c10::ScalarType dtype, SizesRef shape, const std::string& where) {
  bool empty = false;
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool overflow = false;
  for (const int64_t size : shape) {
    TORCH_CHECK(size >= 0, where, " has the negative size ", size);
    empty |= size == 0;
    if (size > 0) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  TORCH_CHECK(!overflow, where, " has more than 2^63 bytes");
  return empty ? 0 : bytes;
}

int64_t safetensors_header_length(
    std::string_view first8, int64_t file_bytes, const std::string& where) {
  TORCH_CHECK(
      first8.size() == 8 && file_bytes >= 8,
      where,
      " has ",
      file_bytes,
      " bytes: too few for a safetensors file");
  uint64_t length = 0;
  std::memcpy(&length, first8.data(), 8);
  TORCH_CHECK(
      length <= kMaxHeader && static_cast<int64_t>(length) <= file_bytes - 8,
      where,
      " says that its header has ",
      length,
      " bytes, but the file has ",
      file_bytes,
      ": it is truncated or no safetensors file");
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_safetensors(
    std::string_view json, int64_t file_bytes, const std::string& where) {
  TORCH_CHECK(
      !json.empty() && json[0] == '{',
      where,
      ": the header of a safetensors file begins with '{'");
  const Json parsed = Json::parse(json, where + ": the header");
  SafetensorsHeader header;
  header.data_begin = 8 + static_cast<int64_t>(json.size());
  for (const auto& [name, value] : parsed.object(where)) {
    if (name == "__metadata__") {
      for (const auto& [key, text] : value.object(where)) {
        header.metadata[key] = text.string(where + ": __metadata__");
      }
    } else {
      header.tensors.push_back(read_entry(name, value, where));
    }
  }
  std::stable_sort(
      header.tensors.begin(),
      header.tensors.end(),
      [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
      });
  check_coverage(header, file_bytes - header.data_begin, where);
  return header;
}

std::string make_safetensors_header(
    std::vector<SafetensorsEntry>& entries,
    const std::map<std::string, std::string>& metadata,
    int64_t alignment) {
  std::string json = "{\"__metadata__\":{";
  const char* comma = "";
  for (const auto& [key, value] : metadata) {
    json += comma + json_string(key) + ":" + json_string(value);
    comma = ",";
  }
  json += "}";
  int64_t end = 0;
  for (auto& entry : entries) {
    entry.begin = end;
    end += bytes_of(entry.dtype, entry.shape, entry.name);
    entry.end = end;
    json += "," + json_string(entry.name) + ":{\"dtype\":\"" +
            safetensors_dtype(entry.dtype) + "\",\"shape\":[";
    comma = "";
    for (const int64_t size : entry.shape) {
      json += comma + std::to_string(size);
      comma = ",";
    }
    json += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," +
            std::to_string(entry.end) + "]}";
  }
  json += "}";
  // Readers skip spaces at the end.
  const auto unpadded = static_cast<int64_t>(json.size()) + 8;
  json.append((alignment - unpadded % alignment) % alignment, ' ');
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(json.size()) <= kMaxHeader,
      "[save] the names of ",
      entries.size(),
      " tensors do not fit into the header of one safetensors file; save them "
      "in several checkpoints");
  const uint64_t length = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + json;
}

}  // namespace tessera::detail
