// Shared code of winograd.cpp and windows.cpp. C++17 with OpenMP; includes standard headers only.
//
// Images are dense float32 in NHWC order. The work is divided into `lanes`, one per thread. The division is fixed, so
// that the order of all sums, and therefore every result, is equal in every run.
#pragma once

#include <algorithm>
#include <cstring>

// Fortran interface of the BLAS library that torch uses.
using Sgemm = void (*)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                       const int *, const float *, const int *, const float *, float *, const int *);

// Must be equal to `KernelSizes` in compiled_launch.py.
struct Sizes {
  int samples, height, width, channels;
  int out_height, out_width, outputs;
  int kernel_height, kernel_width, stride_y, stride_x, dilation_y, dilation_x;
  int top, left;  // Padding; negative values crop the image.
  int lanes;
  int tile;  // Patches or output pixels that a lane processes at once.

  long image_size() const { return long(height) * width * channels; }
  long output_pixels() const { return long(samples) * out_height * out_width; }
  int window() const { return kernel_height * kernel_width * channels; }
};

// Products of row-major matrices. The Fortran library interprets all of them as transposed.
struct Multiply {
  Sgemm sgemm;

  // result (rows, columns) = left (rows, inner) right, where right is (inner, columns) or, transposed, (columns, inner).
  void set(int rows, int columns, int inner, const float *left, const float *right, bool transposed,
           float *result) const {
    const float one = 1, zero = 0;
    sgemm(transposed ? "T" : "N", "N", &columns, &rows, &inner, &one, right, transposed ? &inner : &columns, left,
          &inner, &zero, result, &columns);
  }

  // result (rows, columns) += left (inner, rows), transposed, right (inner, columns).
  void add(int rows, int columns, int inner, const float *left, const float *right, float *result) const {
    const float one = 1;
    sgemm("N", "T", &columns, &rows, &inner, &one, right, &columns, left, &rows, &one, result, &columns);
  }
};

// First of the `items` of a lane; the items of a lane end where those of the next lane begin.
inline long begin_of(long lane, long lanes, long items) { return items * lane / lanes; }
