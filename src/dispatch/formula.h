// Whose code runs in a backward pass: a derivative formula's or a user's.
#pragma once

namespace tessera::detail {

// True while this thread evaluates a derivative formula that comes with torch
// or with this library. False outside a backward pass, in Functions of users,
// and in hooks.
bool in_derivative_formula();

}  // namespace tessera::detail
