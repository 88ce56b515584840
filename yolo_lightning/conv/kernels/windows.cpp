// im2col for any kernel size, stride and dilation, in tiles of output pixels; see im2col_channels_last.py.
#include "compiled.h"

namespace {

// Copies one row of a window, `kernel_width` pixels of image row `y` from `x` on; zeros outside the image.
void lower_row(const Sizes &s, const float *image, int y, int x, float *into) {
  const int run = s.kernel_width * s.channels;
  if (y < 0 || y >= s.height) {
    std::fill(into, into + run, 0.0f);
    return;
  }
  const float *row = image + long(y) * s.width * s.channels;
  if (s.dilation_x == 1 && x >= 0 && x + s.kernel_width <= s.width) {
    std::copy(row + long(x) * s.channels, row + long(x) * s.channels + run, into);
    return;
  }
  for (int tap = 0; tap < s.kernel_width; ++tap, into += s.channels) {
    const int column = x + tap * s.dilation_x;
    if (column < 0 || column >= s.width)
      std::fill(into, into + s.channels, 0.0f);
    else
      std::copy(row + long(column) * s.channels, row + long(column + 1) * s.channels, into);
  }
}

void lower(const Sizes &s, const float *images, long first, int count, float *windows) {
  const long pixels = long(s.out_height) * s.out_width;
  for (int index = 0; index < count; ++index) {
    const long pixel = first + index, rest = pixel % pixels;
    const float *image = images + pixel / pixels * s.image_size();
    const int y = int(rest / s.out_width) * s.stride_y - s.top, x = int(rest % s.out_width) * s.stride_x - s.left;
    for (int tap = 0; tap < s.kernel_height; ++tap, windows += s.kernel_width * s.channels)
      lower_row(s, image, y + tap * s.dilation_y, x, windows);
  }
}

// Adds windows to the pixels that they were copied from, for the image rows from `begin` to `end`.
void add_windows(const Sizes &s, const float *windows, int first_row, int rows, int begin, int end, float *image) {
  for (int row = first_row; row < first_row + rows; ++row)
    for (int column = 0; column < s.out_width; ++column)
      for (int tap = 0; tap < s.kernel_height; ++tap) {
        const int y = row * s.stride_y - s.top + tap * s.dilation_y;
        for (int place = 0; place < s.kernel_width; ++place, windows += s.channels) {
          const int x = column * s.stride_x - s.left + place * s.dilation_x;
          if (y < begin || y >= end || x < 0 || x >= s.width) continue;
          float *pixel = image + (long(y) * s.width + x) * s.channels;
          for (int channel = 0; channel < s.channels; ++channel) pixel[channel] += windows[channel];
        }
      }
}

// Smallest q with q * step >= value.
int ceiling(int value, int step) { return value > 0 ? (value + step - 1) / step : -(-value / step); }

}  // namespace

// Computes the output if `matrix` (window, outputs) is not null. Adds the weight gradient to `totals` (lanes, window,
// outputs) if `grads`, the output gradient, is not null. `scratch` has `tile * window` floats per lane.
extern "C" void windows(const Sizes *given, Sgemm sgemm, const float *images, const float *matrix, const float *grads,
                        float *pixels, float *totals, float *scratch) {
  const Sizes s = *given;
  const Multiply multiply{sgemm};
  const long all = s.output_pixels(), tiles = (all + s.tile - 1) / s.tile;
#pragma omp parallel for schedule(static, 1) num_threads(s.lanes)
  for (int lane = 0; lane < s.lanes; ++lane) {
    float *lowered = scratch + long(lane) * s.tile * s.window();
    float *total = totals + long(lane) * s.window() * s.outputs;
    const long end = begin_of(lane + 1, s.lanes, tiles);
    for (long tile = begin_of(lane, s.lanes, tiles); tile < end; ++tile) {
      const long first = tile * s.tile;
      const int count = int(std::min<long>(s.tile, all - first));
      lower(s, images, first, count, lowered);
      if (matrix)
        multiply.set(count, s.outputs, s.window(), lowered, matrix, false, pixels + first * s.outputs);
      if (grads) multiply.add(s.window(), s.outputs, count, lowered, grads + first * s.outputs, total);
    }
  }
}

// Computes the input gradient. Each lane writes its own rows of the images; output rows that reach into the rows of two
// lanes are multiplied by both. `scratch` has `max(tile, out_width) * window` floats per lane.
extern "C" void windows_input_gradient(const Sizes *given, Sgemm sgemm, const float *grads, const float *matrix,
                                       float *images, float *scratch) {
  const Sizes s = *given;
  const Multiply multiply{sgemm};
  const int rows_at_once = std::max(1, s.tile / s.out_width), reach = s.dilation_y * (s.kernel_height - 1);
  const long all = long(s.samples) * s.height, row_size = long(s.width) * s.channels;
#pragma omp parallel for schedule(static, 1) num_threads(s.lanes)
  for (int lane = 0; lane < s.lanes; ++lane) {
    float *lowered = scratch + long(lane) * std::max(s.tile, s.out_width) * s.window();
    const long first = begin_of(lane, s.lanes, all), last = begin_of(lane + 1, s.lanes, all);
    std::fill(images + first * row_size, images + last * row_size, 0.0f);
    for (long sample = first / s.height; sample * s.height < last; ++sample) {
      const int begin = int(std::max(first - sample * s.height, 0L));
      const int end = int(std::min<long>(last - sample * s.height, s.height));
      const int from = std::max(0, ceiling(begin + s.top - reach, s.stride_y));
      const int to = std::min(s.out_height, ceiling(end + s.top, s.stride_y));
      for (int row = from; row < to; row += rows_at_once) {
        const int rows = std::min(rows_at_once, to - row);
        const float *grad = grads + (sample * s.out_height + row) * s.out_width * s.outputs;
        multiply.set(rows * s.out_width, s.window(), s.outputs, grad, matrix, true, lowered);
        add_windows(s, lowered, row, rows, begin, end, images + sample * s.image_size());
      }
    }
  }
}
