// exp and SiLU out of correctly rounded operations (rule 4).
#pragma once

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

// x / (1 + exp(-x))
MLK_INLINE V16 silu16(const V16& x) {
    return each([&](int i) MLK_LAMBDA {
        const Vec most = splat(88.f);
        const Vec minus = -x.part[i];
        return x.part[i] / (splat(1.f) + exp(select(minus > most, most, minus)));
    });
}

}  // namespace
