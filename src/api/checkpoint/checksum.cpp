#include "api/checkpoint/checksum.h"

#include <bit>
#include <cstring>

namespace tessera::detail {

namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <typename T>
uint64_t little(const unsigned char* at) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

uint64_t merge(uint64_t hash, uint64_t lane) {
  return (hash ^ round(0, lane)) * kPrime1 + kPrime4;
}

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  const auto* const end = at + bytes;
  uint64_t hash = kPrime5;
  if (bytes >= 32) {
    uint64_t a = kPrime1 + kPrime2;
    uint64_t b = kPrime2;
    uint64_t c = 0;
    uint64_t d = 0 - kPrime1;
    for (; end - at >= 32; at += 32) {
      a = round(a, little<uint64_t>(at));
      b = round(b, little<uint64_t>(at + 8));
      c = round(c, little<uint64_t>(at + 16));
      d = round(d, little<uint64_t>(at + 24));
    }
    hash =
        std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (const uint64_t lane : {a, b, c, d}) hash = merge(hash, lane);
  }
  hash += bytes;
  for (; end - at >= 8; at += 8) {
    hash ^= round(0, little<uint64_t>(at));
    hash = std::rotl(hash, 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash ^= little<uint32_t>(at) * kPrime1;
    hash = std::rotl(hash, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) {
    hash = std::rotl(hash ^ (*at * kPrime5), 11) * kPrime1;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string hex16(uint64_t value) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) out[i] = kDigits[value & 15];
  return out;
}

bool parse_hex16(std::string_view text, uint64_t& value) {
  if (text.size() != 16) return false;
  value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return false;
    value = value << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return true;
}

}  // namespace tessera::detail
