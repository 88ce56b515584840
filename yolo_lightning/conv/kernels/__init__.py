"""Optional C++ and CUDA/HIP kernels: sources, build, launch and verification."""
