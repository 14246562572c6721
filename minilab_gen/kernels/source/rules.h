// The rules by which every processor, compiler, thread count and batch gives the same bits. All files here obey them.
//
//  1. A product's output is one chain of fused multiply-adds over k, k ascending, from 0. How many rows or outputs a
//     tile holds then decides how fast a number comes, never which number comes. (A library that splits k to be fast
//     for one row rounds in other places than for two.)
//  2. A sum across a vector has 16 virtual lanes, lane j adding the elements j, j + 16, ... in order, and one tree
//     (16 to 8 to 4 to 2 to 1) at its end. 16 is the widest register served; narrower ones take several.
//  3. Values are mixed by position, ascending, and the sum stops at the length. A masked position that is multiplied
//     by 0 instead would turn -0 into +0, and a stale NaN into a new one.
//  4. Only operations that IEEE 754 rounds correctly: + - * / sqrt fma, conversions, and integers. exp, log, sine and
//     cosine are polynomials of these, because libm's differ in the last bit from release to release.
//  5. The compiler fuses nothing by itself (-ffp-contract=off, in build.py): gcc would and clang would not, and x86-64
//     without FMA cannot. What is fused says fma.
//  6. Each thread rounds to nearest and keeps subnormal numbers while it computes, whatever its host has set; the
//     host's setting comes back afterwards.
//  7. A maximum may lose a NaN (x86 keeps the second operand, ARM the NaN), so nothing rests on it: a NaN lives on in
//     the sums, and the last check looks for it by x != x.
//  8. What is compiled for one processor defines nothing that another could call: each back end lies in an anonymous
//     namespace and exports one table. The linker keeps one copy of an inline function, be it the AVX-512 one.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if defined(__FAST_MATH__)
#error "fast-math breaks rules 1 to 5"
#endif

#define MLK_INLINE inline __attribute__((always_inline))
#define MLK_LAMBDA __attribute__((always_inline))
#if defined(__clang__)
#define MLK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MLK_UNROLL _Pragma("GCC unroll 32")
#endif
// A loop over a constant, of which nothing is left.
#define MLK_EACH(i, count) MLK_UNROLL for (int i = 0; i < (count); i++)

namespace {

constexpr int LANES = 16;  // virtual lanes, rule 2, and the outputs of a panel

MLK_INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

// Rule 6, for as long as it lives.
class RoundingMode {
  public:
#if defined(__x86_64__)
    RoundingMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // all exceptions masked, nothing flushed
    ~RoundingMode() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#elif defined(__aarch64__)
    RoundingMode() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
    }
    ~RoundingMode() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

  private:
    uint64_t before_;
#else
    RoundingMode() {}
    ~RoundingMode() {}
#endif
    RoundingMode(const RoundingMode&) = delete;
    RoundingMode& operator=(const RoundingMode&) = delete;
};

}  // namespace
