// Numbers of 16 bits, bit by bit: what hardware does with their NaN and subnormals differs.
#pragma once

#include <cstdint>
#include <cstring>

namespace mlk {

// To the nearest, of two equally near the even one; NaN stays NaN, subnormals stay.
inline uint16_t to_bfloat16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
    return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline float from_bfloat16(uint16_t h) {
    const uint32_t u = static_cast<uint32_t>(h) << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline float from_float16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    uint32_t u;
    float x;
    if (exponent == 0) {  // a multiple of 2^-24
        x = static_cast<float>(fraction) * 5.9604644775390625e-08f;
        memcpy(&u, &x, 4);
        u |= sign;
    } else {
        u = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    }
    memcpy(&x, &u, 4);
    return x;
}

}  // namespace mlk
