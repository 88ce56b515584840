// Stand-in for a GPU's compiler and driver library. The "machine code" is the source text after a magic word; a launch
// writes its grid, block and arguments to the first pointer among the arguments.

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "CODE"

int compilations = 0;
static char option[64];
static char kernel[128];
static int has_context = 0;

typedef struct {
    char text[1 << 18];
} Program;

int nvrtcCreateProgram(void** program, const char* text, const char* name, int headers, void* a, void* b) {
    Program* made = malloc(sizeof(Program));
    snprintf(made->text, sizeof(made->text), MAGIC "%s", text);
    *program = made;
    return headers;
}
int nvrtcCompileProgram(void* program, int count, const char** options) {
    ++compilations;
    snprintf(option, sizeof(option), "%s", options[0]);
    return strstr(((Program*)program)->text, "#error") ? 6 : 0;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) { return *size = 12, 0; }
int nvrtcGetProgramLog(void* program, char* log) { return memcpy(log, "line 1: #err", 12), 0; }
int nvrtcGetCUBINSize(void* program, size_t* size) { return *size = strlen(((Program*)program)->text) + 1, 0; }
int nvrtcGetCUBIN(void* program, char* code) { return strcpy(code, ((Program*)program)->text), 0; }
int nvrtcDestroyProgram(void** program) { return free(*program), 0; }
const char* nvrtcGetErrorString(int status) { return "NVRTC_ERROR_COMPILATION"; }

int cuCtxGetCurrent(void** context) { return *context = has_context ? &has_context : NULL, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &kernel, 0; }
int cuCtxSetCurrent(void* context) { return has_context = 1, context != &kernel; }
int cuModuleLoadData(void** module, const char* code) { return *module = (void*)code, memcmp(code, MAGIC, 4) ? 200 : 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    snprintf(kernel, sizeof(kernel), "%s", name);
    return *function = kernel, 0;
}
int cuGetErrorString(int status, const char** text) { return *text = "fake error", 0; }
int cuLaunchKernel(
    void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
    unsigned shared, void* stream, void** arguments, void** extra) {
    if (function != kernel || !has_context || shared || extra || threads_y != 1 || threads_z != 1) return 400;
    float* target = *(float**)arguments[0];
    const float values[] = {x, y, z, threads, (size_t)stream, *(void**)arguments[1] == NULL,
                            *(int*)arguments[2], *(float*)arguments[3]};
    return memcpy(target, values, sizeof(values)), 0;
}

// The same functions under the names of AMD.
int hiprtcCreateProgram(void** p, const char* t, const char* n, int h, void* a, void* b) {
    return nvrtcCreateProgram(p, t, n, h, a, b);
}
int hiprtcCompileProgram(void* program, int count, const char** options) {
    return nvrtcCompileProgram(program, count, options);
}
int hiprtcGetProgramLogSize(void* program, size_t* size) { return nvrtcGetProgramLogSize(program, size); }
int hiprtcGetProgramLog(void* program, char* log) { return nvrtcGetProgramLog(program, log); }
int hiprtcGetCodeSize(void* program, size_t* size) { return nvrtcGetCUBINSize(program, size); }
int hiprtcGetCode(void* program, char* code) { return nvrtcGetCUBIN(program, code); }
int hiprtcDestroyProgram(void** program) { return nvrtcDestroyProgram(program); }
const char* hiprtcGetErrorString(int status) { return "HIPRTC_ERROR_COMPILATION"; }
int hipModuleLoadData(void** module, const char* code) { return has_context = 1, cuModuleLoadData(module, code); }
int hipModuleGetFunction(void** function, void* module, const char* name) {
    return cuModuleGetFunction(function, module, name);
}
const char* hipGetErrorString(int status) { return "fake error"; }
int hipModuleLaunchKernel(
    void* f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void* stream,
    void** arguments, void** extra) {
    return cuLaunchKernel(f, x, y, z, a, b, c, shared, stream, arguments, extra);
}

const char* last_option(void) { return option; }
