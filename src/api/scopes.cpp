#include "tessera/scopes.h"

#include "dispatch/scopes.h"

namespace tessera {

Strict::Strict() { detail::enter_strict(); }
Strict::~Strict() { detail::leave_strict(); }

ExplicitCommunication::ExplicitCommunication() { detail::enter_explicit(); }
ExplicitCommunication::~ExplicitCommunication() { detail::leave_explicit(); }

}  // namespace tessera
