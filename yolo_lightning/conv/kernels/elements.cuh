// Elements of tensors in global memory: float, or 16-bit types that are converted to float in registers.
//
// No compiler needs a header of its vendor: on AMD GPUs, float16 is converted by the compiler's type, else the conversions
// use integer operations only.

// Before a loop with a constant number of turns, so that the compiler keeps the arrays that it indexes in registers.
#define UNROLL _Pragma("unroll")

// Threads of every block.
constexpr int THREADS = 256;

// A float16 (IEEE 754 binary16) or a bfloat16 number, as its bits.
struct Half {
    unsigned short bits;
};
struct BFloat16 {
    unsigned short bits;
};

union FloatBits {
    float number;
    unsigned bits;
};

__device__ inline float float_of_bits(unsigned bits) {
    FloatBits both;
    both.bits = bits;
    return both.number;
}

__device__ inline unsigned bits_of_float(float number) {
    FloatBits both;
    both.number = number;
    return both.bits;
}

__device__ inline float to_float(float element) { return element; }

__device__ inline float to_float(BFloat16 element) { return float_of_bits(unsigned(element.bits) << 16); }

__device__ inline void from_float(float& element, float number) { element = number; }

// All conversions round to the nearest even number.
__device__ inline void from_float(BFloat16& element, float number) {
    const unsigned bits = bits_of_float(number);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    element.bits = (unsigned short)(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef __AMDGCN__
union HalfBits {
    _Float16 number;
    unsigned short bits;
};

__device__ inline float to_float(Half element) {
    HalfBits both;
    both.bits = element.bits;
    return both.number;
}

__device__ inline void from_float(Half& element, float number) {
    HalfBits both;
    both.number = _Float16(number);
    element.bits = both.bits;
}
#else
__device__ inline float to_float(Half element) {
    const unsigned sign = unsigned(element.bits & 0x8000u) << 16;
    const unsigned magnitude = unsigned(element.bits & 0x7fffu) << 13;
    const unsigned exponent = magnitude & 0x0f800000u;
    unsigned bits = magnitude + 0x38000000u;                                 // 127 - 15 in the exponent
    if (exponent == 0x0f800000u) bits += 0x38000000u;                        // infinity and NaN
    if (exponent == 0) {                                                     // zero and subnormal numbers
        bits = bits_of_float(float_of_bits(bits + 0x00800000u) - float_of_bits(0x38800000u));
    }
    return float_of_bits(sign | bits);
}

__device__ inline void from_float(Half& element, float number) {
    const unsigned all = bits_of_float(number), sign = all >> 16 & 0x8000u, bits = all & 0x7fffffffu;
    unsigned half;
    if (bits >= 0x47800000u) {  // 65536 and more, infinity, NaN
        half = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (bits < 0x38800000u) {  // below 2^-14: the addition shifts and rounds
        half = bits_of_float(float_of_bits(bits) + 0.5f) - 0x3f000000u;
    } else {
        half = (bits - 0x38000000u + 0x0fffu + (bits >> 13 & 1u)) >> 13;
    }
    element.bits = (unsigned short)(sign | half);
}
#endif

// Barrier for values in shared memory. On AMD GPUs, __syncthreads() also waits for the loads from global memory and
// invalidates their cache. gfx12 has other wait instructions.
__device__ inline void sync_shared() {
#if defined(__AMDGCN__) && !defined(__GFX12__)
    asm volatile("s_waitcnt lgkmcnt(0)\n\ts_barrier" ::: "memory");
#else
    __syncthreads();
#endif
}

// Four adjacent aligned elements; one access to memory.
template <class Element>
struct alignas(4 * sizeof(Element)) Four {
    Element values[4];
};

__device__ inline float4 zeros() {
    float4 value;
    value.x = value.y = value.z = value.w = 0.0f;
    return value;
}

__device__ inline float4 to_four(const float (&values)[4]) {
    float4 four;
    four.x = values[0], four.y = values[1], four.z = values[2], four.w = values[3];
    return four;
}

template <class Element>
__device__ inline float4 load_four(const Element* elements) {
    const Four<Element> four = *reinterpret_cast<const Four<Element>*>(elements);
    float4 values;
    values.x = to_float(four.values[0]), values.y = to_float(four.values[1]);
    values.z = to_float(four.values[2]), values.w = to_float(four.values[3]);
    return values;
}

// Four elements that are being loaded, and are converted only when they are needed: the compiler waits for a load before
// the first operation with its result. PACKED: adjacent 16-bit elements are two words, of one access to memory.
template <bool PACKED, class Element>
struct Fetched {
    Element values[4];
};
template <class Element>
struct alignas(8) Fetched<true, Element> {
    unsigned words[2];
};
template <>
struct alignas(16) Fetched<true, float> {
    float values[4];
};

template <class Element>
__device__ inline float4 to_floats(const Fetched<false, Element>& from) {
    float4 values;
    values.x = to_float(from.values[0]), values.y = to_float(from.values[1]);
    values.z = to_float(from.values[2]), values.w = to_float(from.values[3]);
    return values;
}

template <class Element>
__device__ inline float4 to_floats(const Fetched<true, Element>& from) {
    Fetched<false, Element> values;
    UNROLL for (int number = 0; number < 4; ++number) {
        values.values[number].bits = (unsigned short)(from.words[number / 2] >> number % 2 * 16);
    }
    return to_floats(values);
}

__device__ inline float4 to_floats(const Fetched<true, float>& from) { return to_four(from.values); }

template <class Element>
__device__ inline Fetched<true, Element> fetch_four(const Element* elements) {
    return *reinterpret_cast<const Fetched<true, Element>*>(elements);
}

template <class Element>
__device__ inline void store_four(Element* target, const float* values) {
    Four<Element> four;
    UNROLL for (int number = 0; number < 4; ++number) from_float(four.values[number], values[number]);
    *reinterpret_cast<Four<Element>*>(target) = four;
}

// Returns in all threads of one of the `blocks` blocks that call this function with `counter`, the last one, that it is
// the last. What the other blocks have written before is then visible. The counter starts at zero, and is zero again
// after the last block, so that the next launch can use it. Which block is the last must not affect the result.
// `arrived` is in shared memory, which the block does not use for other values at the call.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks, unsigned& arrived) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        arrived = atomicAdd(counter, 1u) + 1u;
        if (arrived == blocks) *counter = 0;
    }
    __syncthreads();
    if (arrived != blocks) return false;
    __threadfence();
    return true;
}
