// Attention over a slot's keys and values: scores, softmax, mixed values.
#pragma once

#include "product.h"

namespace {

// scores = queries . keys of 16 positions in each panel, from the block `first` on, (rows, blocks * 16)
template <int ROWS> void score(const float* queries, int64_t stride, const mlk::Attention& job, int first, int blocks) {
    constexpr int PANELS = PANELS_OF[ROWS];
    const int64_t block = int64_t{job.head_dim} * LANES;
    Tile t = {queries, stride,  nullptr, block * 4, LANES * 4, job.head_dim, nullptr, int64_t{blocks} * LANES,
              LANES,   nullptr, 0};
    int b = 0;
    auto at = [&](int i) MLK_LAMBDA {
        t.weights = reinterpret_cast<const char*>(job.strip.keys + (first + i) * block);
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

// mixed += weights . values of the positions from `start` to `end`, (rows, padded head_dim); weights are those from the
// position `origin` on.
template <int ROWS, bool CARRY>
void mix(const float* weights, int64_t stride, const mlk::Attention& job, int origin, int start, int end,
         float* mixed) {
    constexpr int PANELS = PANELS_OF[ROWS];
    const int64_t size = padded(job.head_dim), panels = size / LANES;
    const float* values = job.strip.values + int64_t{start} * size;
    Tile t = {weights + (start - origin),
              stride,
              nullptr,
              LANES * 4,
              size * 4,
              end - start,
              nullptr,
              size,
              LANES,
              nullptr,
              0};
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

// exp(score - highest) of the scores from `start` to `length`, in place, and 0 around them; returns one over their sum.
float softmax(float* scores, int start, int length) {
    const int end = static_cast<int>(padded(length));
    for (int i = 0; i < start; i++) scores[i] = -__builtin_inff();
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

// ROWS pairs of token and head, token by token, from the pair `first` on. They share each load of keys and of values
// that all of them see.
template <int ROWS> void attend_rows(const mlk::Attention& job, int first) {
    const int64_t size = padded(job.head_dim);
    alignas(64) float queries[ROWS * mlk::LARGEST_HEAD], mixed[ROWS * mlk::LARGEST_HEAD];
    int start[ROWS], length[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const int token = (first + r) / job.heads, head = (first + r) % job.heads;
        const float* q = job.queries + token * job.query_stride + head * job.head_dim;
        for (int d = 0; d < job.head_dim; d++) queries[r * size + d] = q[d] * job.query_scale;
        length[r] = job.position + token + 1;
        start[r] = job.window && length[r] > job.window ? length[r] - job.window : 0;
    }
    const int begin = start[0] / LANES, blocks = (length[ROWS - 1] + LANES - 1) / LANES - begin;
    const int origin = begin * LANES;  // lanes are those of a sum from position 0
    const int64_t stride = int64_t{blocks} * LANES;
    score<ROWS>(queries, size, job, begin, blocks);
    float inverse[ROWS];
    for (int r = 0; r < ROWS; r++) inverse[r] = softmax(job.scores + r * stride, start[r] - origin, length[r] - origin);
    // The first token sees the earliest positions, and the last one the latest.
    const int from = start[ROWS - 1], to = length[0];
    const bool is_shared = from < to, is_split = start[0] < from;
    if (is_shared && is_split)
        for (int r = 0; r < ROWS; r++)
            mix<1, false>(job.scores + r * stride, stride, job, origin, start[r], from, mixed + r * size);
    if (is_shared && is_split) mix<ROWS, true>(job.scores, stride, job, origin, from, to, mixed);
    else if (is_shared) mix<ROWS, false>(job.scores, stride, job, origin, from, to, mixed);
    for (int r = 0; r < ROWS; r++) {
        const int token = (first + r) / job.heads, head = (first + r) % job.heads;
        const float* weights = job.scores + r * stride;
        float* own = mixed + r * size;
        if (!is_shared) mix<1, false>(weights, stride, job, origin, start[r], length[r], own);
        else if (length[r] > to) mix<1, true>(weights, stride, job, origin, to, length[r], own);
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
