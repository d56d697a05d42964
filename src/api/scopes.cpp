#include "tessera/scopes.h"

#include "dispatch/scopes.h"

namespace tessera {

Strict::Strict() { detail::enter_strict(); }
Strict::~Strict() { detail::leave_strict(); }

}  // namespace tessera
