#include "dispatch/scopes.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace tessera::detail {

namespace {

std::atomic<int> strict_scopes = 0;
std::atomic<int> explicit_scopes = 0;

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) != "" &&
         std::string_view(value) != "0";
}

}  // namespace

void enter_strict() { ++strict_scopes; }
void leave_strict() { --strict_scopes; }

bool is_strict() {
  static const bool always = is_set("TESSERA_STRICT");
  return always || strict_scopes.load(std::memory_order_relaxed) > 0;
}

void enter_explicit() { ++explicit_scopes; }
void leave_explicit() { --explicit_scopes; }

bool is_explicit() {
  return explicit_scopes.load(std::memory_order_relaxed) > 0;
}

}  // namespace tessera::detail
