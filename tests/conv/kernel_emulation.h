// Runs CUDA kernels of 256 threads on a CPU: each thread is a fiber, and __syncthreads() hands over to the next one.
//
// Blocks run one after the other, in reverse order in every second launch, so that a result depends on the order if
// another block than the last one is assumed to be the last. race_check.cpp checks each access to memory. Between two barriers the threads run one after the other, forwards and backwards in
// turn, so that a result depends on the order if a barrier is missing. Threads that part ways at a barrier are reported.

#pragma once

#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "race_check.h"

#define UNTRACED __attribute__((no_sanitize_thread))

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

struct alignas(16) float4 {
    float x, y, z, w;
};

struct Index {
    unsigned x, y, z;
};

namespace emulation {
inline Index thread_index, block_index;
UNTRACED inline Index thread() { return thread_index; }
UNTRACED inline Index block() { return block_index; }
}  // namespace emulation
#define threadIdx emulation::thread()
#define blockIdx emulation::block()

namespace emulation {

constexpr unsigned THREADS_PER_BLOCK = 256;
constexpr std::size_t STACK_BYTES = 1 << 16;

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    bool is_done;
};

inline std::array<Fiber, THREADS_PER_BLOCK> fibers;
inline ucontext_t scheduler;
inline std::function<void()> kernel;
inline bool in_reverse = false;

UNTRACED inline void run_thread() {
    kernel();
    fibers[thread_index.x].is_done = true;
}

// Runs each thread up to its next barrier. Returns how many are done.
UNTRACED inline unsigned run_to_barrier(bool forwards) {
    unsigned done = 0;
    for (unsigned turn = 0; turn < THREADS_PER_BLOCK; ++turn) {
        thread_index = {forwards ? turn : THREADS_PER_BLOCK - 1 - turn, 0, 0};
        Fiber& fiber = fibers[thread_index.x];
        race::enter(thread_index.x, fiber.stack.data(), STACK_BYTES);
        swapcontext(&scheduler, &fiber.context);
        done += fiber.is_done;
    }
    return done;
}

UNTRACED inline bool run_block() {
    race::begin_block();
    for (Fiber& fiber : fibers) {
        fiber.is_done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_thread, 0);
    }
    for (bool forwards = true;; forwards = !forwards) {
        const unsigned done = run_to_barrier(forwards);
        if (done == THREADS_PER_BLOCK) return true;
        if (done > 0) return false;
        race::barrier();
    }
}

template <class... Arguments, std::size_t... Numbers>
UNTRACED const char* run_grid(
    void (*function)(Arguments...), Index blocks, void** arguments, std::index_sequence<Numbers...>) {
    kernel = [=]() UNTRACED {
        race::is_tracing = true;
        function(*static_cast<Arguments*>(arguments[Numbers])...);
        race::is_tracing = false;
    };
    race::begin_launch();
    const unsigned total = blocks.x * blocks.y * blocks.z;
    in_reverse = !in_reverse;
    bool is_together = true;
    for (unsigned turn = 0; turn < total && is_together; ++turn) {
        const unsigned block = in_reverse ? total - 1 - turn : turn;
        block_index = {block % blocks.x, block / blocks.x % blocks.y, block / blocks.x / blocks.y};
        is_together = run_block();
    }
    race::end_launch();
    return is_together ? race::failure() : "threads of a block part ways at a barrier";
}

template <class... Arguments>
const char* run_grid(void (*function)(Arguments...), Index blocks, void** arguments) {
    return run_grid(function, blocks, arguments, std::index_sequence_for<Arguments...>());
}

}  // namespace emulation

UNTRACED inline void __syncthreads() {
    race::is_tracing = false;
    swapcontext(&emulation::fibers[emulation::thread_index.x].context, &emulation::scheduler);
    race::is_tracing = true;
}

UNTRACED inline void __threadfence() { race::fence(); }

UNTRACED inline unsigned atomicAdd(unsigned* counter, unsigned number) {
    race::count(counter);
    const unsigned before = *counter;
    *counter += number;
    return before;
}

// Launches a kernel by its name.
#define EMULATED_ENTRY(NAME) \
    if (std::strcmp(name, #NAME) == 0) return emulation::run_grid(NAME, Index{x, y, z}, arguments);
#define EMULATED_LAUNCH                                                                               \
    extern "C" const char* fused_launch(                                                              \
        const char* name, unsigned x, unsigned y, unsigned z, void** arguments, void* /*stream*/) {   \
        FUSED_KERNELS(EMULATED_ENTRY)                                                                 \
        return "no such kernel";                                                                      \
    }
