// Many rows do not wait for one another at all: they are cut into bundles, and each goes through all layers by itself.
// Where a prompt spans bundles, the later one follows a layer behind, when the earlier one's keys are stored; bundles
// are begun in order, so nobody waits for one that has not begun.
#include <algorithm>

#include "rules.h"
#include "step.h"

namespace mlk {

namespace {

// Rows of a bundle. Weights that lie in the last cache may be read for a few rows; from memory they must be worth it.
constexpr int64_t IN_CACHE = int64_t{24} << 20;  // bytes of weights
constexpr int FEWEST_CACHED = 8, FEWEST_STREAMED = 64, BUNDLE = 24, LARGEST_BUNDLE = 96;

// The outputs among some rows: their place in the list.
Rows outputs_of(const mlk_step& s, Rows rows) {
    const int32_t* end = s.output_rows + s.outputs;
    const int32_t* from = std::lower_bound(s.output_rows, end, rows.first);
    const int32_t* to = std::lower_bound(from, end, rows.first + rows.count);
    return {static_cast<int>(from - s.output_rows), static_cast<int>(to - from)};
}

void wait_for_layer(Model& m, int bundle, int layer) {
    std::atomic<uint32_t>& progress = m.progress[bundle];
    constexpr int SPINS = 2000;
    for (uint32_t p; (p = progress.load(std::memory_order_acquire)) <= static_cast<uint32_t>(layer);)
        m.team.parking.wait_while(progress, p, SPINS);
}

void multiply_all(Model& m, Own& own, Kind kind, int layer, const float* x, Rows rows) {
    const ProductAt next = after(m, kind, layer);
    multiply(m, own, kind, layer, x, rows, 0, weight_of(m, kind, layer).panels,
             weight_of(m, next.kind, next.layer).data);
}

// The tokens of each sequence among some rows.
void attend_all(Model& m, Own& own, int layer, Rows rows) {
    const int32_t* slots = m.step.slots + rows.first;
    for (int r = 0, count; r < rows.count; r += count) {
        for (count = 1; r + count < rows.count && slots[r + count] == slots[r];) count++;
        for (int kv = 0; kv < m.w->shape.kv_heads; kv++)
            attend(m, own, layer, {rows.first + r, count}, kv, 0, m.w->group);
    }
}

void bundle_part(Model& m, Own& own, int bundle, Kind kind, int layer, Rows rows) {
    const float* x = m.x.floats() + int64_t{rows.first} * m.w->d_model;
    const bool follows = bundle && m.step.slots[rows.first] == m.step.slots[rows.first - 1];
    switch (kind) {
        case PLACE:
            for (int r = 0; r < rows.count; r++) place_row(m, layer, rows.first + r);
            break;
        case ATTEND:
            if (follows) wait_for_layer(m, bundle - 1, layer);
            m.progress[bundle].store(static_cast<uint32_t>(layer + 1));
            m.team.parking.wake(m.progress[bundle]);
            attend_all(m, own, layer, rows);
            break;
        case SETTLE_ATTENTION:
        case SETTLE_FEED_FORWARD:
            for (int r = 0; r < rows.count; r++) settle(m, kind, layer, rows.first + r);
            break;
        default: {
            const Gains gains = gains_before(m, kind, layer);
            if (gains.gain) norm_rows(m, x, gains, rows.count, own.normed.floats());
            multiply_all(m, own, kind, layer, gains.gain ? own.normed.floats() : x, rows);
        }
    }
}

void bundle_piece(void* context, int thread, int, int bundle) {
    Model& m = *static_cast<Model*>(context);
    Own& own = m.own[thread];
    const Rows rows = {m.bundles[bundle], m.bundles[bundle + 1] - m.bundles[bundle]};
    own.normed_for = -1;
    for (int r = 0; r < rows.count; r++) embed(m, rows.first + r);
    for (int layer = 0; layer < m.w->shape.layers; layer++)
        for (int part = 0; part < m.w->part_count; part++) bundle_part(m, own, bundle, m.w->parts[part], layer, rows);
    const Rows outputs = outputs_of(m.step, rows);
    norm_outputs(m, outputs, own.normed.floats());
    multiply_all(m, own, HEAD, 0, own.normed.floats(), outputs);
    for (int o = 0; o < outputs.count; o++) choose_output(m, own, outputs.first + o);
}

// Multiply-adds of a row's layers, of its logits, and of attending to one position, whose short sums and exponentials
// take half as long again.
struct Costs {
    double row, output, position;
};

Costs costs_of(const Model& m) {
    const mlk_shape& s = m.w->shape;
    double row = 0;
    for (Kind kind : {QKV, OUTPUT, UP, DOWN}) {
        const Weight& w = weight_of(m, kind, 0);
        row += 1.0 * s.layers * w.inputs * w.outputs;
    }
    return {row, 1.0 * m.w->head.inputs * m.w->head.outputs, 3.0 * s.layers * s.heads * s.head_dim};
}

}  // namespace

int bundles_of(const Model& m, int rows) {
    const int threads = m.team.size(), fewest = m.w->bytes <= IN_CACHE ? FEWEST_CACHED : FEWEST_STREAMED;
    if (rows < fewest * threads) return 0;
    const int usual = std::max(fewest, BUNDLE);
    const int rounds = std::max(1, rows / (usual * threads));  // bundles of each thread
    return std::max(threads * std::min(rounds, 4), (rows + LARGEST_BUNDLE - 1) / LARGEST_BUNDLE);
}

// Where the bundles begin: each costs about the same. One that takes up a prompt begins at a block of 16 keys: the
// earlier one reads its last block whole, and what is behind its own positions there, though it is never used, must not
// be written meanwhile.
void run_bundles(Model& m, int count) {
    const mlk_step& s = m.step;
    const Costs costs = costs_of(m);
    double all = costs.row * s.rows + costs.output * s.outputs, before = 0;
    for (int r = 0; r < s.rows; r++) all += costs.position * s.positions[r];
    int found = 0, output = 0, next = 1;
    m.bundles[0] = 0;
    for (int r = 0; r < s.rows; r++) {
        for (; next < count && before >= all * next / count; next++) {
            int row = r;
            while (row > m.bundles[found] && s.slots[row] == s.slots[row - 1] && s.positions[row] % LANES) row--;
            if (row > m.bundles[found]) m.bundles[++found] = row;
        }
        before += costs.row + costs.position * s.positions[r];
        if (output < s.outputs && s.output_rows[output] == r) before += costs.output, output++;
    }
    m.bundles[++found] = s.rows;
    for (int b = 0; b < found; b++) m.progress[b].store(0, std::memory_order_relaxed);
    m.team.run(&found, 1, bundle_piece, &m);
}

}  // namespace mlk
