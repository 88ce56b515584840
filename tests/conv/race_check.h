// Events of emulated kernels that race_check.cpp orders.

#pragma once

#include <cstddef>

namespace race {

extern bool is_tracing;      // whether a kernel executes, and not the emulation
const char* failure();       // of this launch, or null
void begin_launch();
void end_launch();
void begin_block();
void barrier();              // all threads of the block have reached it
void enter(unsigned thread, const char* stack, std::size_t stack_bytes);
void fence();
void count(const unsigned* counter);
bool is_removed(unsigned statement);  // by a test

}  // namespace race
