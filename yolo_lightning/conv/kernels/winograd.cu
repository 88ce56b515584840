// Convolution with 3 x 3 taps and stride 1 by Winograd's algorithm F(2 x 2, 3 x 3), which multiplies 16 instead of 36
// times for 4 results (Lavin and Gray: Fast Algorithms for Convolutional Neural Networks, 2016).
//
// A patch of 4 x 4 image pixels gives 2 x 2 results. Patches and weights of a few channels are transformed into shared
// memory. Each of the 16 points of a transformed patch has a matrix product of its own, which 16 threads compute. The
// sums are transformed through shared memory, and only the results are written to global memory.
//
// build.py places this file after fused.cu. The operands of `correlate` have fewer than 2^31 bytes, and 8 n channels.

namespace winograd {

constexpr int POINTS = 16, ROWS = 32, COLUMNS = 32;  // ROWS x COLUMNS: sums of a block, for each point
constexpr int DEPTH_EACH = THREADS / ROWS;           // terms of each sum in shared memory at once
constexpr int EACH = 8;                              // rows and columns of a thread
constexpr int THREADS_EACH_WAY = ROWS / EACH;
static_assert(POINTS * THREADS_EACH_WAY * THREADS_EACH_WAY == THREADS, "16 threads compute a point");

union Shared {
    float factors[2][POINTS][DEPTH_EACH][ROWS];  // of the rows, of the columns
    float sums[POINTS][ROWS / 2][COLUMNS];
};

// Position of a row or column among the factors. Without the permutation, threads that write different terms would use
// the same banks. Groups of four remain adjacent.
__device__ inline int position(int index, int depth) { return index ^ depth * 4; }

// Hides from the compiler that a value is constant in a loop. It would otherwise compute before the loop what depends
// on the value, and keep it in registers, of which the kernel has too few.
__device__ inline int not_constant(int value) {
#ifdef __AMDGCN__
    asm volatile("" : "+v"(value));
#endif
    return value;
}

// Returns a value that is equal in 32 adjacent threads. If these are a wave, the value needs scalar instructions only.
__device__ inline int uniform(int value) {
#if defined(__AMDGCN_WAVEFRONT_SIZE) && __AMDGCN_WAVEFRONT_SIZE == 32
    return __builtin_amdgcn_readfirstlane(value);
#elif defined(__AMDGCN__)  // later versions of clang have no such macro, and compute the condition
    return __builtin_amdgcn_wavefrontsize() == 32 ? __builtin_amdgcn_readfirstlane(value) : value;
#else
    return value;
#endif
}

template <class Element>
__device__ inline Element element_at(const Element* base, unsigned bytes) {
    return *reinterpret_cast<const Element*>(reinterpret_cast<const char*>(base) + bytes);
}

// Applies a transformation along one axis to the columns and then to the rows of FROM x FROM values. Its arguments are
// values and their distance, and a target and the distance of its TO values.
template <int FROM, int TO, class Line>
__device__ inline void transform(const float* values, float* target, Line line) {
    float rows[TO * FROM];
    UNROLL for (int number = 0; number < FROM; ++number) line(values + number, FROM, rows + number, FROM);
    UNROLL for (int number = 0; number < TO; ++number) line(rows + FROM * number, 1, target + TO * number, 1);
}

__device__ inline void patch_line(const float* values, int step, float* target, int to) {
    target[0] = values[0] - values[2 * step], target[to] = values[step] + values[2 * step];
    target[2 * to] = values[2 * step] - values[step], target[3 * to] = values[step] - values[3 * step];
}

// SIZE x SIZE values that slide over a patch: the weights (3), or for their gradient the results (2).
template <int SIZE>
__device__ inline void window_line(const float* values, int step, float* target, int to) {
    const float last = values[(SIZE - 1) * step], middle = 0.5f * (SIZE == 3 ? values[step] : last);
    const float outer = 0.5f * (SIZE == 3 ? values[0] + last : values[0]);
    target[0] = values[0], target[to] = outer + middle, target[2 * to] = outer - middle, target[3 * to] = last;
}

// SIZE x SIZE sums of a patch: results (2) or gradients of weights (3).
template <int SIZE>
__device__ inline void sums_line(const float* values, int step, float* target, int to) {
    const float sum = values[step] + values[2 * step], difference = values[step] - values[2 * step];
    target[0] = values[0] + sum, target[to] = SIZE == 2 ? difference - values[3 * step] : difference;
    if (SIZE == 3) target[(SIZE - 1) * to] = sum - values[3 * step];
}

// The 16 products of a block. A thread has the sums of 8 rows and 8 columns of one point.
struct Products {
    Shared& shared;
    int point, group, own_columns;
    float totals[EACH][EACH];

    __device__ Products(Shared& shared)
        : shared(shared), point(threadIdx.x / (THREADS_EACH_WAY * THREADS_EACH_WAY)),
          group(threadIdx.x / THREADS_EACH_WAY % THREADS_EACH_WAY),
          own_columns(threadIdx.x % THREADS_EACH_WAY * EACH), totals() {}

    // Writes the points of one row (`side` 0) or column (1) for one term of the sums.
    __device__ void put(int side, int index, int depth, const float (&values)[POINTS]) {
        UNROLL for (int number = 0; number < POINTS; ++number) {
            shared.factors[side][number][depth][position(index, depth)] = values[number];
        }
    }

    __device__ void multiply() {
        const int left = not_constant(point * DEPTH_EACH * ROWS + group * EACH);
        const int right = not_constant((POINTS + point) * DEPTH_EACH * COLUMNS + own_columns);
        UNROLL for (int depth = 0; depth < DEPTH_EACH; ++depth) {
            float rows[EACH], columns[EACH];
            UNROLL for (int number = 0; number < EACH; number += 4) {
                const float* const factors = &shared.factors[0][0][depth][0];
                put_registers(&rows[number], factors + position(left ^ number, depth));
                put_registers(&columns[number], factors + position(right ^ number, depth));
            }
            UNROLL for (int row = 0; row < EACH; ++row) {
                UNROLL for (int column = 0; column < EACH; ++column) totals[row][column] += rows[row] * columns[column];
            }
        }
    }

    // Writes the sums of half of the rows.
    __device__ void put_sums(int half) {
        UNROLL for (int row = 0; row < EACH / 2; ++row) {
            float* target = &shared.sums[point][group * (EACH / 2) + row][own_columns];
            const float(&values)[EACH] = totals[half * (EACH / 2) + row];
            UNROLL for (int number = 0; number < EACH; ++number) target[number] = values[number];
        }
    }

    // Row of a slot of `shared.sums`.
    __device__ static int row_of(int half, int slot) {
        return slot / (EACH / 2) * EACH + half * (EACH / 2) + slot % (EACH / 2);
    }

    template <int SIZE>
    __device__ void take_sums(int slot, float (&target)[SIZE * SIZE]) const {
        const int column = threadIdx.x % COLUMNS;
        float values[POINTS];
        UNROLL for (int number = 0; number < POINTS; ++number) values[number] = shared.sums[number][slot][column];
        transform<4, SIZE>(values, target, sums_line<SIZE>);
    }
};

// Windows of 4 x 4 pixels whose places are patches of 2 x 2 results.
__device__ inline Windows patches_of(
    int height, int width, int channels, int pixel_stride, int result_height, int result_width, int first_row,
    int first_column) {
    return {height, width, channels, pixel_stride, (result_height + 1) / 2, (result_width + 1) / 2,
            2,      first_row, 1,    2,            first_column,            1,                      4, 4};
}

template <class Element>
__device__ inline void put_patch(
    Products& products, int side, int index, int depth, const Element (&elements)[POINTS], const bool (&has_row)[4],
    const bool (&has_column)[4]) {
    float values[POINTS], points[POINTS];
    UNROLL for (int number = 0; number < POINTS; ++number) {
        values[number] = has_row[number / 4] && has_column[number % 4] ? to_float(elements[number]) : 0.0f;
    }
    transform<4, 4>(values, points, patch_line);
    products.put(side, index, depth, points);
}

// The places of `windows` are patches. For an input gradient, `weight` is the last tap, and `matrix.row_step` and
// `matrix.tap_column_step` are negative.
template <class Element>
__device__ inline void correlate(
    const Element* image, const Element* weight, Element* result, const Windows& windows, const Matrix& matrix,
    int samples, int result_height, int result_width, int columns) {
    alignas(16) __shared__ Shared shared;
    Products products(shared);
    const int patches = samples * windows.place_rows * windows.place_columns;
    const int first_patch = blockIdx.x * ROWS, first_column = blockIdx.y * COLUMNS;

    // This thread loads one channel of a patch and of a column. Values beyond the last ones are not stored.
    const int channel = threadIdx.x % DEPTH_EACH, own = threadIdx.x / DEPTH_EACH;
    const Place place = place_at(windows, first_patch + own < patches ? first_patch + own : patches - 1);
    bool has_row[4], has_column[4];
    unsigned row_offset[4], column_offset[4];
    UNROLL for (int number = 0; number < 4; ++number) {
        const int row = place.row * 2 + windows.first_row + number;
        const int column = place.column * 2 + windows.first_column + number;
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
    UNROLL for (int number = 0; number < 9; ++number) {
        taps[number] = weight + number / 3 * matrix.row_step + number % 3 * matrix.tap_column_step;
    }
    // Loads the next channels. The pointers advance: the compiler would keep sums of constant pointers in registers.
    const auto fetch = [&]() {
        UNROLL for (int row = 0; row < 4; ++row) {
            const unsigned offset = not_constant(row_offset[row]);
            UNROLL for (int column = 0; column < 4; ++column) {
                next_patch[4 * row + column] = element_at(image, offset + column_offset[column]);
            }
        }
        image += DEPTH_EACH;
        const unsigned offset = not_constant(weight_offset);
        UNROLL for (int number = 0; number < 9; ++number) {
            next_weights[number] = element_at(taps[number], offset);
            taps[number] += DEPTH_EACH * matrix.channel_step;
        }
    };
    const auto put_factors = [&]() {
        put_patch(products, 0, own, channel, next_patch, has_row, has_column);
        float values[POINTS], window[9];
        UNROLL for (int number = 0; number < 9; ++number) window[number] = to_float(next_weights[number]);
        transform<3, 4>(window, values, window_line<3>);
        products.put(1, own, channel, values);
    };

    fetch();
    for (int first_channel = 0; first_channel < windows.channels; first_channel += DEPTH_EACH) {
        put_factors();
        sync_shared();
        if (first_channel + DEPTH_EACH < windows.channels) fetch();
        products.multiply();
        sync_shared();
    }

    const int column = first_column + threadIdx.x % COLUMNS;
    UNROLL for (int half = 0; half < 2; ++half) {
        products.put_sums(half);
        sync_shared();
        for (int slot = uniform(threadIdx.x / COLUMNS); slot < ROWS / 2; slot += THREADS / COLUMNS) {
            const int patch = first_patch + products.row_of(half, slot);
            if (patch >= patches || column >= columns) continue;
            float found[4];
            products.take_sums<2>(slot, found);
            const Place at = place_at(windows, patch);
            UNROLL for (int number = 0; number < 4; ++number) {
                const int row = at.row * 2 + number / 2, result_column = at.column * 2 + number % 2;
                if (row >= result_height || result_column >= result_width) continue;
                const int pixel = (at.sample * result_height + row) * result_width + result_column;
                from_float(result[pixel * columns + column], found[number]);
            }
        }
        sync_shared();
    }
}

// The rows of the products are outputs, the columns channels, and the terms patches. result[output, tap, channel].
template <class Element>
__device__ inline void sum_products(
    const Element* image, const Element* grads, Element* result, float4* partials, unsigned* counters,
    const Windows& windows, int grad_height, int grad_width, int patches, int patches_per_split, int splits_per_group,
    int outputs, int grad_stride) {
    alignas(16) __shared__ Shared shared;
    Products products(shared);
    // This thread loads one channel and one output of a patch. Sums beyond the last ones are not stored.
    const int own = threadIdx.x % ROWS, depth = uniform(threadIdx.x / ROWS);
    const int first_output = blockIdx.y * ROWS, channel = blockIdx.x * COLUMNS + own;
    const int channel_bytes = (channel < windows.channels ? channel : 0) * int(sizeof(Element));
    const int output_bytes = (first_output + own < outputs ? first_output + own : 0) * int(sizeof(Element));
    const int start = blockIdx.z * patches_per_split;
    const int stop = patches - start < patches_per_split ? patches : start + patches_per_split;
    const int image_row = windows.width * windows.pixel_stride;

    const Place first_place = place_at(windows, start + depth);
    Place place{uniform(first_place.sample), uniform(first_place.row), uniform(first_place.column)};
    Element next_patch[POINTS], next_grads[4];
    bool has_row[4], has_column[4], has_grad[4];
    const auto fetch = [&](int first_patch) {
        const bool exists = first_patch + depth < stop;
        const Corner corner = corner_of(windows, place, exists);
        int column_offset[4];
        UNROLL for (int number = 0; number < 4; ++number) {
            const int column = corner.column + number;
            has_column[number] = unsigned(column) < unsigned(windows.width);
            column_offset[number] = has_column[number] ? column * windows.pixel_stride : 0;
        }
        const int first_row = corner.offset - corner.column * windows.pixel_stride;
        UNROLL for (int row = 0; row < 4; ++row) {
            has_row[row] = unsigned(corner.row + row) < unsigned(windows.height);
            const int offset = has_row[row] ? first_row + row * image_row : 0;
            UNROLL for (int column = 0; column < 4; ++column) {
                const Element* pixel = image + (offset + column_offset[column]);
                next_patch[4 * row + column] = element_at(pixel, not_constant(channel_bytes));
            }
        }
        const int grad_row = place.row * 2, grad_column = place.column * 2;
        const int first = ((place.sample * grad_height + grad_row) * grad_width + grad_column) * grad_stride;
        UNROLL for (int number = 0; number < 4; ++number) {
            const int row = number / 2, column = number % 2;
            has_grad[number] = exists && grad_row + row < grad_height && grad_column + column < grad_width;
            const int offset = has_grad[number] ? first + (row * grad_width + column) * grad_stride : 0;
            next_grads[number] = element_at(grads + offset, not_constant(output_bytes));
        }
        advance(windows, place, DEPTH_EACH);
    };
    const auto put_factors = [&]() {
        float values[POINTS], window[4];
        UNROLL for (int number = 0; number < 4; ++number) {
            window[number] = has_grad[number] ? to_float(next_grads[number]) : 0.0f;
        }
        transform<2, 4>(window, values, window_line<2>);
        products.put(0, own, depth, values);
        put_patch(products, 1, own, depth, next_patch, has_row, has_column);
    };

    fetch(start);
    for (int first_patch = start; first_patch < stop; first_patch += DEPTH_EACH) {
        put_factors();
        sync_shared();
        if (first_patch + DEPTH_EACH < stop) fetch(first_patch + DEPTH_EACH);
        products.multiply();
        sync_shared();
    }

    float sums[9][4];
    UNROLL for (int half = 0; half < 2; ++half) {
        products.put_sums(half);
        sync_shared();
        UNROLL for (int number = 2 * half; number < 2 * half + 2; ++number) {
            float found[9];
            products.take_sums<3>(depth + number % 2 * DEPTH_EACH, found);
            UNROLL for (int tap = 0; tap < 9; ++tap) sums[tap][number] = found[tap];
        }
        sync_shared();
    }
    const int tile_columns = (windows.channels + COLUMNS - 1) / COLUMNS, tile_rows = (outputs + ROWS - 1) / ROWS;
    const Splits<9> splits{
        partials, counters, (patches + patches_per_split - 1) / patches_per_split, splits_per_group,
        int(blockIdx.y * tile_columns + blockIdx.x), tile_rows * tile_columns};
    if (!splits.sum(sums, channel < windows.channels ? 9 : 0, reinterpret_cast<unsigned&>(shared))) return;
    UNROLL for (int number = 0; number < 4; ++number) {
        const int output = first_output + products.row_of(number / 2, depth + number % 2 * DEPTH_EACH);
        if (output >= outputs || channel >= windows.channels) continue;
        UNROLL for (int tap = 0; tap < 9; ++tap) {
            from_float(result[(output * 9 + tap) * windows.channels + channel], sums[tap][number]);
        }
    }
}

}  // namespace winograd

#define CORRELATE_WINOGRAD(NAME, ELEMENT)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                     \
        const ELEMENT* image, const ELEMENT* weight, ELEMENT* result, CORRELATE_PARAMETERS) {                       \
        const Windows windows = winograd::patches_of(                                                               \
            height, width, channels, pixel_stride, result_height, result_width, is_gradient ? top - 2 : -top,       \
            is_gradient ? left - 2 : -left);                                                                        \
        Matrix matrix{weight_column_step, weight_channel_step, weight_row_step, weight_tap_step};                   \
        if (is_gradient) {                                                                                          \
            weight += 2 * (weight_row_step + weight_tap_step);                                                      \
            matrix.row_step = -weight_row_step, matrix.tap_column_step = -weight_tap_step;                          \
        }                                                                                                           \
        winograd::correlate(image, weight, result, windows, matrix, samples, result_height, result_width, columns); \
    }

#define SUM_PRODUCTS_WINOGRAD(NAME, ELEMENT)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                     \
        const ELEMENT* image, const ELEMENT* grads, ELEMENT* result, float4* partials, unsigned* counters,          \
        WINDOWS_PARAMETERS, int patches, int patches_per_split, int splits_per_group, int outputs,                  \
        int grad_stride) {                                                                                          \
        const Windows windows = winograd::patches_of(                                                               \
            height, width, channels, pixel_stride, place_rows, place_columns, first_row, first_column);             \
        winograd::sum_products(                                                                                     \
            image, grads, result, partials, counters, windows, place_rows, place_columns, patches,                  \
            patches_per_split, splits_per_group, outputs, grad_stride);                                             \
    }
