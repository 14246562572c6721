// Functions of doubles out of correctly rounded operations (rule 4), for tables and for the draw. Errors below 2 units
// of a double's last place, so that what is then rounded to float is nearly always the float nearest to the truth.
#pragma once

#include <cstdint>

#include "rules.h"

namespace mlk {

// The natural logarithm of a normal number above 0. x = 2^e m with m from 0.7 to 1.4; ln m = 2 artanh((m - 1) / (m +
// 1)).
inline double exact_log(double x) {
    uint64_t bits;
    __builtin_memcpy(&bits, &x, 8);
    int64_t e = static_cast<int64_t>((bits >> 52) & 0x7ff) - 1023;
    bits = (bits & 0xfffffffffffffull) | (uint64_t{1023} << 52);
    double m;
    __builtin_memcpy(&m, &bits, 8);
    if (m > 1.4142135623730951) m *= 0.5, e++;
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 21;
    for (int n = 19; n >= 3; n -= 2) p = p * z + 1.0 / n;
    const double power = static_cast<double>(e);
    // 2 s + 2 s z p, smallest first; ln 2 in two parts, the first so short that e times it is exact.
    return power * 6.93147180369123816490e-01 + (2 * s + (2 * s * z * p + power * 1.90821492927058770002e-10));
}

// e^x for |x| below 700.
inline double exact_exp(double x) {
    const double round = 6755399441055744.0;  // 1.5 * 2^52
    const double n = (x * 1.4426950408889634 + round) - round;
    const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1;
    for (int k = 14; k >= 1; k--) p = p * r / k + 1;
    const uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
    double power;
    __builtin_memcpy(&power, &bits, 8);
    return p * power;
}

// Sine and cosine of 0 <= x < 1.6e6. The multiple of pi / 2 is taken off in three parts, of 33 bits each, so that
// products with up to 20 bits are exact (Cody and Waite).
inline void exact_sine_cosine(double x, double* sine, double* cosine) {
    const double round = 6755399441055744.0;
    const double n = (x * 6.36619772367581382433e-01 + round) - round;
    double r = x - n * 1.57079632673412561417e+00;
    double w = n * 6.07710050630396597660e-11;
    const double high = r - w;
    w = n * 2.02226624879595063154e-21 - ((r - high) - w);
    r = high - w;
    const double z = r * r;
    double s = 1, c = 1;  // Taylor, |r| up to pi / 4
    for (int k = 20; k >= 2; k -= 2) {
        s = 1 - s * z / (k * (k + 1));
        c = 1 - c * z / (k * (k - 1));
    }
    s *= r;
    const int quarter = static_cast<int>(static_cast<int64_t>(n) & 3);
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

}  // namespace mlk
