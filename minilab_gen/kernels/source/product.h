// Products of rows with panels: one micro-kernel, in sizes that fill the registers. A tile is ROWS by PANELS * 16
// chains.
#pragma once

#include <type_traits>

#include "backend.h"
#include "functions.h"

namespace {

// The tallest tile in rows, and how many panels a tile of so many rows takes at once. Enough chains to hide the latency
// of fma (8 to 10 registers of them), and no more registers than there are: with AVX2, 6 by 16 are 12 registers of
// chains, 2 of weights and 1 for the row's number. Without fma a chain's step is long, and nothing waits.
#if defined(MLK_BACKEND_AVX512)
constexpr int TALLEST = 6, PANELS_OF[7] = {0, 8, 4, 4, 4, 4, 4};
#elif defined(MLK_BACKEND_PLAIN)
constexpr int TALLEST = 2, PANELS_OF[7] = {0, 1, 1, 1, 1, 1, 1};
#else
constexpr int TALLEST = 6, PANELS_OF[7] = {0, 4, 2, 2, 1, 1, 1};
#endif

// So many tiles widen narrow weights as they go, which the ports that multiply hardly notice; more share one widening.
constexpr int FEW_TILES = 4;

// Where a tile reads and writes. Strides of weights in bytes, of rows in floats.
struct Tile {
    const float* x;
    int64_t x_stride;
    const char* weights;
    int64_t panel_stride, k_stride;
    int inputs;
    float* out;
    int64_t out_row, out_panel;
    const char* ahead;  // what the next tiles will read: so many cache lines are fetched meanwhile, evenly
    int ahead_lines;
};

template <int TYPE, int ROWS, int PANELS, bool CARRY = false> MLK_INLINE void compute(const Tile& t) {
    V16 chain[ROWS][PANELS];
    MLK_EACH(r, ROWS)
        MLK_EACH(p, PANELS) chain[r][p] = CARRY ? load16(t.out + r * t.out_row + p * t.out_panel) : zero16();
    const char* weights = t.weights;
    auto advance = [&](int k) MLK_LAMBDA {
        V16 w[PANELS];
        MLK_EACH(p, PANELS) w[p] = load_weights<TYPE>(weights + p * t.panel_stride);
        MLK_EACH(r, ROWS) {
            const V16 x = splat16(t.x[r * t.x_stride + k]);
            MLK_EACH(p, PANELS) chain[r][p] = fma16(x, w[p], chain[r][p]);
        }
        weights += t.k_stride;
    };
    int k = 0;
    const int every = t.ahead_lines ? t.inputs / t.ahead_lines : 0;
    for (int line = 0; line < t.ahead_lines; line++) {
        __builtin_prefetch(t.ahead + int64_t{line} * 64);
        for (const int end = k + every; k < end; k++) advance(k);
    }
    for (; k < t.inputs; k++) advance(k);
    MLK_EACH(r, ROWS)
        MLK_EACH(p, PANELS) store16(t.out + r * t.out_row + p * t.out_panel, chain[r][p]);
}

// Calls f with the rows as a constant; only tiles that the back end has are compiled.
template <class F> MLK_INLINE void with_height(int rows, F f) {
    switch (rows) {
        case 1: return f(std::integral_constant<int, 1>());
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, (TALLEST < 3 ? TALLEST : 3)>());
        case 4: return f(std::integral_constant<int, (TALLEST < 4 ? TALLEST : 4)>());
        case 5: return f(std::integral_constant<int, (TALLEST < 5 ? TALLEST : 5)>());
        default: return f(std::integral_constant<int, TALLEST>());
    }
}
template <int TYPE, int PANELS> MLK_INLINE void compute_rows(int rows, const Tile& t) {
    with_height(rows, [&](auto height) MLK_LAMBDA { compute<TYPE, decltype(height)::value, PANELS>(t); });
}

// What becomes of a tile's sums, (rows, panels, 16).
MLK_INLINE void finish(const mlk::Product& job, const float* sums, int row, int rows, int panel, int panels) {
    for (int r = 0; r < rows; r++) {
        float* out = job.out + (row + r) * job.out_stride;
        float* gate = job.gates + (row + r) * LANES;
        for (int p = panel; p < panel + panels; p++, sums += LANES) {
            V16 sum = load16(sums);
            if (job.weight->scale) sum = sum * load16(job.weight->scale + p * LANES);
            if (job.bias) sum = sum + load16(job.bias + p * LANES);
            if (job.epilogue == mlk::STORE) {
                store16(out + p * LANES, sum);
            } else if (job.epilogue == mlk::ADD) {
                store16(out + p * LANES, load16(out + p * LANES) + sum);
            } else if (job.epilogue == mlk::ACTIVATE) {
                store16(out + p * LANES, activated(job.activation, sum));
            } else if (p % 2 == 0) {
                store16(gate, activated(job.activation, sum));
            } else {
                store16(out + p / 2 * LANES, load16(gate) * sum);
            }
        }
    }
}

// The rows of a tile from `row` on: all tiles are nearly equally tall, since a short one costs as much as a tall one.
MLK_INLINE int height_at(int row, int rows) {
    const int left = rows - row, tiles = (left + TALLEST - 1) / TALLEST;
    return (left + tiles - 1) / tiles;
}

// Few rows: weights are read once, so how fast they come is all that counts.
template <int TYPE, int ROWS> void few_rows(const mlk::Product& job) {
    constexpr int PANELS = PANELS_OF[ROWS];
    const mlk::Weight& w = *job.weight;
    alignas(64) float sums[ROWS * PANELS * LANES];
    Tile t = {job.x, job.x_stride, nullptr, w.panel_bytes, BYTES_OF_16[TYPE], w.inputs, sums, PANELS * LANES,
              LANES, nullptr,      0};
    int p = job.first;
    for (; p + PANELS <= job.last; p += PANELS) {
        t.weights = w.data + p * w.panel_bytes;
        compute<TYPE, ROWS, PANELS>(t);
        finish(job, sums, 0, ROWS, p, PANELS);
    }
    t.out_row = LANES;
    for (; p < job.last; p++) {
        t.weights = w.data + p * w.panel_bytes;
        compute<TYPE, ROWS, 1>(t);
        finish(job, sums, 0, ROWS, p, 1);
    }
}

template <int TYPE> void widen(const mlk::Weight& w, int panel, int panels, float* to) {
    const char* from = w.data + panel * w.panel_bytes;
    for (int64_t k = 0; k < int64_t{w.inputs} * panels; k++)
        store16(to + k * LANES, load_weights<TYPE>(from + k * BYTES_OF_16[TYPE]));
}

// Many rows: a group of panels stays in the nearest cache while all rows pass, and the next group is fetched meanwhile.
template <int TYPE, int PANELS> void rows_by_panels(const mlk::Product& job, int panel) {
    const mlk::Weight& w = *job.weight;
    alignas(64) float sums[TALLEST * PANELS * LANES];
    const char* weights = w.data + panel * w.panel_bytes;
    const char* ahead = panel + PANELS < job.last ? weights + w.panel_bytes * PANELS : job.next;
    const int lines = static_cast<int>(w.panel_bytes * PANELS / 64), tiles = (job.rows + TALLEST - 1) / TALLEST;
    const int share = !ahead ? 0 : lines / tiles < w.inputs ? lines / tiles : w.inputs;
    const bool is_wide = TYPE == F32 || tiles <= FEW_TILES;
    if (!is_wide) widen<TYPE>(w, panel, PANELS, job.wide);
    for (int row = 0, height; row < job.rows; row += height, ahead += int64_t{share} * 64) {
        height = height_at(row, job.rows);
        Tile t = {job.x + row * job.x_stride,
                  job.x_stride,
                  weights,
                  w.panel_bytes,
                  BYTES_OF_16[TYPE],
                  w.inputs,
                  sums,
                  PANELS * LANES,
                  LANES,
                  ahead,
                  share};
        if (is_wide) {
            compute_rows<TYPE, PANELS>(height, t);
        } else {
            t.weights = reinterpret_cast<const char*>(job.wide);
            t.panel_stride = int64_t{w.inputs} * BYTES_OF_16[F32];
            t.k_stride = BYTES_OF_16[F32];
            compute_rows<F32, PANELS>(height, t);
        }
        finish(job, sums, row, height, panel, PANELS);
    }
}

template <int TYPE> void product_of(const mlk::Product& job) {
    constexpr int PANELS = PANELS_OF[TALLEST], FEW = TALLEST < 3 ? TALLEST : 3;
    if (job.rows <= FEW) {
        if (job.rows > 0)
            with_height(job.rows, [&](auto rows) MLK_LAMBDA {
                if constexpr (decltype(rows)::value <= FEW) few_rows<TYPE, decltype(rows)::value>(job);
            });
        return;
    }
    int p = job.first;
    for (; p + PANELS <= job.last; p += PANELS) rows_by_panels<TYPE, PANELS>(job, p);
    if constexpr (PANELS > 1)
        for (; p < job.last; p++) rows_by_panels<TYPE, 1>(job, p);
}

void product(const mlk::Product& job) {
    switch (job.weight->type) {
        case F32: return product_of<F32>(job);
        case BF16: return product_of<BF16>(job);
        default: return product_of<INT8>(job);
    }
}

}  // namespace
