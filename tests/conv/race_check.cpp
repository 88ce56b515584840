// Checks each access of emulated kernels to memory: it is inside an operand, and ordered after every access of another
// thread to the same element that conflicts with it.
//
// g++ -fsanitize=thread calls the functions __tsan_* below before each access; the library of ThreadSanitizer is not
// linked. Accesses of a block are ordered by barriers. The first access of two blocks is ordered before the second one
// if it is followed by a fence, the fence by an atomic addition of its block, this by an addition of the other block to
// the same counter, and that by a fence before the second access. Between two threads of a block, the next one of these
// steps needs a barrier.

#include "race_check.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <vector>

extern "C" __attribute__((visibility("hidden"))) char __bss_start, _end;  // of this library; shared memory is inside

namespace race {

constexpr unsigned THREADS = 256;
constexpr std::size_t SHARED_BYTES = 4;  // of an element in shared memory
enum Kind { READ, WRITE, PARTIAL, COUNTER };  // of operands; what a launch has not written into partials is not read

struct Access {
    unsigned block, phase, step, thread;  // block 0: none. phase: barriers of the block. step: in the order of a thread
};

struct Cell {
    Access write, read, other_read;  // the two last reads of different threads
};

struct Operand {
    std::uintptr_t start;
    const unsigned char* is_element;  // false in the gaps of a tensor whose elements are not adjacent
    std::size_t elements, element_bytes;
    int kind;
    std::vector<Cell> cells;
};

// What an atomic addition of a block publishes: accesses before `phase`, and those of a thread up to a step.
struct Published {
    const unsigned* counter;
    unsigned block, phase;
    std::array<unsigned, THREADS> steps;
};

struct Moment {
    unsigned thread, phase;
};

static std::vector<Operand> operands;
static std::vector<Cell> shared;
static std::vector<Published> published;
static std::map<std::size_t, std::vector<Moment>> observed, acquired;  // of this block, by number in `published`
static std::array<Access, THREADS> fences;
static Access now;
static std::array<const char*, THREADS> stacks;
static std::size_t stack_bytes;
static char message[200];
bool is_tracing = false;

const char* failure() { return *message ? message : nullptr; }

void begin_launch() {
    *message = 0, now = {}, published.clear();
    shared.assign((&_end - &__bss_start) / SHARED_BYTES + 1, {});
    for (Operand& operand : operands) operand.cells.assign(operand.elements, {});
}

void end_launch() { operands.clear(); }

void begin_block() { now.block += 1, now.phase = 1, fences = {}, observed.clear(), acquired.clear(); }

void enter(unsigned thread, const char* stack, std::size_t bytes) {
    now.thread = thread, stacks[thread] = stack, stack_bytes = bytes;
}

void barrier() { now.phase += 1; }

static bool is_known(const std::vector<Moment>& moments) {
    for (const Moment& one : moments) {
        if (one.thread == now.thread || one.phase < now.phase) return true;
    }
    return false;
}

void fence() {
    now.step += 1, fences[now.thread] = now;
    for (const auto& [number, moments] : observed) {
        if (is_known(moments) && !is_known(acquired[number])) acquired[number].push_back({now.thread, now.phase});
    }
}

void count(const unsigned* counter) {
    for (std::size_t number = 0; number < published.size(); ++number) {
        if (published[number].counter == counter) observed[number].push_back({now.thread, now.phase});
    }
    Published made{counter, now.block, 0, {}};
    for (const Access& one : fences) {
        if (one.block == 0 || (one.thread != now.thread && one.phase >= now.phase)) continue;
        made.phase = one.phase > made.phase ? one.phase : made.phase;
        made.steps[one.thread] = one.step;
    }
    published.push_back(made);
}

static bool is_before(const Access& one) {
    if (one.block == 0 || (one.block == now.block && (one.thread == now.thread || one.phase < now.phase))) return true;
    for (const auto& [number, moments] : acquired) {
        const Published& by = published[number];
        const bool covers = by.block == one.block && (one.phase < by.phase || one.step <= by.steps[one.thread]);
        if (covers && is_known(moments)) return true;
    }
    return false;
}

static void report(const char* what, const Access& other) {
    if (*message) return;
    std::snprintf(
        message, sizeof message, "thread %u of block %u: %s (thread %u of block %u)", now.thread, now.block, what,
        other.thread, other.block);
}

static void check(Cell& cell, bool is_write) {
    if (!is_before(cell.write)) report("race with a write", cell.write);
    if (!is_write) {
        if (cell.read.thread != now.thread || cell.read.block != now.block) cell.other_read = cell.read;
        cell.read = now;
        return;
    }
    for (const Access& one : {cell.read, cell.other_read}) {
        if (!is_before(one)) report("race with a read", one);
    }
    cell = {now, {}, {}};
}

static void access(const void* pointer, std::size_t bytes, bool is_write) {
    if (!is_tracing || operands.empty()) return;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (address - reinterpret_cast<std::uintptr_t>(stacks[now.thread]) < stack_bytes) return;
    now.step += 1;
    for (Operand& operand : operands) {
        const std::size_t offset = address - operand.start;
        if (offset >= operand.elements * operand.element_bytes) continue;
        if (is_write && operand.kind == READ) report("writes to an operand that is read", {});
        const std::size_t first = offset / operand.element_bytes;
        const std::size_t last = (offset + bytes - 1) / operand.element_bytes;
        for (std::size_t number = first; number <= last; ++number) {
            if (number >= operand.elements || !operand.is_element[number]) return report("outside of an operand", {});
            Cell& cell = operand.cells[number];
            if (operand.kind == PARTIAL && !is_write && !cell.write.block) report("reads what nothing has written", {});
            if (operand.kind != COUNTER) check(cell, is_write);
        }
        return;
    }
    const std::size_t offset = address - reinterpret_cast<std::uintptr_t>(&__bss_start);
    if (offset + bytes > shared.size() * SHARED_BYTES) return report("outside of all operands", {});
    for (std::size_t number = offset / SHARED_BYTES; number * SHARED_BYTES < offset + bytes; ++number) {
        Cell& cell = shared[number];
        if (cell.write.block != now.block) cell = {};
        if (!is_write && !cell.write.block) report("reads shared memory that nothing has written", {});
        check(cell, is_write);
    }
}

}  // namespace race

// Number of the statement that a test removes; 0: none.
extern "C" unsigned removed_statement;
unsigned removed_statement = 0;
bool race::is_removed(unsigned number) { return number == removed_statement; }

// Registers an operand of the next launch.
extern "C" void checked_operand(
    const void* start, const unsigned char* is_element, std::size_t elements, std::size_t element_bytes, int kind) {
    race::operands.push_back(
        {reinterpret_cast<std::uintptr_t>(start), is_element, elements, element_bytes, kind, {}});
}

extern "C" {
#define ACCESSES(BYTES)                                                          \
    void __tsan_read##BYTES(void* at) { race::access(at, BYTES, false); }        \
    void __tsan_write##BYTES(void* at) { race::access(at, BYTES, true); }        \
    void __tsan_unaligned_read##BYTES(void* at) { race::access(at, BYTES, false); } \
    void __tsan_unaligned_write##BYTES(void* at) { race::access(at, BYTES, true); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* at, std::size_t bytes) { race::access(at, bytes, false); }
void __tsan_write_range(void* at, std::size_t bytes) { race::access(at, bytes, true); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
