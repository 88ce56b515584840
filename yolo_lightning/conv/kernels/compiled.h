// What winograd.cpp and windows.cpp share. C++17 with OpenMP, no header but the standard library's.
//
// Images are float32, dense, channels innermost: sample, row, column, channel. Work is dealt to `lanes`, one for each
// thread, always in the same way, so that sums are the same from run to run.
#pragma once

#include <algorithm>
#include <cstring>

// The Fortran interface of the BLAS that torch was built with.
using Sgemm = void (*)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                       const int *, const float *, const int *, const float *, float *, const int *);

// Mirrors `_compiled_launch.Sizes`.
struct Sizes {
  int samples, height, width, channels;
  int out_height, out_width, outputs;
  int kernel_height, kernel_width, stride_y, stride_x, dilation_y, dilation_x;
  int top, left;  // Zeros before the first row and column; negative where pixels are cut off.
  int lanes;
  int tile;  // Patches or output pixels that a lane works on at once.

  long image_size() const { return long(height) * width * channels; }
  long output_pixels() const { return long(samples) * out_height * out_width; }
  int window() const { return kernel_height * kernel_width * channels; }
};

// Products of matrices in rows. A Fortran library sees all of them transposed.
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

// The first of `items` that a lane does; those of the next lane begin where its own end.
inline long begin_of(long lane, long lanes, long items) { return items * lane / lanes; }
