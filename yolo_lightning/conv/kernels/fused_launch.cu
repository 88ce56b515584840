// Launches a kernel by name; appended to the kernels for nvcc or hipcc. FUSED_KERNELS(X) expands to X(name) per kernel.

#include <cstring>

// `arguments` contains the address of each argument. Returns null, or the error message.
extern "C" const char* fused_launch(
    const char* name, unsigned x, unsigned y, unsigned z, void** arguments, void* stream) {
    const void* kernel = nullptr;
#define FUSED_ENTRY(NAME) \
    if (std::strcmp(name, #NAME) == 0) kernel = reinterpret_cast<const void*>(NAME);
    FUSED_KERNELS(FUSED_ENTRY)
    if (kernel == nullptr) return "no such kernel";
    const cudaError_t error =
        cudaLaunchKernel(kernel, dim3(x, y, z), dim3(THREADS), arguments, 0, static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
