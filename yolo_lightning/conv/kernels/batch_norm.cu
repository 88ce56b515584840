// Batch normalization followed by SiLU: two launches forward and two backward.
//
// Elements are float32, float16 or bfloat16; statistics, parameters and sums are float32. A first kernel reduces ranges
// of positions (splits), and the last block of each range of channels combines the splits, in a fixed order. A second
// kernel computes the elements. A position is a pixel of a sample.
//
// build.py places this file after elements.cuh. The macros at the end define the kernels.

// Count, mean and sum of squared deviations (Chan et al.: Updating Formulae and a Pairwise Algorithm, 1979).
struct Moments {
    float count, mean, deviations;

    __device__ void add(const Moments& other) {
        const float total = count + other.count;
        if (total == 0.0f) return;
        const float difference = other.mean - mean, share = other.count / total;
        deviations += other.deviations + difference * difference * count * share;
        mean += difference * share;
        count = total;
    }
};

struct Sums {
    float first, second;

    __device__ void add(const Sums& other) {
        first += other.first;
        second += other.second;
    }
};

// The part of a tensor that a thread computes: WIDTH values at a time, for positions `start`, `start + step`, ...
//
// With channels innermost (NHWC), the values are adjacent channels of one position. Otherwise (NCHW), they are adjacent
// positions of one channel. A block has `lanes` x `rows` threads; the threads of a row have different channels.
template <bool CHANNELS_LAST, int WIDTH>
struct Part {
    int channels, plane;  // plane: positions of a sample
    int lane, row, rows, channel;
    bool is_used;  // whether the thread has a channel
    int start, stop, step;

    __device__ Part(int positions, int channels, int plane, int lanes, int per_split)
        : channels(channels), plane(plane), lane(threadIdx.x % lanes), row(threadIdx.x / lanes), rows(THREADS / lanes) {
        channel = (blockIdx.y * lanes + lane) * (CHANNELS_LAST ? WIDTH : 1);
        const int at_once = CHANNELS_LAST ? 1 : WIDTH, first = blockIdx.x * per_split;
        start = first + row * at_once;
        step = rows * at_once;
        stop = positions - first < per_split ? positions : first + per_split;
        is_used = row < rows && channel < channels;
        if (!is_used) stop = start;
    }

    // Offset of the values at a position; NHWC positions are `stride` elements apart.
    __device__ int offset(int position, int stride) const {
        if (CHANNELS_LAST) return position * stride + channel;
        return (position / plane * channels + channel) * plane + position % plane;
    }

    // Channels of a thread.
    static constexpr int CHANNELS = CHANNELS_LAST ? WIDTH : 1;

    // Channel of a value.
    __device__ int channel_of(int number) const { return CHANNELS_LAST ? channel + number : channel; }
};

template <class Element>
__device__ inline void load(const Element* elements, float (&values)[4]) {
    const float4 four = load_four(elements);
    values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
}

template <class Element>
__device__ inline void load(const Element* elements, float (&values)[1]) {
    values[0] = to_float(elements[0]);
}

template <class Element>
__device__ inline void store(Element* target, const float (&values)[4]) {
    store_four(target, values);
}

template <class Element>
__device__ inline void store(Element* target, const float (&values)[1]) {
    from_float(target[0], values[0]);
}

// Combines the states of all rows of a block in row 0 of `shared`.
template <int WIDTH, class State>
__device__ inline void combine_rows(const State (&states)[WIDTH], State (&shared)[WIDTH][THREADS], int row, int rows, int lanes) {
    UNROLL for (int number = 0; number < WIDTH; ++number) shared[number][threadIdx.x] = states[number];
    __syncthreads();
    for (int left = rows; left > 1; left = (left + 1) / 2) {
        const int half = (left + 1) / 2;
        if (row < left - half) {
            UNROLL for (int number = 0; number < WIDTH; ++number) {
                shared[number][threadIdx.x].add(shared[number][threadIdx.x + half * lanes]);
            }
        }
        __syncthreads();
    }
}

// Writes two numbers per channel: partials[split, 0 or 1, channel].
template <bool CHANNELS_LAST, int WIDTH, class State, class Numbers>
__device__ inline void write_partials(
    float* partials, const Part<CHANNELS_LAST, WIDTH>& part, State (&shared)[WIDTH][THREADS], Numbers numbers) {
    if (part.row > 0 || part.channel >= part.channels) return;
    float* target = partials + blockIdx.x * 2 * part.channels;
    if (!CHANNELS_LAST) {
        for (int number = 1; number < WIDTH; ++number) shared[0][threadIdx.x].add(shared[number][threadIdx.x]);
    }
    for (int number = 0; number < part.CHANNELS; ++number) {
        const Sums two = numbers(shared[number][threadIdx.x]);
        target[part.channel + number] = two.first;
        target[part.channels + part.channel + number] = two.second;
    }
}

// Combines the partials of all splits in row 0 of `shared`, in one block for each blockIdx.y, and returns whether this
// is the block and this thread is in row 0. `state` makes a state of two numbers and the split.
template <bool CHANNELS_LAST, int WIDTH, class State, class Make>
__device__ inline bool combine_splits(
    const float* partials, unsigned* counters, const Part<CHANNELS_LAST, WIDTH>& part, State (&shared)[WIDTH][THREADS],
    int splits, int lanes, Make state) {
    __shared__ unsigned arrived;
    if (!is_last_block(counters + blockIdx.y, splits, arrived)) return false;
    State states[WIDTH] = {};
    for (int split = part.row; part.is_used && split < splits; split += part.rows) {
        const float* numbers = partials + split * 2 * part.channels + part.channel;
        UNROLL for (int number = 0; number < part.CHANNELS; ++number) {
            states[number].add(state(numbers[number], numbers[part.channels + number], split));
        }
    }
    combine_rows<WIDTH>(states, shared, part.row, part.rows, lanes);
    return part.is_used && part.row == 0;
}

// Where the statistics of a batch are written. Running statistics and the number of batches may be null.
struct Statistics {
    float* of_batch;  // [0, channel] = mean, [1, channel] = 1 / standard deviation
    float *running_mean, *running_var;
    long long* batches;
    float momentum, eps;

    __device__ void write(const Moments& total, int channel, int channels, int positions) const {
        of_batch[channel] = total.mean;
        of_batch[channels + channel] = 1.0f / sqrtf(total.deviations / float(positions) + eps);
        if (running_mean) {
            const float variance = total.deviations / float(positions - 1);
            running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * total.mean;
            running_var[channel] = (1.0f - momentum) * running_var[channel] + momentum * variance;
        }
        if (batches && channel == 0) *batches += 1;
    }
};

// partials[split, 0, channel] = mean, partials[split, 1, channel] = sum of squared deviations
template <class Element, bool CHANNELS_LAST, int WIDTH>
__device__ inline void batch_statistics(
    const Element* input, const Statistics& statistics, float* partials, unsigned* counters,
    const Part<CHANNELS_LAST, WIDTH>& part, int positions, int lanes, int per_split, int input_stride) {
    __shared__ Moments shared[WIDTH][THREADS];
    // Deviations from the first value of a thread, which avoids cancellation if the mean is large.
    float first[WIDTH] = {}, sums[WIDTH] = {}, squares[WIDTH] = {};
    float count = 0.0f;
    if (part.start < part.stop) load(input + part.offset(part.start, input_stride), first);
    for (int position = part.start; position < part.stop; position += part.step) {
        float values[WIDTH];
        load(input + part.offset(position, input_stride), values);
        count += 1.0f;
        UNROLL for (int number = 0; number < WIDTH; ++number) {
            const float deviation = values[number] - first[number];
            sums[number] += deviation;
            squares[number] += deviation * deviation;
        }
    }
    Moments states[WIDTH];
    UNROLL for (int number = 0; number < WIDTH; ++number) {
        const float mean = count > 0.0f ? sums[number] / count : 0.0f;
        const float rest = squares[number] - sums[number] * mean;
        states[number] = Moments{count, first[number] + mean, rest < 0.0f ? 0.0f : rest};
    }
    combine_rows<WIDTH>(states, shared, part.row, part.rows, lanes);
    write_partials<CHANNELS_LAST, WIDTH>(
        partials, part, shared, [](const Moments& moments) { return Sums{moments.mean, moments.deviations}; });
    auto moments = [&](float mean, float deviations, int split) {
        const int left = positions - split * per_split;
        return Moments{float(left < per_split ? left : per_split), mean, deviations};
    };
    const int splits = (positions + per_split - 1) / per_split;
    if (!combine_splits(partials, counters, part, shared, splits, lanes, moments)) return;
    for (int number = 0; number < part.CHANNELS; ++number) {
        statistics.write(shared[number][threadIdx.x], part.channel + number, part.channels, positions);
    }
}

// Parameters of the normalization of the channels of a thread.
template <int WIDTH>
struct Affine {
    float mean[WIDTH], deviation[WIDTH], weight[WIDTH], bias[WIDTH];  // deviation: 1 / standard deviation

    template <bool CHANNELS_LAST>
    __device__ Affine(
        const Part<CHANNELS_LAST, WIDTH>& part, const float* statistics, const float* weights, const float* biases) {
        UNROLL for (int number = 0; number < WIDTH; ++number) {
            const int channel = part.channel_of(number);
            if (channel >= part.channels) continue;
            mean[number] = statistics[channel];
            deviation[number] = statistics[part.channels + channel];
            weight[number] = weights[channel];
            bias[number] = biases[channel];
        }
    }

    __device__ float normalized(int number, float value) const { return (value - mean[number]) * deviation[number]; }
};

__device__ inline float sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

// output = SiLU(normalized input * weight + bias)
template <class Element, bool CHANNELS_LAST, int WIDTH>
__device__ inline void normalize_silu(
    const Element* input, const float* statistics, const float* weight, const float* bias, Element* output,
    const Part<CHANNELS_LAST, WIDTH>& part, int input_stride) {
    const Affine<WIDTH> affine(part, statistics, weight, bias);
    for (int position = part.start; position < part.stop; position += part.step) {
        float values[WIDTH];
        load(input + part.offset(position, input_stride), values);
        UNROLL for (int number = 0; number < WIDTH; ++number) {
            const float value = affine.normalized(number, values[number]) * affine.weight[number] + affine.bias[number];
            values[number] = value * sigmoid(value);
        }
        store(output + part.offset(position, part.channels), values);
    }
}

// Gradient of the normalized, scaled and shifted value.
__device__ inline float silu_gradient(float value, float grad) {
    const float share = sigmoid(value);
    return grad * share * (1.0f + value * (1.0f - share));
}

// sums[0, channel] = gradient of the bias, sums[1, channel] = gradient of the weight; partials[split, ...] alike
template <class Element, bool CHANNELS_LAST, int WIDTH>
__device__ inline void silu_gradient_sums(
    const Element* input, const Element* grads, const float* statistics, const float* weight, const float* bias,
    float* sums, float* partials, unsigned* counters, const Part<CHANNELS_LAST, WIDTH>& part, int splits, int lanes,
    int input_stride, int grad_stride) {
    __shared__ Sums shared[WIDTH][THREADS];
    const Affine<WIDTH> affine(part, statistics, weight, bias);
    Sums states[WIDTH] = {};
    for (int position = part.start; position < part.stop; position += part.step) {
        float values[WIDTH], upper[WIDTH];
        load(input + part.offset(position, input_stride), values);
        load(grads + part.offset(position, grad_stride), upper);
        UNROLL for (int number = 0; number < WIDTH; ++number) {
            const float value = affine.normalized(number, values[number]);
            const float grad = silu_gradient(value * affine.weight[number] + affine.bias[number], upper[number]);
            states[number].add(Sums{grad, grad * value});
        }
    }
    combine_rows<WIDTH>(states, shared, part.row, part.rows, lanes);
    write_partials<CHANNELS_LAST, WIDTH>(partials, part, shared, [](const Sums& two) { return two; });
    auto two = [](float first, float second, int /*split*/) { return Sums{first, second}; };
    if (!combine_splits(partials, counters, part, shared, splits, lanes, two)) return;
    for (int number = 0; number < part.CHANNELS; ++number) {
        sums[part.channel + number] = shared[number][threadIdx.x].first;
        sums[part.channels + part.channel + number] = shared[number][threadIdx.x].second;
    }
}

template <class Element, bool CHANNELS_LAST, int WIDTH>
__device__ inline void normalize_silu_gradient(
    const Element* input, const Element* grads, const float* statistics, const float* weight, const float* bias,
    const float* sums, Element* grad_input, const Part<CHANNELS_LAST, WIDTH>& part, int positions, int input_stride,
    int grad_stride) {
    const Affine<WIDTH> affine(part, statistics, weight, bias);
    float mean_grad[WIDTH], mean_product[WIDTH];
    UNROLL for (int number = 0; number < WIDTH; ++number) {
        const int channel = part.channel_of(number);
        if (channel >= part.channels) continue;
        mean_grad[number] = sums[channel] / float(positions);
        mean_product[number] = sums[part.channels + channel] / float(positions);
    }
    for (int position = part.start; position < part.stop; position += part.step) {
        float values[WIDTH], upper[WIDTH];
        load(input + part.offset(position, input_stride), values);
        load(grads + part.offset(position, grad_stride), upper);
        UNROLL for (int number = 0; number < WIDTH; ++number) {
            const float value = affine.normalized(number, values[number]);
            const float grad = silu_gradient(value * affine.weight[number] + affine.bias[number], upper[number]);
            const float centred = grad - mean_grad[number] - value * mean_product[number];
            values[number] = affine.weight[number] * affine.deviation[number] * centred;
        }
        store(grad_input + part.offset(position, part.channels), values);
    }
}

#define PART_PARAMETERS int positions, int channels, int plane, int lanes, int per_split
#define PART_MADE Part<CHANNELS_LAST, WIDTH>(positions, channels, plane, lanes, per_split)

#define BATCH_STATISTICS(NAME, ELEMENT, IS_LAST, WIDTH_OF)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                  \
        const ELEMENT* input, float* of_batch, float* running_mean, float* running_var, long long* batches,      \
        float* partials, unsigned* counters, PART_PARAMETERS, int input_stride, float momentum, float eps) {     \
        constexpr bool CHANNELS_LAST = IS_LAST;                                                                  \
        constexpr int WIDTH = WIDTH_OF;                                                                          \
        const Statistics statistics{of_batch, running_mean, running_var, batches, momentum, eps};                \
        batch_statistics<ELEMENT, CHANNELS_LAST, WIDTH>(                                                         \
            input, statistics, partials, counters, PART_MADE, positions, lanes, per_split, input_stride);        \
    }

#define NORMALIZE_SILU(NAME, ELEMENT, IS_LAST, WIDTH_OF)                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                  \
        const ELEMENT* input, const float* statistics, const float* weight, const float* bias, ELEMENT* output,  \
        PART_PARAMETERS, int input_stride) {                                                                     \
        constexpr bool CHANNELS_LAST = IS_LAST;                                                                  \
        constexpr int WIDTH = WIDTH_OF;                                                                          \
        normalize_silu<ELEMENT, CHANNELS_LAST, WIDTH>(                                                           \
            input, statistics, weight, bias, output, PART_MADE, input_stride);                                   \
    }

#define SILU_GRADIENT_SUMS(NAME, ELEMENT, IS_LAST, WIDTH_OF)                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                  \
        const ELEMENT* input, const ELEMENT* grads, const float* statistics, const float* weight,                \
        const float* bias, float* sums, float* partials, unsigned* counters, PART_PARAMETERS, int input_stride,  \
        int grad_stride) {                                                                                       \
        constexpr bool CHANNELS_LAST = IS_LAST;                                                                  \
        constexpr int WIDTH = WIDTH_OF;                                                                          \
        silu_gradient_sums<ELEMENT, CHANNELS_LAST, WIDTH>(                                                       \
            input, grads, statistics, weight, bias, sums, partials, counters, PART_MADE,                         \
            (positions + per_split - 1) / per_split, lanes, input_stride, grad_stride);                          \
    }

#define NORMALIZE_SILU_GRADIENT(NAME, ELEMENT, IS_LAST, WIDTH_OF)                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                  \
        const ELEMENT* input, const ELEMENT* grads, const float* statistics, const float* weight,                \
        const float* bias, const float* sums, ELEMENT* grad_input, PART_PARAMETERS, int input_stride,            \
        int grad_stride) {                                                                                       \
        constexpr bool CHANNELS_LAST = IS_LAST;                                                                  \
        constexpr int WIDTH = WIDTH_OF;                                                                          \
        normalize_silu_gradient<ELEMENT, CHANNELS_LAST, WIDTH>(                                                  \
            input, grads, statistics, weight, bias, sums, grad_input, PART_MADE, positions, input_stride,        \
            grad_stride);                                                                                        \
    }
