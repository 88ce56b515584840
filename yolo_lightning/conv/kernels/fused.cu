// Convolution as one matrix product per operation, one group, channels innermost in memory (NHWC).
//
// Elements are float32, float16 or bfloat16; all sums are float32.
//
// The windows of the image (im2col) are stored in shared memory only, one tile at a time. A block of 256 threads
// computes one tile of the result. Each thread accumulates a small patch of the tile in registers, and loads the values
// of the next iteration while it multiplies. The code does not depend on the size of a warp or wavefront and includes no
// headers, so that NVRTC, HIPRTC, nvcc, hipcc and, with an emulation of a few keywords, any C++17 compiler compile it.
// The only atomic operation counts blocks; sums are added in a fixed order.
//
// build.py places this file after elements.cuh and fused_windows.cuh. The macros at the end define the kernels.

// Terms of each sum that are in shared memory at once; four adjacent ones are loaded together.
constexpr int DEPTH = 16;
constexpr int FETCHES_PER_ROW = DEPTH / 4;

// Positions of a grid of places in the result image.
struct Places {
    int height, width;
    int row_step, first_row;
    int column_step, first_column;
};

// Sets windows, places and matrix to those of the remainders of blockIdx.z. Returns the offset of their first tap.
__device__ inline int use_remainder(
    Windows& windows, Places& places, Matrix& matrix, const Axis& vertical, const Axis& horizontal) {
    const int first_row = blockIdx.z / horizontal.stride, first_column = blockIdx.z % horizontal.stride;
    const Remainder rows(vertical, first_row, places.height), columns(horizontal, first_column, places.width);
    const bool has_taps = rows.taps > 0 && columns.taps > 0;
    windows.place_rows = rows.places, windows.place_columns = columns.places;
    windows.row_step = 1, windows.first_row = rows.first, windows.tap_row_step = rows.step;
    windows.column_step = 1, windows.first_column = columns.first, windows.tap_column_step = columns.step;
    // Positions that no tap reads have windows without values, and the gradient zero.
    windows.tap_rows = has_taps ? rows.taps : 0, windows.tap_columns = has_taps ? columns.taps : 1;
    places.row_step = vertical.stride, places.first_row = first_row;
    places.column_step = horizontal.stride, places.first_column = first_column;
    const int offset = rows.first_tap * matrix.row_step + columns.first_tap * matrix.tap_column_step;
    matrix.row_step *= rows.tap_step, matrix.tap_column_step *= columns.tap_step;
    return offset;
}

// Four adjacent values of a matrix row that has `left` remaining values; zeros beyond its end.
template <bool BY_FOUR, class Element>
__device__ inline Fetched<BY_FOUR, Element> row_values(const Element* values, int left) {
    Fetched<BY_FOUR, Element> found = {};
    if constexpr (BY_FOUR) {
        if (left > 0) found = fetch_four(values);
    } else {
        UNROLL for (int number = 0; number < 4; ++number) {
            if (left > number) found.values[number] = values[number];
        }
    }
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

__device__ inline void put_column(float* target, int row_length, const float4& values) {
    target[0] = values.x, target[row_length] = values.y;
    target[2 * row_length] = values.z, target[3 * row_length] = values.w;
}

__device__ inline void put_registers(float* registers, const float* shared) {
    const float4 values = *reinterpret_cast<const float4*>(shared);
    registers[0] = values.x, registers[1] = values.y, registers[2] = values.z, registers[3] = values.w;
}

__device__ inline void add_four(float (&totals)[4], const float4& values) {
    totals[0] += values.x, totals[1] += values.y, totals[2] += values.z, totals[3] += values.w;
}

// A tile of the result: a grid of threads, each with a patch of ROWS_EACH x 4. There are GROUPS such grids, and each
// adds other terms. TERMS terms of each sum are in shared memory at once.
template <int ROWS, int COLUMNS, int ROWS_EACH, int GROUPS = 1, int TERMS = DEPTH>
struct Tile {
    static constexpr int GROUP_THREADS = THREADS / GROUPS;
    static constexpr int THREAD_COLUMNS = COLUMNS / 4;
    static constexpr int FETCHES = ROWS * TERMS / 4 / THREADS;
    // Four extra columns keep the rows aligned and avoid bank conflicts.
    using Left = float[TERMS][ROWS + 4];
    using Right = float[TERMS][COLUMNS + 4];
    static_assert(ROWS / ROWS_EACH * THREAD_COLUMNS == GROUP_THREADS, "every thread has one patch");
    static_assert(FETCHES * 4 * THREADS == ROWS * TERMS, "the threads fetch the left side in whole turns");
    static_assert(COLUMNS * TERMS / 4 <= THREADS, "the threads fetch the right side in one turn");

    __device__ static int group() { return threadIdx.x / GROUP_THREADS; }
    __device__ static int first_row() { return threadIdx.x % GROUP_THREADS / THREAD_COLUMNS * ROWS_EACH; }
    __device__ static int first_column() { return threadIdx.x % THREAD_COLUMNS * 4; }

    // Matrix row that this thread loads; a row >= TERMS means that the thread loads nothing.
    __device__ static int right_row() { return threadIdx.x / THREAD_COLUMNS; }

    __device__ static void multiply(const Left& left, const Right& right, float (&totals)[ROWS_EACH][4]) {
        UNROLL for (int turn = 0; turn < TERMS / GROUPS; ++turn) {
            const int term = turn * GROUPS + group();
            float rows[ROWS_EACH];
            UNROLL for (int row = 0; row < ROWS_EACH; row += 4) {
                put_registers(&rows[row], &left[term][first_row() + row]);
            }
            float columns[4];
            put_registers(columns, &right[term][first_column()]);
            UNROLL for (int row = 0; row < ROWS_EACH; ++row) {
                UNROLL for (int column = 0; column < 4; ++column) totals[row][column] += rows[row] * columns[column];
            }
        }
    }

    // Adds the patches of all groups to those of group 0, in shared memory for half of the patches.
    __device__ static void add_groups(float4* shared, float (&totals)[ROWS_EACH][4]) {
        for (int half = GROUPS / 2; half > 0; half /= 2) {
            float4* patch = shared + threadIdx.x % (half * GROUP_THREADS);
            if (group() >= half && group() < 2 * half) {
                UNROLL for (int row = 0; row < ROWS_EACH; ++row) put(&patch[row * THREADS / 2].x, to_four(totals[row]));
            }
            sync_shared();
            if (group() < half) {
                UNROLL for (int row = 0; row < ROWS_EACH; ++row) add_four(totals[row], patch[row * THREADS / 2]);
            }
            sync_shared();
        }
    }
};

// result[place, column] = sum over taps of image[window at place, tap] * weight[column, tap]
template <class Element, int ROWS, int COLUMNS, int ROWS_EACH, bool BY_FOUR>
__device__ inline void correlate(
    const Element* image, const Element* weight, Element* result, const Windows& windows, const Places& places,
    const Matrix& matrix, int rows, int columns) {
    using T = Tile<ROWS, COLUMNS, ROWS_EACH>;
    alignas(16) __shared__ typename T::Left left;
    alignas(16) __shared__ typename T::Right right;
    constexpr int TAPS = BY_FOUR ? 1 : 4;
    constexpr int FETCH_ROWS = THREADS / FETCHES_PER_ROW;
    const int depth = windows.tap_rows * windows.tap_columns * windows.channels;
    const int left_row = threadIdx.x / FETCHES_PER_ROW, left_depth = threadIdx.x % FETCHES_PER_ROW * 4;
    const int tile_row = blockIdx.x * ROWS, tile_column = blockIdx.y * COLUMNS;
    if (tile_row >= rows) return;

    Corner corners[T::FETCHES];
    for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
        const int row = tile_row + left_row + fetch * FETCH_ROWS;
        corners[fetch] = corner_of(windows, place_at(windows, row), row < rows);
    }
    Tap taps[TAPS];
    int offsets[TAPS];
    for (int tap = 0; tap < TAPS; ++tap) {
        taps[tap] = tap_at(windows, left_depth + tap);
        offsets[tap] = matrix.offset_of(taps[tap]);
    }
    // Threads beyond the last column load the first one, for columns of the tile that are not stored.
    const int own_column = tile_column + left_row < columns ? tile_column + left_row : 0;
    const Element* column = weight + own_column * matrix.column_step;

    Fetched<BY_FOUR, Element> next_left[T::FETCHES];
    Fetched<false, Element> next_right = {};
    auto fetch_next = [&]() {
        UNROLL for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            next_left[fetch] = window_values<BY_FOUR>(image, windows, corners[fetch], taps);
        }
        if (left_row < COLUMNS) next_right = column_values<BY_FOUR>(column, matrix, taps, offsets);
    };

    float totals[ROWS_EACH][4] = {};
    fetch_next();
    for (int first_depth = 0; first_depth < depth; first_depth += DEPTH) {
        UNROLL for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            const int row = left_row + fetch * FETCH_ROWS;
            put_column(&left[left_depth][row], ROWS + 4, to_floats(next_left[fetch]));
        }
        if (left_row < COLUMNS) put_column(&right[left_depth][left_row], COLUMNS + 4, to_floats(next_right));
        sync_shared();
        if (first_depth + DEPTH < depth) {
            // Before the loads: the compiler waits for all loads before a loop.
            UNROLL for (int tap = 0; tap < TAPS; ++tap) advance(windows, matrix, taps[tap], offsets[tap], DEPTH);
            fetch_next();
        }
        T::multiply(left, right, totals);
        sync_shared();
    }

    const int first_column = tile_column + T::first_column();
    UNROLL for (int row = 0; row < ROWS_EACH; ++row) {
        const int index = tile_row + T::first_row() + row;
        if (index >= rows) continue;
        const Place place = place_at(windows, index);
        const int result_row = place.row * places.row_step + places.first_row;
        const int result_column = place.column * places.column_step + places.first_column;
        const int pixel = (place.sample * places.height + result_row) * places.width + result_column;
        store_values<BY_FOUR>(result + pixel * columns + first_column, totals[row], columns - first_column);
    }
}

// Sums over splits: the last block of each group of splits adds the patches of its group, and the last of these blocks
// adds the sums of the groups. Both read the splits in a fixed order. `partials` has one patch per split, tile and each
// of the first PATCHES threads.
template <int ROWS_EACH, int PATCHES = THREADS>
struct Splits {
    float4* partials;
    unsigned* counters;  // for each tile one per group, and one more
    int splits, per_group, tile, tiles;

    __device__ float4* patch_of(int split) const {
        return partials + (split * tiles + tile) * ROWS_EACH * PATCHES + threadIdx.x;
    }

    // Writes the used rows of a patch: `rows` of them, none if the number is negative.
    __device__ void write(int split, const float (&totals)[ROWS_EACH][4], int rows) const {
        float4* patch = patch_of(split);
        UNROLL for (int row = 0; row < ROWS_EACH; ++row) {
            if (row < rows) put(&patch[row * PATCHES].x, to_four(totals[row]));
        }
    }

    // Sets `totals` to the sum over `number` splits from `first` on.
    __device__ void add(int first, int step, int number, float (&totals)[ROWS_EACH][4], int rows) const {
        UNROLL for (int row = 0; row < ROWS_EACH; ++row) {
            totals[row][0] = totals[row][1] = totals[row][2] = totals[row][3] = 0.0f;
        }
        for (int split = 0; split < number; ++split) {
            const float4* patch = patch_of(first + split * step);
            UNROLL for (int row = 0; row < ROWS_EACH; ++row) {
                if (row < rows) add_four(totals[row], patch[row * PATCHES]);
            }
        }
    }

    // Returns whether this block has the sum over all splits, which is then in `totals`. See `is_last_block`.
    __device__ bool sum(float (&totals)[ROWS_EACH][4], int rows, unsigned& arrived) const {
        const int split = blockIdx.z, group = split / per_group, first = group * per_group;
        const int groups = (splits + per_group - 1) / per_group;
        const int in_group = splits - first < per_group ? splits - first : per_group;
        if (splits == 1) return true;
        unsigned* counts = counters + tile * (groups + 1);
        write(split, totals, rows);
        if (!is_last_block(counts + group, in_group, arrived)) return false;
        add(first, 1, in_group, totals, rows);
        if (groups == 1) return true;
        write(first, totals, rows);
        if (!is_last_block(counts + groups, groups, arrived)) return false;
        add(0, per_group, groups, totals, rows);
        return true;
    }
};

// result[column, tap] = sum over the places of image[window at place, tap] * grads[place, column]
template <class Element, int ROWS, int COLUMNS, int ROWS_EACH, int GROUPS, int TERMS, bool BY_FOUR>
__device__ inline void sum_products(
    const Element* image, const Element* grads, Element* result, float4* partials, unsigned* counters,
    const Windows& windows, int places, int places_per_split, int splits_per_group, int columns, int grad_stride) {
    using T = Tile<ROWS, COLUMNS, ROWS_EACH, GROUPS, TERMS>;
    union Shared {
        struct {
            typename T::Left left;
            typename T::Right right;
        } sides;
        float4 patches[GROUPS == 1 ? 1 : ROWS_EACH * THREADS / 2];
    };
    alignas(16) __shared__ Shared shared;
    auto& left = shared.sides.left;
    auto& right = shared.sides.right;
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

    Fetched<BY_FOUR, Element> next_left[T::FETCHES], next_right;
    auto fetch_next = [&](int first_place) {
        UNROLL for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            const bool is_needed = first_place + left_place + fetch * FETCH_PLACES < stop;
            next_left[fetch] = window_values<BY_FOUR>(image, windows, corner_of(windows, place, is_needed), taps);
            advance(windows, place, FETCH_PLACES);
        }
        const int index = first_place + right_row;
        const bool is_needed = right_row < TERMS && index < stop;
        next_right =
            row_values<BY_FOUR>(grads + index * grad_stride + right_column, is_needed ? columns - right_column : 0);
    };

    float totals[ROWS_EACH][4] = {};
    fetch_next(start);
    for (int first_place = start; first_place < stop; first_place += TERMS) {
        UNROLL for (int fetch = 0; fetch < T::FETCHES; ++fetch) {
            put(&left[left_place + fetch * FETCH_PLACES][left_row], to_floats(next_left[fetch]));
        }
        if (right_row < TERMS) put(&right[right_row][T::first_column()], to_floats(next_right));
        sync_shared();
        if (first_place + TERMS < stop) fetch_next(first_place + TERMS);
        T::multiply(left, right, totals);
        sync_shared();
    }

    const int tile_rows = (rows + ROWS - 1) / ROWS, tile_columns = (columns + COLUMNS - 1) / COLUMNS;
    T::add_groups(shared.patches, totals);
    const Splits<ROWS_EACH, T::GROUP_THREADS> splits{
        partials,         counters, (places + places_per_split - 1) / places_per_split, splits_per_group,
        int(blockIdx.y * tile_rows + blockIdx.x), tile_rows * tile_columns};
    const int first_row = tile_row + T::first_row(), rows_left = rows - first_row;
    const bool is_used = T::group() == 0 && right_column < columns;
    if (!splits.sum(totals, is_used ? rows_left : 0, reinterpret_cast<unsigned&>(shared)) || !is_used) return;
    UNROLL for (int column = 0; column < 4; ++column) {
        if (right_column + column >= columns) continue;
        Element* target = result + (right_column + column) * rows + first_row;
        UNROLL for (int row = 0; row < ROWS_EACH; row += 4) {
            const float values[4] = {
                totals[row][column], totals[row + 1][column], totals[row + 2][column], totals[row + 3][column]};
            store_values<BY_FOUR>(target + row, values, rows_left - row);
        }
    }
}

#define WINDOWS_PARAMETERS                                                                                      \
    int height, int width, int channels, int pixel_stride, int place_rows, int place_columns, int row_step,     \
        int first_row, int tap_row_step, int column_step, int first_column, int tap_column_step, int tap_rows, \
        int tap_columns
#define WINDOWS_MADE                                                                                            \
    Windows{height, width, channels, pixel_stride, place_rows, place_columns, row_step, first_row, tap_row_step, \
            column_step, first_column, tap_column_step, tap_rows, tap_columns}

#define CORRELATE_PARAMETERS                                                                                      \
    int samples, int height, int width, int channels, int pixel_stride, int result_height, int result_width,      \
        int columns, int row_stride, int top, int row_dilation, int kernel_rows, int column_stride, int left,     \
        int column_dilation, int kernel_columns, int weight_column_step, int weight_channel_step,                 \
        int weight_row_step, int weight_tap_step, int is_gradient

// One launch computes a convolution (`is_gradient` 0) or the gradient of its input (1). For the gradient, `image` is the
// output gradient, and each blockIdx.z computes the input positions of one pair of remainders modulo the strides.
#define CORRELATE(NAME, ELEMENT, ROWS, COLUMNS, ROWS_EACH, BY_FOUR)                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                     \
        const ELEMENT* image, const ELEMENT* weight, ELEMENT* result, CORRELATE_PARAMETERS) {                       \
        const Axis vertical{row_stride, top, row_dilation, kernel_rows};                                            \
        const Axis horizontal{column_stride, left, column_dilation, kernel_columns};                                \
        Windows windows{height,     width,      channels,      pixel_stride,   result_height,                       \
                        result_width, row_stride, -top,        row_dilation,   column_stride,                       \
                        -left,      column_dilation, kernel_rows, kernel_columns};                                  \
        Places places{result_height, result_width, 1, 0, 1, 0};                                                     \
        Matrix matrix{weight_column_step, weight_channel_step, weight_row_step, weight_tap_step};                   \
        if (is_gradient) weight += use_remainder(windows, places, matrix, vertical, horizontal);                    \
        correlate<ELEMENT, ROWS, COLUMNS, ROWS_EACH, BY_FOUR>(                                                      \
            image, weight, result, windows, places, matrix,                                                         \
            samples * windows.place_rows * windows.place_columns, columns);                                         \
    }

#define SUM_PRODUCTS(NAME, ELEMENT, ROWS, COLUMNS, ROWS_EACH, GROUPS, TERMS, BY_FOUR)                          \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                \
        const ELEMENT* image, const ELEMENT* grads, ELEMENT* result, float4* partials, unsigned* counters,     \
        WINDOWS_PARAMETERS, int places, int places_per_split, int splits_per_group, int columns,               \
        int grad_stride) {                                                                                     \
        sum_products<ELEMENT, ROWS, COLUMNS, ROWS_EACH, GROUPS, TERMS, BY_FOUR>(                               \
            image, grads, result, partials, counters, WINDOWS_MADE, places, places_per_split,                  \
            splits_per_group, columns, grad_stride);                                                           \
    }
