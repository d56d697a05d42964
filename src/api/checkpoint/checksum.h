// XXH64, the 64-bit checksum of the xxHash family, after its specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::detail {

uint64_t checksum(const void* data, size_t bytes);
inline uint64_t checksum(std::string_view text) {
  return checksum(text.data(), text.size());
}

// 16 hexadecimal digits, and what they say. False unless they are 16.
std::string hex16(uint64_t value);
bool parse_hex16(std::string_view text, uint64_t& value);

}  // namespace tessera::detail
