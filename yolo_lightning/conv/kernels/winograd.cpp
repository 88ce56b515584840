// Winograd's F(4x4, 3x3), see winograd.py; a thread computes all steps of a tile.
#include "compiled.h"

namespace {

constexpr int OUTPUTS = 4, PATCH = 6, NUMBERS = PATCH * PATCH;
constexpr int WIDTH = 8;  // Channels per vector; must divide the channels of input and output.
constexpr int GAP = 16;   // Floats between planes: at powers of two, all planes would map to the same cache sets.
constexpr float A = 2.0f / 3, B = 1.5f, A2 = A * A, B2 = B * B;

typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float))));

inline Vector load(const float *from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(Vector value, float *to) { std::memcpy(to, &value, sizeof value); }

// Input transform: six transformed values of six adjacent pixels.
inline void transform(const Vector *pixel, int step, Vector *number, int number_step) {
  const Vector p0 = pixel[0], p1 = pixel[step], p2 = pixel[2 * step];
  const Vector p3 = pixel[3 * step], p4 = pixel[4 * step], p5 = pixel[5 * step];
  const Vector near_even = p4 - B2 * p2, near_odd = A * (p3 - B2 * p1);
  const Vector far_even = p4 - A2 * p2, far_odd = B * (p3 - A2 * p1);
  number[0] = p0 + p4 - (A2 + B2) * p2;
  number[number_step] = near_even + near_odd;
  number[2 * number_step] = near_even - near_odd;
  number[3 * number_step] = far_even + far_odd;
  number[4 * number_step] = far_even - far_odd;
  number[5 * number_step] = p1 + p5 - (A2 + B2) * p3;
}

// Output transform: four outputs of six products.
inline void collect(const Vector *product, int step, Vector *output, int output_step) {
  const Vector p1 = product[step], p2 = product[2 * step], p3 = product[3 * step], p4 = product[4 * step];
  const Vector near_sum = p1 + p2, near = p1 - p2, far_sum = p3 + p4, far = p3 - p4;
  output[0] = product[0] + B * near + A2 * far_sum;
  output[output_step] = near_sum + A * far;
  output[2 * output_step] = far_sum + A * near;
  output[3 * output_step] = product[5 * step] + A2 * near_sum + B * far;
}

// Adjoint of the output transform.
inline void spread(const Vector *grad, int step, Vector *product, int product_step) {
  const Vector g0 = grad[0], g1 = grad[step], g2 = grad[2 * step], g3 = grad[3 * step];
  const Vector near_even = g1 + A2 * g3, near_odd = B * (g0 + A2 * g2);
  const Vector far_even = g2 + A2 * g0, far_odd = B * (g3 + A2 * g1);
  product[0] = g0;
  product[product_step] = near_even + near_odd;
  product[2 * product_step] = near_even - near_odd;
  product[3 * product_step] = far_even + far_odd;
  product[4 * product_step] = far_even - far_odd;
  product[5 * product_step] = g3;
}

// A square of pixels, which may be partly outside the image.
struct Square {
  int y, x, height, width, channels;

  bool has(int row, int column) const {
    return y + row >= 0 && y + row < height && x + column >= 0 && x + column < width;
  }
  long at(int row, int column) const { return (long(y + row) * width + x + column) * channels; }
};

template <int SIZE> void read(const Square &square, const float *image, int channel, Vector *pixels) {
  for (int row = 0; row < SIZE; ++row)
    for (int column = 0; column < SIZE; ++column)
      pixels[row * SIZE + column] =
          square.has(row, column) ? load(image + square.at(row, column) + channel) : Vector{};
}

void read_patch(const Square &square, const float *image, float *numbers, long plane) {
  for (int channel = 0; channel < square.channels; channel += WIDTH) {
    Vector pixels[NUMBERS], half[NUMBERS];
    read<PATCH>(square, image, channel, pixels);
    for (int column = 0; column < PATCH; ++column) transform(pixels + column, PATCH, half + column, PATCH);
    for (int row = 0; row < PATCH; ++row) transform(half + row * PATCH, 1, pixels + row * PATCH, 1);
    for (int number = 0; number < NUMBERS; ++number) store(pixels[number], numbers + number * plane + channel);
  }
}

void write_outputs(const Square &square, const float *products, long plane, float *image) {
  for (int channel = 0; channel < square.channels; channel += WIDTH) {
    Vector numbers[NUMBERS], half[OUTPUTS * PATCH], pixels[OUTPUTS * OUTPUTS];
    for (int number = 0; number < NUMBERS; ++number) numbers[number] = load(products + number * plane + channel);
    for (int column = 0; column < PATCH; ++column) collect(numbers + column, PATCH, half + column, PATCH);
    for (int row = 0; row < OUTPUTS; ++row) collect(half + row * PATCH, 1, pixels + row * OUTPUTS, 1);
    for (int row = 0; row < OUTPUTS; ++row)
      for (int column = 0; column < OUTPUTS; ++column)
        if (square.has(row, column)) store(pixels[row * OUTPUTS + column], image + square.at(row, column) + channel);
  }
}

void read_gradients(const Square &square, const float *image, float *products, long plane) {
  for (int channel = 0; channel < square.channels; channel += WIDTH) {
    Vector pixels[OUTPUTS * OUTPUTS], half[PATCH * OUTPUTS], numbers[NUMBERS];
    read<OUTPUTS>(square, image, channel, pixels);
    for (int column = 0; column < OUTPUTS; ++column) spread(pixels + column, OUTPUTS, half + column, OUTPUTS);
    for (int row = 0; row < PATCH; ++row) spread(half + row * OUTPUTS, 1, numbers + row * PATCH, 1);
    for (int number = 0; number < NUMBERS; ++number) store(numbers[number], products + number * plane + channel);
  }
}

}  // namespace

// Returns the floats of scratch memory per lane.
extern "C" long winograd_scratch(const Sizes *sizes) {
  return NUMBERS * (long(sizes->tile) * (sizes->channels + sizes->outputs) + 2 * GAP);
}

// Computes the output if `matrices`, (36, channels, outputs) or transposed, is not null. Adds the gradient of the
// transformed weight to `totals` (lanes, 36, channels, outputs) if `grads`, the output gradient, is not null.
extern "C" void winograd(const Sizes *given, Sgemm sgemm, const float *images, const float *matrices, bool transposed,
                         const float *grads, float *pixels, float *totals, float *scratch) {
  const Sizes s = *given;
  const Multiply multiply{sgemm};
  const long rows = (s.out_height + OUTPUTS - 1) / OUTPUTS, columns = (s.out_width + OUTPUTS - 1) / OUTPUTS;
  const long patches = s.samples * rows * columns, tiles = (patches + s.tile - 1) / s.tile;
  const long in_plane = long(s.tile) * s.channels + GAP, out_plane = long(s.tile) * s.outputs + GAP;
  const long matrix = long(s.channels) * s.outputs, output_size = long(s.out_height) * s.out_width * s.outputs;
#pragma omp parallel for schedule(static, 1) num_threads(s.lanes)
  for (int lane = 0; lane < s.lanes; ++lane) {
    float *numbers = scratch + lane * winograd_scratch(&s), *products = numbers + NUMBERS * in_plane;
    float *total = totals + lane * NUMBERS * matrix;
    const long end = begin_of(lane + 1, s.lanes, tiles);
    for (long tile = begin_of(lane, s.lanes, tiles); tile < end; ++tile) {
      const long first = tile * s.tile;
      const int count = int(std::min<long>(s.tile, patches - first));
      const auto each = [&](auto work) {
        for (int patch = 0; patch < count; ++patch) {
          const long index = first + patch, sample = index / (rows * columns), rest = index % (rows * columns);
          work(patch, sample, int(rest / columns) * OUTPUTS, int(rest % columns) * OUTPUTS);
        }
      };
      each([&](int patch, long sample, int y, int x) {
        const Square square{y - s.top, x - s.left, s.height, s.width, s.channels};
        read_patch(square, images + sample * s.image_size(), numbers + patch * s.channels, in_plane);
      });
      if (matrices) {
        for (int number = 0; number < NUMBERS; ++number)
          multiply.set(count, s.outputs, s.channels, numbers + number * in_plane, matrices + number * matrix,
                       transposed, products + number * out_plane);
        each([&](int patch, long sample, int y, int x) {
          const Square square{y, x, s.out_height, s.out_width, s.outputs};
          write_outputs(square, products + patch * s.outputs, out_plane, pixels + sample * output_size);
        });
      }
      if (grads) {
        each([&](int patch, long sample, int y, int x) {
          const Square square{y, x, s.out_height, s.out_width, s.outputs};
          read_gradients(square, grads + sample * output_size, products + patch * s.outputs, out_plane);
        });
        for (int number = 0; number < NUMBERS; ++number)
          multiply.add(s.channels, s.outputs, count, numbers + number * in_plane, products + number * out_plane,
                       total + number * matrix);
      }
    }
  }
}
