// What is done to a row by itself: RMS norm, rotary positions, and the numbers of sampling.
#pragma once

#include "attention.h"

namespace {

void rms_norm(const mlk::Norm& job) {
    V16 sum = zero16();
    for (int i = 0; i < job.size; i += LANES) {
        const V16 x = load16(job.x + i);
        sum = fma16(x, x, sum);
    }
    const V16 inverse = splat16(1.f / __builtin_sqrtf(sum_of_lanes(sum) / static_cast<float>(job.size) + job.eps));
    for (int i = 0; i < job.size; i += LANES) store16(job.out + i, load16(job.x + i) * inverse * load16(job.gain + i));
}

// What x is above its mean, 0 behind the end; `at` is a multiple of 16.
MLK_INLINE V16 centred(const mlk::Norm& job, int at, const V16& mean) {
    const V16 above = load16(job.x + at) - mean;
    if (at + LANES <= job.size) return above;
    alignas(64) float rest[LANES];
    store16(rest, above);
    for (int i = job.size - at; i < LANES; i++) rest[i] = 0.f;
    return load16(rest);
}

void layer_norm(const mlk::Norm& job) {
    const float size = static_cast<float>(job.size);
    V16 sum = zero16();
    for (int i = 0; i < job.size; i += LANES) sum = sum + load16(job.x + i);
    const V16 mean = splat16(sum_of_lanes(sum) / size);
    sum = zero16();
    for (int i = 0; i < job.size; i += LANES) {
        const V16 x = centred(job, i, mean);
        sum = fma16(x, x, sum);
    }
    const V16 inverse = splat16(1.f / __builtin_sqrtf(sum_of_lanes(sum) / size + job.eps));
    for (int i = 0; i < job.size; i += LANES)
        store16(job.out + i, fma16(centred(job, i, mean) * inverse, load16(job.gain + i), load16(job.bias + i)));
}

void norm(const mlk::Norm& job) { job.bias ? layer_norm(job) : rms_norm(job); }

// A head, normed where it has a gain, the halves of its first dimensions turned by the angles of the position: into
// `to`, (head_dim).
void turn(const float* head, const mlk::Place& job, const float* gain, float* to) {
    const int size = job.head_dim, half = job.rope_dim / 2;
    alignas(64) float normed[mlk::LARGEST_HEAD];
    const float* own = head;
    if (gain) {
        for (int d = 0; d < size; d++) normed[d] = head[d];
        for (int d = size; d < padded(size); d++) normed[d] = 0.f;
        rms_norm({normed, normed, gain, nullptr, size, job.eps});
        own = normed;
    }
    alignas(64) float low[LANES], high[LANES];
    for (int d = 0; d < half; d += LANES) {
        const int count = half - d < LANES ? half - d : LANES;
        V16 a, b, c, s;
        if (count == LANES) {
            a = load16(own + d), b = load16(own + half + d), c = load16(job.cosine + d), s = load16(job.sine + d);
        } else {
            alignas(64) float rest[4][LANES] = {};
            for (int i = 0; i < count; i++) {
                rest[0][i] = own[d + i], rest[1][i] = own[half + d + i];
                rest[2][i] = job.cosine[d + i], rest[3][i] = job.sine[d + i];
            }
            a = load16(rest[0]), b = load16(rest[1]), c = load16(rest[2]), s = load16(rest[3]);
        }
        store16(low, fma16(a, c, zero16() - b * s));
        store16(high, fma16(b, c, a * s));
        for (int i = 0; i < count; i++) to[d + i] = low[i], to[half + d + i] = high[i];
    }
    for (int d = job.rope_dim; d < size; d++) to[d] = own[d];
}

void place(const mlk::Place& job) {
    const int size = job.head_dim;
    const int64_t stride = padded(size);
    alignas(64) float turned[mlk::LARGEST_HEAD];
    for (int h = 0; h < job.heads; h++) {
        float* query = job.queries + h * size;
        turn(query, job, job.query_gain, turned);
        for (int d = 0; d < size; d++) query[d] = turned[d];
    }
    turn(job.key, job, job.key_gain, turned);
    float* key = job.strip.keys + int64_t{job.position / LANES} * size * LANES + job.position % LANES;
    for (int d = 0; d < size; d++) key[d * LANES] = turned[d];
    float* value = job.strip.values + job.position * stride;
    for (int d = 0; d < size; d++) value[d] = job.value[d];
    for (int d = size; d < stride; d++) value[d] = 0.f;
}

mlk::Top top(const float* logits, int count) {
    const float none = -__builtin_inff();
    V16 most = splat16(none);
    Bits is_nan[PARTS] = {};
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        const V16 x = load16(logits + i);
        most = max16(x, most);  // the old one where x is NaN
        MLK_EACH(p, PARTS) is_nan[p] |= x.part[p] != x.part[p];
    }
    float highest = max_of_lanes(most);
    bool bad = false;
    for (int p = 0; p < PARTS; p++)
        for (int j = 0; j < WIDTH; j++) bad |= is_nan[p][j] != 0;
    for (; i < count; i++) {
        bad |= logits[i] != logits[i];
        highest = logits[i] > highest ? logits[i] : highest;
    }
    if (bad || !(highest - highest == 0.f)) return {highest, -1};
    int id = 0;
    while (logits[id] != highest) id++;
    return {logits[id], id};
}

float exponentials(const float* logits, int count, float highest, float divisor, float* out) {
    const V16 from = splat16(highest), by = splat16(divisor);
    V16 sum = zero16();
    for (int i = 0; i < count; i += LANES) {
        V16 x;
        if (i + LANES <= count) {
            x = load16(logits + i);
        } else {
            alignas(64) float rest[LANES];
            for (int j = 0; j < LANES; j++) rest[j] = i + j < count ? logits[i + j] : -__builtin_inff();
            x = load16(rest);
        }
        const V16 e = exp16((x - from) / by);
        store16(out + i, e);
        sum = sum + e;
    }
    return sum_of_lanes(sum);
}

void divide(float* numbers, int count, float by) {
    const V16 divisor = splat16(by);
    for (int i = 0; i < count; i += LANES) store16(numbers + i, load16(numbers + i) / divisor);
}

void functions(const float* a, const float* b, const float* c, float* fused, float* exps, float* activations,
               int activation, int count) {
    for (int i = 0; i < count; i += LANES) {
        store16(fused + i, fma16(load16(a + i), load16(b + i), load16(c + i)));
        store16(exps + i, exp16(load16(a + i)));
        store16(activations + i, activated(activation, load16(a + i)));
    }
}

}  // namespace
