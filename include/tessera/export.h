// TESSERA_API marks what the shared library exports.
#pragma once

#if defined(_WIN32)
#define TESSERA_API
#else
#define TESSERA_API __attribute__((visibility("default")))
#endif
