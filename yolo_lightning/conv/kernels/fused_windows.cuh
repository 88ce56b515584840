// Addresses of the image values in the windows of a convolution; advancing to the next value needs no division.
//
// All offsets are 32-bit: tensors have fewer than 2^31 elements. See fused.cu for the compilation.

// Image pixels that the taps of a window read. There is one window per place of a grid.
struct Windows {
    int height, width, channels, pixel_stride;  // of the image; pixel_stride in elements
    int place_rows, place_columns;              // of the grid, for each sample
    int row_step, first_row, tap_row_step;      // image row = place row * row_step + first_row + tap row * tap_row_step
    int column_step, first_column, tap_column_step;
    int tap_rows, tap_columns;
};

// Marks a row outside the image; the sum of two such values does not overflow.
constexpr int NOWHERE = -(1 << 30);

// First pixel of a window; row NOWHERE if there is no window.
struct Corner {
    int row, column, offset;
};

// One value of a window: its tap and channel, and its offset from the corner. Row shift NOWHERE if beyond the last tap.
struct Tap {
    int row, column, channel;
    int row_shift, column_shift, offset;
};

struct Place {
    int sample, row, column;
};

__device__ inline Place place_at(const Windows& windows, int index) {
    const int row = index / windows.place_columns;
    return {row / windows.place_rows, row % windows.place_rows, index % windows.place_columns};
}

__device__ inline void advance(const Windows& windows, Place& place, int places) {
    place.column += places;
    while (place.column >= windows.place_columns) {
        place.column -= windows.place_columns;
        if (++place.row == windows.place_rows) {
            place.row = 0;
            ++place.sample;
        }
    }
}

__device__ inline Corner corner_of(const Windows& windows, const Place& place, bool exists) {
    if (!exists) return {NOWHERE, 0, 0};
    const int row = place.row * windows.row_step + windows.first_row;
    const int column = place.column * windows.column_step + windows.first_column;
    return {row, column, ((place.sample * windows.height + row) * windows.width + column) * windows.pixel_stride};
}

__device__ inline Tap tap_of(const Windows& windows, int row, int column, int channel) {
    if (row >= windows.tap_rows) return {row, column, channel, NOWHERE, 0, 0};
    const int row_shift = row * windows.tap_row_step, column_shift = column * windows.tap_column_step;
    const int offset = (row_shift * windows.width + column_shift) * windows.pixel_stride + channel;
    return {row, column, channel, row_shift, column_shift, offset};
}

__device__ inline Tap tap_at(const Windows& windows, int index) {
    const int pixel = index / windows.channels;
    return tap_of(windows, pixel / windows.tap_columns, pixel % windows.tap_columns, index % windows.channels);
}

// Returns whether a tap is in the image, and not in the padding.
__device__ inline bool is_inside(const Windows& windows, const Corner& corner, const Tap& tap) {
    const int row = corner.row + tap.row_shift, column = corner.column + tap.column_shift;
    return unsigned(row) < unsigned(windows.height) && unsigned(column) < unsigned(windows.width);
}

// Four adjacent values of a window. BY_FOUR: they are aligned channels of one pixel, and `taps` has one entry; else 4.
template <bool BY_FOUR, class Element>
__device__ inline Fetched<BY_FOUR, Element> window_values(
    const Element* image, const Windows& windows, const Corner& corner, const Tap* taps) {
    Fetched<BY_FOUR, Element> values = {};
    if constexpr (BY_FOUR) {
        if (is_inside(windows, corner, taps[0])) values = fetch_four(image + (corner.offset + taps[0].offset));
    } else {
        UNROLL for (int number = 0; number < 4; ++number) {
            const bool inside = is_inside(windows, corner, taps[number]);
            if (inside) values.values[number] = image[corner.offset + taps[number].offset];
        }
    }
    return values;
}

// Elements between adjacent values of a weight, along each of its sizes: `(columns, channels, tap rows, tap columns)`.
// The channels are those of the windows.
struct Matrix {
    int column_step, channel_step, row_step, tap_column_step;

    __device__ int offset_of(const Tap& tap) const {
        return tap.row * row_step + tap.column * tap_column_step + tap.channel * channel_step;
    }
};

// Advances a tap, and the offset of its value in a column of the matrix, without a product of two vector registers.
__device__ inline void advance(
    const Windows& windows, const Matrix& matrix, Tap& tap, int& matrix_offset, int numbers) {
    const int pixel = windows.tap_column_step * windows.pixel_stride;
    const int row = windows.tap_row_step * windows.width * windows.pixel_stride;
    tap.channel += numbers, tap.offset += numbers, matrix_offset += numbers * matrix.channel_step;
    while (tap.channel >= windows.channels) {
        tap.channel -= windows.channels, tap.column_shift += windows.tap_column_step;
        tap.offset += pixel - windows.channels;
        matrix_offset += matrix.tap_column_step - windows.channels * matrix.channel_step;
        if (++tap.column < windows.tap_columns) continue;
        tap.column = 0, tap.column_shift = 0;
        tap.row_shift = ++tap.row < windows.tap_rows ? tap.row_shift + windows.tap_row_step : NOWHERE;
        tap.offset += row - windows.tap_columns * pixel;
        matrix_offset += matrix.row_step - windows.tap_columns * matrix.tap_column_step;
    }
}

// Four values of a column of a matrix, which belong to the same taps as those of `window_values`. The four loads of
// BY_FOUR do not require adjacent channels, because the compiler waits for loads in the branches of such a condition.
template <bool BY_FOUR, class Element>
__device__ inline Fetched<false, Element> column_values(
    const Element* column, const Matrix& matrix, const Tap* taps, const int* offsets) {
    Fetched<false, Element> values = {};
    if constexpr (BY_FOUR) {
        if (taps[0].row_shift == NOWHERE) return values;
        const Element* first = column + offsets[0];
        UNROLL for (int number = 0; number < 4; ++number) values.values[number] = first[number * matrix.channel_step];
    } else {
        UNROLL for (int number = 0; number < 4; ++number) {
            if (taps[number].row_shift != NOWHERE) values.values[number] = column[offsets[number]];
        }
    }
    return values;
}

// Stride, padding before the image, dilation and size of a kernel along one axis.
struct Axis {
    int stride, before, dilation, kernel;
};

// Input positions with one remainder modulo the stride, along one axis, and the taps that read them. These taps are
// evenly spaced: the gradient of the positions is a convolution of the output gradient with stride 1.
struct Remainder {
    int places;              // number of positions
    int taps;                // number of taps
    int first_tap, tap_step;
    int first, step;         // output that reads the first position with the first tap; step to the next tap's output

    __device__ Remainder(const Axis& axis, int remainder, int size)
        : places((size - remainder + axis.stride - 1) / axis.stride), taps(0), first_tap(0), tap_step(0), first(0) {
        for (int tap = axis.kernel - 1; tap >= 0; --tap) {
            const int reach = remainder + axis.before - tap * axis.dilation;
            if (reach % axis.stride != 0) continue;
            tap_step = taps > 0 ? first_tap - tap : 0;
            first_tap = tap;
            first = reach / axis.stride;
            ++taps;
        }
        step = -tap_step * axis.dilation / axis.stride;
    }
};
