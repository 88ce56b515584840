// Convolution as one matrix product per operation, one group, channels innermost in memory (NHWC).
//
// Elements are float32, float16 or bfloat16; all sums are float32.
//
// The windows of the image (im2col) are stored in shared memory only, one tile at a time. A block of 256 threads
// computes one tile of the result. Each thread accumulates a small patch of the tile in registers, and loads the values
// of the next iteration while it multiplies. The code does not depend on the size of a warp or wavefront, uses no
// atomics and includes no headers, so that NVRTC, HIPRTC, nvcc, hipcc and, with an emulation of a few keywords, any
// C++17 compiler compile it.
//
// launchers.py places this file after elements.cuh and fused_windows.cuh. The macros at the end define the kernels.

// Terms of each sum that are in shared memory at once; four adjacent ones are loaded together.
constexpr int DEPTH = 16;
constexpr int FETCHES_PER_ROW = DEPTH / 4;

// Positions of a grid of places in the result image.
struct Places {
    int height, width;
    int row_step, first_row;
    int column_step, first_column;
};

// Four adjacent values of a matrix row that has `left` remaining values; zeros beyond its end.
template <bool BY_FOUR, class Element>
__device__ inline float4 row_values(const Element* values, int left) {
    if (left <= 0) return zeros();
    if (BY_FOUR) return load_four(values);
    float4 found = zeros();
    found.x = to_float(values[0]);
    if (left > 1) found.y = to_float(values[1]);
    if (left > 2) found.z = to_float(values[2]);
    if (left > 3) found.w = to_float(values[3]);
    return found;
}

template <bool BY_FOUR, class Element>
__device__ inline void store_values(Element* target, const float* values, int left) {
    if (BY_FOUR) {
        if (left > 0) store_four(target, values);
        return;
    }
    // Constant indices, so that the compiler keeps `values` in registers.
    if (left > 0) from_float(target[0], values[0]);
    if (left > 1) from_float(target[1], values[1]);
    if (left > 2) from_float(target[2], values[2]);
    if (left > 3) from_float(target[3], values[3]);
}

__device__ inline void put(float* target, const float4& values) { *reinterpret_cast<float4*>(target) = values; }

// A tile of the result: a grid of THREAD_ROWS x THREAD_COLUMNS threads, each with a patch of ROWS_EACH x 4.
template <int ROWS, int COLUMNS, int ROWS_EACH>
struct Tile {
    static constexpr int THREAD_COLUMNS = COLUMNS / 4;
    static constexpr int FETCHES = ROWS * DEPTH / 4 / THREADS;
    // Four extra columns keep the rows aligned and avoid bank conflicts.
    using Left = float[DEPTH][ROWS + 4];
    using Right = float[DEPTH][COLUMNS];
    static_assert(ROWS / ROWS_EACH * THREAD_COLUMNS == THREADS, "every thread has one patch");
    static_assert(FETCHES * 4 * THREADS == ROWS * DEPTH, "the threads fetch the left side in whole turns");
    static_assert(COLUMNS * DEPTH / 4 <= THREADS, "the threads fetch the right side in one turn");

    __device__ static int first_row() { return threadIdx.x / THREAD_COLUMNS * ROWS_EACH; }
    __device__ static int first_column() { return threadIdx.x % THREAD_COLUMNS * 4; }

    // Matrix row that this thread loads; a row >= DEPTH means that the thread loads nothing.
    __device__ static int right_row() { return threadIdx.x / THREAD_COLUMNS; }

    __device__ static void multiply(const Left& left, const Right& right, float (&totals)[ROWS_EACH][4]) {
#pragma unroll
        for (int depth = 0; depth < DEPTH; ++depth) {
            float rows[ROWS_EACH];
#pragma unroll
            for (int row = 0; row < ROWS_EACH; row += 4) {
                put_registers(&rows[row], &left[depth][first_row() + row]);
            }
            float columns[4];
            put_registers(columns, &right[depth][first_column()]);
#pragma unroll
            for (int row = 0; row < ROWS_EACH; ++row) {
#pragma unroll
                for (int column = 0; column < 4; ++column) totals[row][column] += rows[row] * columns[column];
            }
        }
    }

    __device__ static void put_registers(float* registers, const float* shared) {
        const float4 values = *reinterpret_cast<const float4*>(shared);
        registers[0] = values.x, registers[1] = values.y, registers[2] = values.z, registers[3] = values.w;
    }
};

// result[place, column] = sum over taps of image[window at place, tap] * matrix[tap, column]
template <class Element, int ROWS, int COLUMNS, int ROWS_EACH, bool BY_FOUR>
__device__ inline void correlate(
    const Element* image, const Element* matrix, Element* result, const Windows& windows, const Places& places,
    int rows, int columns) {
    using T = Tile<ROWS, COLUMNS, ROWS_EACH>;
    alignas(16) __shared__ typename T::Left left;
    alignas(16) __shared__ typename T::Right right;
    constexpr int TAPS = BY_FOUR ? 1 : 4;
    constexpr int FETCH_ROWS = THREADS / FETCHES_PER_ROW;
    const int depth = windows.tap_rows * windows.tap_columns * windows.channels;
    const int left_row = threadIdx.x / FETCHES_PER_ROW, left_depth = threadIdx.x % FETCHES_PER_ROW * 4;
    const int tile_row = blockIdx.x * ROWS, tile_column = blockIdx.y * COLUMNS;
    const int right_row = T::right_row(), right_column = tile_column + T::first_column();

    Corner corners[T::FETCHES];
    for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
        const int row = tile_row + left_row + fetch * FETCH_ROWS;
        corners[fetch] = corner_of(windows, place_at(windows, row), row < rows);
    }
    Tap taps[TAPS];
    for (int tap = 0; tap < TAPS; ++tap) taps[tap] = tap_at(windows, left_depth + tap);

    float4 next_left[T::FETCHES], next_right = zeros();
    auto fetch_next = [&](int first_depth) {
#pragma unroll
        for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            next_left[fetch] = window_values<BY_FOUR>(image, windows, corners[fetch], taps);
        }
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) advance(windows, taps[tap], DEPTH);
        const int row = first_depth + right_row;
        const bool is_needed = right_row < DEPTH && row < depth;
        next_right = row_values<BY_FOUR>(matrix + row * columns + right_column, is_needed ? columns - right_column : 0);
    };

    float totals[ROWS_EACH][4] = {};
    fetch_next(0);
    for (int first_depth = 0; first_depth < depth; first_depth += DEPTH) {
#pragma unroll
        for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            const int row = left_row + fetch * FETCH_ROWS;
            left[left_depth][row] = next_left[fetch].x;
            left[left_depth + 1][row] = next_left[fetch].y;
            left[left_depth + 2][row] = next_left[fetch].z;
            left[left_depth + 3][row] = next_left[fetch].w;
        }
        if (right_row < DEPTH) put(&right[right_row][T::first_column()], next_right);
        __syncthreads();
        if (first_depth + DEPTH < depth) fetch_next(first_depth + DEPTH);
        T::multiply(left, right, totals);
        __syncthreads();
    }

#pragma unroll
    for (int row = 0; row < ROWS_EACH; ++row) {
        const int index = tile_row + T::first_row() + row;
        if (index >= rows) continue;
        const Place place = place_at(windows, index);
        const int result_row = place.row * places.row_step + places.first_row;
        const int result_column = place.column * places.column_step + places.first_column;
        const int pixel = (place.sample * places.height + result_row) * places.width + result_column;
        store_values<BY_FOUR>(result + pixel * columns + right_column, totals[row], columns - right_column);
    }
}

// partials[split, tap, column] = sum over the places of a split of image[window at place, tap] * grads[place, column]
template <class Element, int ROWS, int COLUMNS, int ROWS_EACH, bool BY_FOUR>
__device__ inline void sum_products(
    const Element* image, const Element* grads, float* partials, const Windows& windows, int places, int places_per_split,
    int columns, int grad_stride) {
    using T = Tile<ROWS, COLUMNS, ROWS_EACH>;
    alignas(16) __shared__ typename T::Left left;
    alignas(16) __shared__ typename T::Right right;
    constexpr int TAPS = BY_FOUR ? 1 : 4;
    constexpr int FETCHES_PER_PLACE = ROWS / 4, FETCH_PLACES = THREADS / FETCHES_PER_PLACE;
    const int rows = windows.tap_rows * windows.tap_columns * windows.channels;
    const int left_place = threadIdx.x / FETCHES_PER_PLACE, left_row = threadIdx.x % FETCHES_PER_PLACE * 4;
    const int tile_row = blockIdx.x * ROWS, tile_column = blockIdx.y * COLUMNS;
    const int right_row = T::right_row(), right_column = tile_column + T::first_column();
    const int start = blockIdx.z * places_per_split;
    const int stop = places - start < places_per_split ? places : start + places_per_split;

    Tap taps[TAPS];
    for (int tap = 0; tap < TAPS; ++tap) taps[tap] = tap_at(windows, tile_row + left_row + tap);
    Place place = place_at(windows, start + left_place);

    float4 next_left[T::FETCHES], next_right = zeros();
    auto fetch_next = [&](int first_place) {
#pragma unroll
        for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            const bool is_needed = first_place + left_place + fetch * FETCH_PLACES < stop;
            next_left[fetch] = window_values<BY_FOUR>(image, windows, corner_of(windows, place, is_needed), taps);
            advance(windows, place, FETCH_PLACES);
        }
        const int index = first_place + right_row;
        const bool is_needed = right_row < DEPTH && index < stop;
        next_right =
            row_values<BY_FOUR>(grads + index * grad_stride + right_column, is_needed ? columns - right_column : 0);
    };

    float totals[ROWS_EACH][4] = {};
    fetch_next(start);
    for (int first_place = start; first_place < stop; first_place += DEPTH) {
#pragma unroll
        for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            put(&left[left_place + fetch * FETCH_PLACES][left_row], next_left[fetch]);
        }
        if (right_row < DEPTH) put(&right[right_row][T::first_column()], next_right);
        __syncthreads();
        if (first_place + DEPTH < stop) fetch_next(first_place + DEPTH);
        T::multiply(left, right, totals);
        __syncthreads();
    }

#pragma unroll
    for (int row = 0; row < ROWS_EACH; ++row) {
        const int index = tile_row + T::first_row() + row;
        if (index >= rows) continue;
        float* target = partials + (blockIdx.z * rows + index) * columns + right_column;
        store_values<BY_FOUR>(target, totals[row], columns - right_column);
    }
}

#define WINDOWS_PARAMETERS                                                                                      \
    int height, int width, int channels, int pixel_stride, int place_rows, int place_columns, int row_step,     \
        int first_row, int tap_row_step, int column_step, int first_column, int tap_column_step, int tap_rows, \
        int tap_columns
#define WINDOWS_MADE                                                                                            \
    Windows{height, width, channels, pixel_stride, place_rows, place_columns, row_step, first_row, tap_row_step, \
            column_step, first_column, tap_column_step, tap_rows, tap_columns}

#define CORRELATE(NAME, ELEMENT, ROWS, COLUMNS, ROWS_EACH, BY_FOUR)                                            \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                \
        const ELEMENT* image, const ELEMENT* matrix, ELEMENT* result, WINDOWS_PARAMETERS, int result_height,   \
        int result_width, int result_row_step, int result_first_row, int result_column_step,                   \
        int result_first_column, int rows, int columns) {                                                      \
        const Places places{result_height,    result_width,       result_row_step,                             \
                            result_first_row, result_column_step, result_first_column};                        \
        correlate<ELEMENT, ROWS, COLUMNS, ROWS_EACH, BY_FOUR>(                                                 \
            image, matrix, result, WINDOWS_MADE, places, rows, columns);                                       \
    }

#define SUM_PRODUCTS(NAME, ELEMENT, ROWS, COLUMNS, ROWS_EACH, BY_FOUR)                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                \
        const ELEMENT* image, const ELEMENT* grads, float* partials, WINDOWS_PARAMETERS, int places,           \
        int places_per_split, int columns, int grad_stride) {                                                  \
        sum_products<ELEMENT, ROWS, COLUMNS, ROWS_EACH, BY_FOUR>(                                              \
            image, grads, partials, WINDOWS_MADE, places, places_per_split, columns, grad_stride);             \
    }
