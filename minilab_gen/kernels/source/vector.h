// Sixteen floats at a time, in as many registers as the processor needs: AVX-512 one, AVX2 two, NEON and plain four.
// The back ends differ in this file alone. Only `fma` and the loads of narrow weights need more than the compiler's own
// vectors, which have + - * / and comparisons on every processor.
#pragma once

#include "rules.h"

#if defined(MLK_BACKEND_AVX512) || defined(MLK_BACKEND_AVX2)
#include <immintrin.h>
#elif defined(MLK_BACKEND_NEON)
#include <arm_neon.h>
#elif !defined(MLK_BACKEND_PLAIN)
#error "name the back end: -DMLK_BACKEND_PLAIN, _AVX2, _AVX512 or _NEON"
#endif

namespace {

#if defined(MLK_BACKEND_AVX512)
constexpr int WIDTH = 16;
#elif defined(MLK_BACKEND_AVX2)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
constexpr int PARTS = LANES / WIDTH;

typedef float Vec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t Bits __attribute__((vector_size(WIDTH * 4)));

template <class To, class From> MLK_INLINE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps their number");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
template <class T> MLK_INLINE T load_any(const void* at) {  // at any address
    T value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}
MLK_INLINE Vec splat(float x) { return x - Vec{}; }  // x - 0 is x, -0 as well; the compiler makes it a broadcast
MLK_INLINE Vec select(Bits mask, Vec yes, Vec no) {
    return same_bits<Vec>((mask & same_bits<Bits>(yes)) | (~mask & same_bits<Bits>(no)));
}

#if defined(MLK_BACKEND_AVX512)
MLK_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(MLK_BACKEND_AVX2)
MLK_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(MLK_BACKEND_NEON)
MLK_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
typedef double Wide __attribute__((vector_size(WIDTH * 8)));
typedef int64_t WideBits __attribute__((vector_size(WIDTH * 8)));
// Without the instruction: a double holds the product exactly, and the sum is rounded to odd (the last bit says that
// something was lost), after which the rounding to float is the only one that counts. Boldo and Melquiond 2008,
// "Emulation of FMA and Correctly Rounded Sums".
inline __attribute__((noinline)) Vec fma(Vec a, Vec b, Vec c) {  // no inlining: a tile of these is 70 s of compiling
    const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
    const Wide addend = __builtin_convertvector(c, Wide);
    const Wide sum = product + addend;
    const Wide back = sum - product;
    const Wide lost = (product - (sum - back)) + (addend - back);  // exact; NaN where the sum is not finite
    const Wide zero = {};
    const WideBits above = lost > zero, below = lost < zero;
    const WideBits bits = same_bits<WideBits>(sum);
    const WideBits even = (bits & 1) - 1;
    const WideBits away = above ^ (sum > zero);  // -1: what was lost lies towards zero
    const WideBits nudge = (1 + 2 * away) & (above | below) & even;
    return __builtin_convertvector(same_bits<Wide>(bits + nudge), Vec);
}
#endif

struct V16 {
    Vec part[PARTS];
};

template <class F> MLK_INLINE V16 each(F f) {
    V16 r;
    MLK_EACH(i, PARTS) r.part[i] = f(i);
    return r;
}
MLK_INLINE V16 load16(const float* at) {
    return each([&](int i) MLK_LAMBDA { return load_any<Vec>(at + i * WIDTH); });
}
MLK_INLINE void store16(float* at, const V16& a) {
    MLK_EACH(i, PARTS) __builtin_memcpy(at + i * WIDTH, &a.part[i], sizeof(Vec));
}
MLK_INLINE V16 splat16(float x) {
    const Vec v = splat(x);
    return each([&](int) MLK_LAMBDA { return v; });
}
MLK_INLINE V16 zero16() { return V16{}; }
MLK_INLINE V16 operator+(const V16& a, const V16& b) {
    return each([&](int i) MLK_LAMBDA { return a.part[i] + b.part[i]; });
}
MLK_INLINE V16 operator-(const V16& a, const V16& b) {
    return each([&](int i) MLK_LAMBDA { return a.part[i] - b.part[i]; });
}
MLK_INLINE V16 operator*(const V16& a, const V16& b) {
    return each([&](int i) MLK_LAMBDA { return a.part[i] * b.part[i]; });
}
MLK_INLINE V16 operator/(const V16& a, const V16& b) {
    return each([&](int i) MLK_LAMBDA { return a.part[i] / b.part[i]; });
}
MLK_INLINE V16 fma16(const V16& a, const V16& b, const V16& c) {
    return each([&](int i) MLK_LAMBDA { return fma(a.part[i], b.part[i], c.part[i]); });
}
MLK_INLINE V16 max16(const V16& a, const V16& b) {  // b where either is NaN, on every processor
    return each([&](int i) MLK_LAMBDA { return select(a.part[i] > b.part[i], a.part[i], b.part[i]); });
}

MLK_INLINE float sum_of_lanes(const V16& a) {  // rule 2: the one tree
    float t[LANES];
    store16(t, a);
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) t[i] += t[i + n];
    return t[0];
}
MLK_INLINE float max_of_lanes(const V16& a) {
    float t[LANES], most;
    store16(t, a);
    most = t[0];
    for (int i = 1; i < LANES; i++) most = t[i] > most ? t[i] : most;
    return most;
}

// Sixteen weights as floats. bfloat16 keeps output j beside j + 8 in one word of 32 bits: a shift and a mask widen
// them in place, where neighbours would have to be shuffled apart.
enum : int { F32 = 0, BF16 = 1, INT8 = 2 };
constexpr int BYTES_OF_16[3] = {64, 32, 16};

template <int TYPE> MLK_INLINE V16 load_weights(const char* at) {
    if constexpr (TYPE == F32) {
        return load16(reinterpret_cast<const float*>(at));
    } else if constexpr (TYPE == BF16) {
#if defined(MLK_BACKEND_AVX512)
        const __m256i words = _mm256_loadu_si256((const __m256i*)at);
        const __m256i low = _mm256_slli_epi32(words, 16);
        const __m256i high = _mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000));
        return V16{{(Vec)_mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1))}};
#else
        V16 r;
        constexpr int HALF = PARTS / 2;
        MLK_EACH(i, HALF) {
            const Bits words = load_any<Bits>(at + i * WIDTH * 4);
            r.part[i] = same_bits<Vec>(words << 16);
            r.part[i + HALF] = same_bits<Vec>(words & (int32_t)0xffff0000);
        }
        return r;
#endif
    } else {
#if defined(MLK_BACKEND_AVX512)
        return V16{{(Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at)))}};
#elif defined(MLK_BACKEND_AVX2)
        return each([&](int i) MLK_LAMBDA {
            return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(at + i * 8))));
        });
#elif defined(MLK_BACKEND_NEON)
        const int8x16_t bytes = vld1q_s8((const int8_t*)at);
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
        return V16{{(Vec)vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), (Vec)vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                    (Vec)vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                    (Vec)vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
#else
        const int8_t* bytes = reinterpret_cast<const int8_t*>(at);
        return each([&](int i) MLK_LAMBDA {
            const int8_t* b = bytes + i * 4;
            return Vec{(float)b[0], (float)b[1], (float)b[2], (float)b[3]};
        });
#endif
    }
}

}  // namespace
