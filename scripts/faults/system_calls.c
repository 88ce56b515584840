/* Faults of the operating system, below Python: cc -shared -fPIC -O1 -o system_calls.so system_calls.c -ldl
 *
 * LD_PRELOAD puts this library before the C library in every process of a case. The file FAULTS_CONTROL, mapped by all of
 * them, selects one family of calls, one generation of processes and one folder. While the file is armed, the selected
 * calls fail with an errno, block, are slow, or return a wrong time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum family { OPEN, READ, WRITE, SYNC, RENAME, UNLINK, STAT, MMAP, FORK, CLOCK, IOCTL };
enum effect { FAIL, BLOCK, SLOW, JUMP };

struct control { /* read and written by random_faults.py as "<8i3dq256s" */
    int32_t armed, root, generation, family, effect, error, skip, fired;
    double duration_s, each_s, until_s;
    int64_t calls;
    char folder[256];
};

static struct control *control;
static int generation = -1; /* 0 for the process that the case has started, 1 for its children, ...; -2 for others */

static double now_s(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void pause_s(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) {}
}

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("FAULTS_CONTROL");
    if (path == NULL) return;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = (void *)syscall(SYS_mmap, NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (mapped != MAP_FAILED) control = mapped;
}

static int parent_of(int process) {
    char path[64], content[512], *end;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = syscall(SYS_read, file, content, sizeof content - 1);
    syscall(SYS_close, file);
    if (length <= 0) return 0;
    content[length] = 0;
    end = strrchr(content, ')');
    return end != NULL ? atoi(end + 4) : 0;
}

static int generation_of_process(void) {
    static int process;
    int me = syscall(SYS_getpid);
    if (process == me && generation != -1) return generation; /* another process after a fork */
    process = me;
    generation = -2;
    for (int depth = 0, id = me; id > 1 && depth < 8; depth++, id = parent_of(id))
        if (id == control->root) generation = depth;
    return generation;
}

static int is_below(const char *path) {
    if (control->folder[0] == 0) return 1;
    char absolute[PATH_MAX];
    if (path == NULL) return 0;
    if (path[0] != '/') {
        if (syscall(SYS_getcwd, absolute, sizeof absolute) < 0) return 0;
        size_t length = strlen(absolute);
        snprintf(absolute + length, sizeof absolute - length, "/%s", path);
        path = absolute;
    }
    return strncmp(path, control->folder, strlen(control->folder)) == 0;
}

/* Return whether the file has a name below the folder; pipes, sockets and terminals do not fail like a disk. */
static int is_file_below(int file) {
    struct stat status;
    char link[64], path[PATH_MAX];
    if (syscall(SYS_fstat, file, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int is_selected(enum family family) {
    return control != NULL && control->armed && control->family == (int32_t)family &&
           generation_of_process() == control->generation;
}

/* Carry out the fault of a selected call; return the errno with which the call fails, 0 if it is carried out. */
static int fault(void) {
    if (__atomic_fetch_add(&control->calls, 1, __ATOMIC_SEQ_CST) < control->skip) return 0;
    int is_first = __atomic_fetch_add(&control->fired, 1, __ATOMIC_SEQ_CST) == 0;
    double now = now_s();
    if (is_first) control->until_s = now + control->duration_s;
    if (!is_first && now >= control->until_s) {
        control->armed = 0;
        return 0;
    }
    if (control->effect == BLOCK && is_first) pause_s(control->duration_s);
    if (control->effect == SLOW) pause_s(control->each_s);
    return control->effect == FAIL ? control->error : 0;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (real == NULL) real = dlsym(RTLD_NEXT, #name)
#define FAIL_IF(selected, family, failure) \
    if (is_selected(family) && (selected)) { int number = fault(); if (number) { errno = number; return failure; } }

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list arguments; va_start(arguments, flags); mode_t mode = va_arg(arguments, int); va_end(arguments); \
        REAL(int, name, const char *, int, ...); \
        FAIL_IF(is_below(path), OPEN, -1) \
        return real(path, flags, mode); }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list arguments; va_start(arguments, flags); mode_t mode = va_arg(arguments, int); va_end(arguments); \
        REAL(int, name, int, const char *, int, ...); \
        FAIL_IF(is_below(path), OPEN, -1) \
        return real(folder, path, flags, mode); }
OPENS_AT(openat)
OPENS_AT(openat64)

#define FOPENS(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(FILE *, name, const char *, const char *); \
        FAIL_IF(is_below(path), OPEN, NULL) \
        return real(path, mode); }
FOPENS(fopen)
FOPENS(fopen64)

ssize_t read(int file, void *content, size_t size) {
    REAL(ssize_t, read, int, void *, size_t);
    FAIL_IF(is_file_below(file), READ, -1)
    return real(file, content, size);
}

#define READS_AT(name, offset_type) \
    ssize_t name(int file, void *content, size_t size, offset_type offset) { \
        REAL(ssize_t, name, int, void *, size_t, offset_type); \
        FAIL_IF(is_file_below(file), READ, -1) \
        return real(file, content, size, offset); }
READS_AT(pread, off_t)
READS_AT(pread64, off64_t)

ssize_t write(int file, const void *content, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    FAIL_IF(is_file_below(file), WRITE, -1)
    return real(file, content, size);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    FAIL_IF(is_file_below(file), WRITE, -1)
    return real(file, parts, count);
}

int fsync(int file) {
    REAL(int, fsync, int);
    FAIL_IF(is_file_below(file), SYNC, -1)
    return real(file);
}

int fdatasync(int file) {
    REAL(int, fdatasync, int);
    FAIL_IF(is_file_below(file), SYNC, -1)
    return real(file);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    FAIL_IF(is_below(to), RENAME, -1)
    return real(from, to);
}

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    FAIL_IF(is_below(path), UNLINK, -1)
    return real(path);
}

#define STATS(name, type) \
    int name(const char *path, struct type *status) { \
        REAL(int, name, const char *, struct type *); \
        FAIL_IF(is_below(path), STAT, -1) \
        return real(path, status); }
STATS(stat, stat)
STATS(stat64, stat64)
STATS(lstat, stat)
STATS(lstat64, stat64)

#define MMAPS(name, offset_type) \
    void *name(void *address, size_t size, int protection, int flags, int file, offset_type offset) { \
        REAL(void *, name, void *, size_t, int, int, int, offset_type); \
        FAIL_IF(file >= 0 && is_file_below(file), MMAP, MAP_FAILED) \
        return real(address, size, protection, flags, file, offset); }
MMAPS(mmap, off_t)
MMAPS(mmap64, off64_t)

pid_t fork(void) {
    REAL(pid_t, fork, void);
    FAIL_IF(1, FORK, -1)
    return real();
}

/* A function that calls vfork must not return in the child, so that the call becomes a fork. */
pid_t vfork(void) {
    return fork();
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME && is_selected(CLOCK)) {
        fault();
        if (control->armed && control->fired && now_s() < control->until_s) time->tv_sec += (time_t)control->each_s;
    }
    return result;
}

int ioctl(int file, unsigned long request, ...) {
    va_list arguments; va_start(arguments, request); void *argument = va_arg(arguments, void *); va_end(arguments);
    REAL(int, ioctl, int, unsigned long, ...);
    FAIL_IF(1, IOCTL, -1)
    return real(file, request, argument);
}
