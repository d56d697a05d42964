// What a user's scopes ask of every op: see include/tessera/scopes.h. They hold
// on all threads, those of a backward pass included.
#pragma once

namespace tessera::detail {

void enter_strict();
void leave_strict();
// Whether ops without a rule are refused: inside the scope, or always with
// TESSERA_STRICT=1 in the environment.
bool is_strict();

void enter_explicit();
void leave_explicit();
// Whether ops may not move their arguments between ranks by themselves.
bool is_explicit();

}  // namespace tessera::detail
