// Attention over a slot's keys and values: scores, softmax, mixed values.
#pragma once

#include "product.h"

namespace {

constexpr int LARGEST_HEAD = 512;

// scores = queries . keys of 16 positions in each panel, (rows, blocks * 16)
template <int ROWS> void score(const float* queries, int64_t stride, const mlk::Attention& job, int blocks) {
    constexpr int PANELS = PANELS_OF[ROWS];
    const int64_t block = int64_t{job.head_dim} * LANES;
    Tile t = {queries, stride,  nullptr, block * 4, LANES * 4, job.head_dim, nullptr, int64_t{blocks} * LANES,
              LANES,   nullptr, 0};
    int b = 0;
    auto at = [&](int i) MLK_LAMBDA {
        t.weights = reinterpret_cast<const char*>(job.strip.keys + i * block);
        t.out = job.scores + i * LANES;
    };
    for (; b + PANELS <= blocks; b += PANELS) {
        at(b);
        compute<F32, ROWS, PANELS>(t);
    }
    for (; b < blocks; b++) {
        at(b);
        compute<F32, ROWS, 1>(t);
    }
}

// mixed += weights . values of the positions from `start` to `end`, (rows, padded head_dim)
template <int ROWS, bool CARRY>
void mix(const float* weights, int64_t stride, const mlk::Attention& job, int start, int end, float* mixed) {
    constexpr int PANELS = PANELS_OF[ROWS];
    const int64_t size = padded(job.head_dim), panels = size / LANES;
    const float* values = job.strip.values + start * size;
    Tile t = {weights + start, stride, nullptr, LANES * 4, size * 4, end - start, nullptr, size, LANES, nullptr, 0};
    int64_t p = 0;
    auto at = [&](int64_t i) MLK_LAMBDA {
        t.weights = reinterpret_cast<const char*>(values + i * LANES);
        t.out = mixed + i * LANES;
    };
    for (; p + PANELS <= panels; p += PANELS) {
        at(p);
        compute<F32, ROWS, PANELS, CARRY>(t);
    }
    for (; p < panels; p++) {
        at(p);
        compute<F32, ROWS, 1, CARRY>(t);
    }
}

// exp(score - highest) of `length` scores in place; returns one over their sum.
float softmax(float* scores, int length) {
    const int end = static_cast<int>(padded(length));
    for (int i = length; i < end; i++) scores[i] = -__builtin_inff();
    V16 highest = load16(scores);
    for (int i = LANES; i < end; i += LANES) highest = max16(load16(scores + i), highest);
    highest = splat16(max_of_lanes(highest));
    V16 sum = zero16();
    for (int i = 0; i < end; i += LANES) {
        const V16 e = exp16(load16(scores + i) - highest);
        store16(scores + i, e);
        sum = sum + e;
    }
    return 1.f / sum_of_lanes(sum);
}

// ROWS pairs of token and head, token by token, from the pair `first` on. They share each load of keys and of values.
template <int ROWS> void attend_rows(const mlk::Attention& job, int first) {
    const int64_t size = padded(job.head_dim);
    alignas(64) float queries[ROWS * LARGEST_HEAD], mixed[ROWS * LARGEST_HEAD];
    int length[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const int token = (first + r) / job.heads, head = (first + r) % job.heads;
        const float* q = job.queries + token * job.query_stride + head * job.head_dim;
        for (int d = 0; d < job.head_dim; d++) queries[r * size + d] = q[d] * job.query_scale;
        length[r] = job.position + token + 1;
    }
    const int blocks = (length[ROWS - 1] + LANES - 1) / LANES;
    const int64_t stride = int64_t{blocks} * LANES;
    score<ROWS>(queries, size, job, blocks);
    float inverse[ROWS];
    for (int r = 0; r < ROWS; r++) inverse[r] = softmax(job.scores + r * stride, length[r]);
    mix<ROWS, false>(job.scores, stride, job, 0, length[0], mixed);  // the first token sees least
    for (int r = 0; r < ROWS; r++) {
        const int token = (first + r) / job.heads, head = (first + r) % job.heads;
        float* own = mixed + r * size;
        if (length[r] > length[0]) mix<1, true>(job.scores + r * stride, stride, job, length[0], length[r], own);
        float* out = job.out + token * job.out_stride + head * job.head_dim;
        for (int d = 0; d < job.head_dim; d++) out[d] = own[d] * inverse[r];
    }
}

void attend(const mlk::Attention& job) {
    const int pairs = job.tokens * job.heads;
    for (int i = 0, height; i < pairs; i += height) {
        height = height_at(i, pairs);
        with_height(height, [&](auto rows) MLK_LAMBDA { attend_rows<decltype(rows)::value>(job, i); });
    }
}

}  // namespace
