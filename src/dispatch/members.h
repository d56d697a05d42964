// The members of a struct, in order, so that a struct of arguments names each
// of them once.
#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tessera::detail {

// Stands for a member of any type while members are counted; never made.
struct AnyMember {
  template <class T>
  operator T() const;
};

template <class T, size_t... I>
constexpr bool takes_members(std::index_sequence<I...> /*numbers*/) {
  return requires { T{(static_cast<void>(I), AnyMember{})...}; };
}

template <class T, size_t kMost = 13>
constexpr size_t member_count() {
  if constexpr (takes_members<T>(std::make_index_sequence<kMost>())) {
    return kMost;
  } else {
    return member_count<T, kMost - 1>();
  }
}

template <class T>
constexpr bool kIsArray = false;
template <class T, size_t kSize>
constexpr bool kIsArray<std::array<T, kSize>> = true;

// A struct without constructors, of 1 to 13 members.
template <class T>
concept HasMembers = std::is_class_v<T> && std::is_aggregate_v<T> &&
                     !kIsArray<std::remove_const_t<T>>;

// References to all members.
template <HasMembers T>
auto members(T& value) {
#define TESSERA_MEMBERS(...)      \
  {                               \
    auto& [__VA_ARGS__] = value;  \
    return std::tie(__VA_ARGS__); \
  }
  constexpr size_t n = member_count<std::remove_const_t<T>>();
  // clang-format off
  if constexpr (n == 1) TESSERA_MEMBERS(a)
  else if constexpr (n == 2) TESSERA_MEMBERS(a, b)
  else if constexpr (n == 3) TESSERA_MEMBERS(a, b, c)
  else if constexpr (n == 4) TESSERA_MEMBERS(a, b, c, d)
  else if constexpr (n == 5) TESSERA_MEMBERS(a, b, c, d, e)
  else if constexpr (n == 6) TESSERA_MEMBERS(a, b, c, d, e, f)
  else if constexpr (n == 7) TESSERA_MEMBERS(a, b, c, d, e, f, g)
  else if constexpr (n == 8) TESSERA_MEMBERS(a, b, c, d, e, f, g, h)
  else if constexpr (n == 9) TESSERA_MEMBERS(a, b, c, d, e, f, g, h, i)
  else if constexpr (n == 10) TESSERA_MEMBERS(a, b, c, d, e, f, g, h, i, j)
  else if constexpr (n == 11) TESSERA_MEMBERS(a, b, c, d, e, f, g, h, i, j, k)
  else if constexpr (n == 12)
    TESSERA_MEMBERS(a, b, c, d, e, f, g, h, i, j, k, l)
  else TESSERA_MEMBERS(a, b, c, d, e, f, g, h, i, j, k, l, m)
    // clang-format on
#undef TESSERA_MEMBERS
}

}  // namespace tessera::detail
