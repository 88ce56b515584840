// Convolution with 3 x 3 taps and stride 1 by Winograd's algorithm F(2 x 2, 3 x 3), which multiplies 16 times for 4 results
// instead of 36 times (Lavin and Gray: Fast Algorithms for Convolutional Neural Networks, 2016).
//
// A patch of 4 x 4 image pixels gives 2 x 2 results. Patches and weights of a few channels are transformed into shared
// memory. There, each of the 16 points of a transformed patch has a matrix product of its own, which 16 threads compute.
// The sums are transformed through shared memory, and only the results are written to global memory.
//
// build.py places this file after fused.cu. Tensors have fewer than 2^32 bytes; the channels are a multiple of 8.

namespace winograd {

constexpr int POINTS = 16, PATCHES = 32, COLUMNS = 32;  // PATCHES x COLUMNS: results of a block, for each point
constexpr int CHANNELS = THREADS / PATCHES;             // in shared memory at once
constexpr int EACH = 8;                                 // patches and columns of a thread
constexpr int THREADS_EACH_WAY = PATCHES / EACH;
static_assert(POINTS * THREADS_EACH_WAY * THREADS_EACH_WAY == THREADS, "16 threads compute a point");

union Shared {
    float factors[2][POINTS][CHANNELS][PATCHES];      // patches, weights
    float sums[POINTS][PATCHES / 2][COLUMNS];         // half of the patches
};

// Position of a patch or column in a row of factors. Without the permutation, threads that write different channels would
// use the same banks. Groups of four remain adjacent.
__device__ inline int position(int index, int channel) { return index ^ channel * 4; }

// Hides from the compiler that a value is constant, so that it computes what depends on the value in each iteration of a
// loop. It would keep all of it in registers, of which the kernel has too few.
__device__ inline int not_constant(int value) {
#ifdef __AMDGCN__
    asm volatile("" : "+v"(value));
    return value;
#else
    return value;
#endif
}

template <class Element>
__device__ inline Element element_at(const Element* base, unsigned bytes) {
    return *reinterpret_cast<const Element*>(reinterpret_cast<const char*>(base) + bytes);
}

__device__ inline void transform_patch(float* values, int step) {
    const float first = values[0] - values[2 * step], last = values[step] - values[3 * step];
    const float sum = values[step] + values[2 * step], difference = values[2 * step] - values[step];
    values[0] = first, values[step] = sum, values[2 * step] = difference, values[3 * step] = last;
}

__device__ inline void transform_weights(const float* values, int step, float* target, int target_step) {
    const float outer = 0.5f * (values[0] + values[2 * step]), inner = 0.5f * values[step];
    target[0] = values[0], target[target_step] = outer + inner;
    target[2 * target_step] = outer - inner, target[3 * target_step] = values[2 * step];
}

__device__ inline void transform_sums(const float* values, int step, float* target, int target_step) {
    target[0] = values[0] + values[step] + values[2 * step];
    target[target_step] = values[step] - values[2 * step] - values[3 * step];
}

// `matrix.row_step` and `matrix.tap_column_step` are negative for an input gradient, with `weight` at the last tap.
template <class Element>
__device__ inline void correlate(
    const Element* image, const Element* weight, Element* result, const Windows& windows, const Matrix& matrix,
    int samples, int columns) {
    alignas(16) __shared__ Shared shared;
    const int patch_rows = (windows.place_rows + 1) / 2, patch_columns = (windows.place_columns + 1) / 2;
    const int patches = samples * patch_rows * patch_columns;
    const int first_patch = blockIdx.x * PATCHES, first_column = blockIdx.y * COLUMNS;
    const auto place_of = [&](int patch) {
        const int row = patch / patch_columns;
        return Place{row / patch_rows, row % patch_rows * 2, patch % patch_columns * 2};
    };

    // This thread loads one channel of a patch and of a column. Values beyond the last ones are not stored.
    const int channel = threadIdx.x % CHANNELS, own = threadIdx.x / CHANNELS;
    const Place place = place_of(first_patch + own < patches ? first_patch + own : patches - 1);
    bool has_row[4], has_column[4];
    unsigned row_offset[4], column_offset[4];
#pragma unroll
    for (int number = 0; number < 4; ++number) {
        const int row = place.row + windows.first_row + number, column = place.column + windows.first_column + number;
        has_row[number] = unsigned(row) < unsigned(windows.height);
        has_column[number] = unsigned(column) < unsigned(windows.width);
        const unsigned pixels = unsigned(place.sample * windows.height + (has_row[number] ? row : 0)) * windows.width;
        row_offset[number] = (pixels * windows.pixel_stride + channel) * sizeof(Element);
        column_offset[number] = (has_column[number] ? column : 0) * windows.pixel_stride * sizeof(Element);
    }
    const int own_column = first_column + own < columns ? first_column + own : 0;
    const unsigned weight_offset = (own_column * matrix.column_step + channel * matrix.channel_step) * sizeof(Element);

    Element next_patch[POINTS], next_weights[9];
    const Element* taps[9];
#pragma unroll
    for (int number = 0; number < 9; ++number) {
        taps[number] = weight + number / 3 * matrix.row_step + number % 3 * matrix.tap_column_step;
    }
    // Loads the next channels. The pointers advance, because the compiler would keep their sums with offsets in registers.
    const auto fetch = [&]() {
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const unsigned offset = not_constant(row_offset[row]);
#pragma unroll
            for (int column = 0; column < 4; ++column) {
                next_patch[4 * row + column] = element_at(image, offset + column_offset[column]);
            }
        }
        image += CHANNELS;
        const unsigned offset = not_constant(weight_offset);
#pragma unroll
        for (int number = 0; number < 9; ++number) {
            next_weights[number] = element_at(taps[number], offset);
            taps[number] += CHANNELS * matrix.channel_step;
        }
    };
    const auto put_factors = [&]() {
        float values[POINTS], taps[9], rows[12];
#pragma unroll
        for (int number = 0; number < POINTS; ++number) {
            const bool is_inside = has_row[number / 4] && has_column[number % 4];
            values[number] = is_inside ? to_float(next_patch[number]) : 0.0f;
        }
#pragma unroll
        for (int number = 0; number < 4; ++number) transform_patch(values + number, 4);
#pragma unroll
        for (int number = 0; number < 4; ++number) transform_patch(values + 4 * number, 1);
#pragma unroll
        for (int number = 0; number < POINTS; ++number) {
            shared.factors[0][number][channel][position(own, channel)] = values[number];
        }
#pragma unroll
        for (int number = 0; number < 9; ++number) taps[number] = to_float(next_weights[number]);
#pragma unroll
        for (int number = 0; number < 3; ++number) transform_weights(taps + number, 3, rows + number, 3);
#pragma unroll
        for (int number = 0; number < 4; ++number) transform_weights(rows + 3 * number, 1, values + 4 * number, 1);
#pragma unroll
        for (int number = 0; number < POINTS; ++number) {
            shared.factors[1][number][channel][position(own, channel)] = values[number];
        }
    };

    const int point = threadIdx.x / (THREADS_EACH_WAY * THREADS_EACH_WAY);
    const int group = threadIdx.x / THREADS_EACH_WAY % THREADS_EACH_WAY;
    const int own_columns = threadIdx.x % THREADS_EACH_WAY * EACH;
    float totals[EACH][EACH] = {};
    fetch();
    for (int first_channel = 0; first_channel < windows.channels; first_channel += CHANNELS) {
        put_factors();
        sync_shared();
        if (first_channel + CHANNELS < windows.channels) fetch();
        const int left = not_constant(point * CHANNELS * PATCHES + group * EACH);
        const int right = not_constant((POINTS + point) * CHANNELS * PATCHES + own_columns);
#pragma unroll
        for (int depth = 0; depth < CHANNELS; ++depth) {
            float rows[EACH], others[EACH];
#pragma unroll
            for (int number = 0; number < EACH; number += 4) {
                const float* const factors = &shared.factors[0][0][depth][0];
                put_registers(&rows[number], factors + position(left ^ number, depth));
                put_registers(&others[number], factors + position(right ^ number, depth));
            }
#pragma unroll
            for (int row = 0; row < EACH; ++row) {
#pragma unroll
                for (int column = 0; column < EACH; ++column) totals[row][column] += rows[row] * others[column];
            }
        }
        sync_shared();
    }

    const int column = threadIdx.x % COLUMNS;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (half == 1) {
            sync_shared();
        }
#pragma unroll
        for (int row = 0; row < EACH / 2; ++row) {
#pragma unroll
            for (int number = 0; number < EACH; ++number) {
                shared.sums[point][group * (EACH / 2) + row][own_columns + number] = totals[half * (EACH / 2) + row][number];
            }
        }
        sync_shared();
        for (int slot = threadIdx.x / COLUMNS; slot < PATCHES / 2; slot += THREADS / COLUMNS) {
            const int patch = first_patch + slot / (EACH / 2) * EACH + half * (EACH / 2) + slot % (EACH / 2);
            if (patch >= patches || first_column + column >= columns) continue;
            float sums[POINTS], rows[8], found[4];
#pragma unroll
            for (int number = 0; number < POINTS; ++number) sums[number] = shared.sums[number][slot][column];
#pragma unroll
            for (int number = 0; number < 4; ++number) transform_sums(sums + number, 4, rows + number, 4);
#pragma unroll
            for (int number = 0; number < 2; ++number) transform_sums(rows + 4 * number, 1, found + 2 * number, 1);
            const Place at = place_of(patch);
#pragma unroll
            for (int number = 0; number < 4; ++number) {
                const int row = at.row + number / 2, result_column = at.column + number % 2;
                if (row >= windows.place_rows || result_column >= windows.place_columns) continue;
                const int pixel = (at.sample * windows.place_rows + row) * windows.place_columns + result_column;
                from_float(result[pixel * columns + first_column + column], found[number]);
            }
        }
    }
}

}  // namespace winograd
#define CORRELATE_WINOGRAD(NAME, ELEMENT)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                     \
        const ELEMENT* image, const ELEMENT* weight, ELEMENT* result, CORRELATE_PARAMETERS) {                       \
        Windows windows{height,     width,      channels,      pixel_stride,   result_height,                       \
                        result_width, row_stride, -top,        row_dilation,   column_stride,                       \
                        -left,      column_dilation, kernel_rows, kernel_columns};                                  \
        Matrix matrix{weight_column_step, weight_channel_step, weight_row_step, weight_tap_step};                   \
        if (is_gradient) {                                                                                          \
            windows.first_row = top - 2, windows.first_column = left - 2;                                           \
            weight += 2 * (weight_row_step + weight_tap_step);                                                      \
            matrix.row_step = -weight_row_step, matrix.tap_column_step = -weight_tap_step;                          \
        }                                                                                                           \
        winograd::correlate(image, weight, result, windows, matrix, samples, columns);                              \
    }
