// Error texts name things of the API as C++ spells them. In a Python program
// they name Python's: the package says so when it is imported.
#pragma once

#include <string>
#include <string_view>

#include "tessera/export.h"

namespace tessera {

// From now on errors name things as Python does: DTensor.from_local. For the
// whole process.
TESSERA_API void speak_python();
TESSERA_API bool speaks_python();

// A text that names things as C++ does, in the words of the language that is
// spoken.
TESSERA_API std::string spell(std::string_view text);

}  // namespace tessera
