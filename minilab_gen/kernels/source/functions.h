// exp and what is made of it, out of correctly rounded operations (rule 4).
#pragma once

#include "minilab_kernels.h"
#include "vector.h"

namespace {

// exp(x) for x up to 88; 0 below -87.3, where the result would be subnormal; NaN stays NaN. Within 2 units of the last
// place. x = n ln 2 + r with |r| <= 0.35, where Taylor's series to r^7 errs by less than 2^-27.
MLK_INLINE Vec exp(Vec x) {
    const Vec lowest = splat(-87.3f);
    const Vec round = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    const Vec clamped = select(x < lowest, lowest, x);
    const Vec shifted = fma(clamped, splat(1.44269504088896341f), round);
    const Vec n = shifted - round;
    Vec r =
        fma(n, splat(-0.693359375f), clamped);  // ln 2 in two parts, the first of 9 bits, so that n times it is exact
    r = fma(n, splat(2.12194440e-4f), r);
    Vec p = splat(1.f / 5040);
    p = fma(p, r, splat(1.f / 720));
    p = fma(p, r, splat(1.f / 120));
    p = fma(p, r, splat(1.f / 24));
    p = fma(p, r, splat(1.f / 6));
    p = fma(p, r, splat(1.f / 2));
    p = fma(p, r, splat(1.f));
    p = fma(p, r, splat(1.f));
    const Bits exponent = same_bits<Bits>(shifted) - same_bits<Bits>(round);
    const Vec power = same_bits<Vec>((exponent + 127) << 23);
    return select(x < lowest, splat(0.f), p * power);
}
MLK_INLINE V16 exp16(const V16& x) {
    return each([&](int i) MLK_LAMBDA { return exp(x.part[i]); });
}

// x / (1 + exp(minus)): x times the logistic function of -minus.
MLK_INLINE Vec gated_by(Vec x, Vec minus) {
    const Vec most = splat(88.f);
    return x / (splat(1.f) + exp(select(minus > most, most, minus)));
}

// Elfwing et al. 2018, "Sigmoid-Weighted Linear Units".
MLK_INLINE Vec silu(Vec x) { return gated_by(x, -x); }

// Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", by tanh: x (1 + tanh u) / 2 = x / (1 + exp(-2 u)).
MLK_INLINE Vec gelu_tanh(Vec x) {
    const Vec cubed = fma(x * x * x, splat(0.044715f), x);
    return gated_by(x, cubed * splat(-1.5957691216057308f));  // -2 sqrt(2 / pi)
}

// The same by the error function: x erfc(-x / sqrt 2) / 2. Press et al. 1992, "Numerical Recipes", section 6.2: of z
// at least 0, erfc(z) = t exp(-z^2 + P(t)) with t = 1 / (1 + z / 2), within 1.2e-7 of itself.
MLK_INLINE Vec gelu(Vec x) {
    const Vec scaled = x * splat(-0.70710678118654752f), zero = splat(0.f), one = splat(1.f);
    const Vec z = select(scaled < zero, -scaled, scaled);
    const Vec t = one / fma(z, splat(0.5f), one);
    Vec p = splat(0.17087277f);
    p = fma(p, t, splat(-0.82215223f));
    p = fma(p, t, splat(1.48851587f));
    p = fma(p, t, splat(-1.13520398f));
    p = fma(p, t, splat(0.27886807f));
    p = fma(p, t, splat(-0.18628806f));
    p = fma(p, t, splat(0.09678418f));
    p = fma(p, t, splat(0.37409196f));
    p = fma(p, t, splat(1.00002368f));
    p = fma(p, t, splat(-1.26551223f));
    const Vec beyond = t * exp(fma(-z, z, p));
    return x * splat(0.5f) * select(scaled < zero, splat(2.f) - beyond, beyond);
}

MLK_INLINE V16 activated(int activation, const V16& x) {
    switch (activation) {
        case MLK_SILU: return each([&](int i) MLK_LAMBDA { return silu(x.part[i]); });
        case MLK_GELU_TANH: return each([&](int i) MLK_LAMBDA { return gelu_tanh(x.part[i]); });
        default: return each([&](int i) MLK_LAMBDA { return gelu(x.part[i]); });
    }
}

}  // namespace
