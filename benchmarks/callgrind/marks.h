// Marks the stretch of a program whose instructions callgrind shall count. For
// C++ to link and for Python to load with ctypes. Outside valgrind the marks
// cost a few instructions and do nothing; without its headers they are empty.
#pragma once

extern "C" {

// Counting starts. Run under `valgrind --tool=callgrind --instr-atstart=no`, so
// that the start of the program is neither counted nor slowed down.
void callgrind_begin();

// Counting stops; what was counted goes into a file of its own, whose line
// "desc: Trigger: Client Request:" names `what`.
void callgrind_end(const char* what);

}  // extern "C"
