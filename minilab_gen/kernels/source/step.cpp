// A step: rows of many sequences through all layers.
//
// Few rows share each product: a stage's panels are handed out in pieces, and the next stage begins when they are done.
// Many rows do not wait for one another at all: they are cut into bundles, and each goes through all layers by itself.
// Where a prompt spans bundles, the later one follows a layer behind, when the earlier one's keys are stored; bundles
// are begun in order, so nobody waits for one that has not begun.
#include <algorithm>
#include <cstring>

#include "model.h"
#include "rules.h"
#include "weights.h"

namespace mlk {

namespace {

enum Kind : int { QKV, PLACE, ATTEND, OUTPUT, GATE_UP, DOWN, HEAD, CHOOSE };
constexpr int STAGES_OF_A_LAYER = 6;

// Rows of a bundle. Weights that lie in the last cache may be read for a few rows; from memory they must be worth it.
constexpr int64_t IN_CACHE = int64_t{24} << 20;  // bytes of weights
constexpr int FEWEST_CACHED = 8, FEWEST_STREAMED = 64, BUNDLE = 24, LARGEST_BUNDLE = 96;
constexpr int UNIT = 12;   // prompt tokens that attend as one piece
constexpr int LONG = 512;  // positions from which a lone token's heads are worth splitting

int check(const Model& m, const mlk_step& s) {
    if (s.rows < 1 || s.outputs < 0) return fail("a step must have at least 1 row, got %d", s.rows);
    for (int r = 0; r < s.rows; r++) {
        if (s.ids[r] < 0 || s.ids[r] >= m.w->shape.vocab)
            return fail("ids must be below %d, got %d in row %d", m.w->shape.vocab, s.ids[r], r);
        if (s.slots[r] < 0 || s.slots[r] >= m.slots)
            return fail("slots must be below %d, got %d in row %d", m.slots, s.slots[r], r);
        if (s.positions[r] < 0 || s.positions[r] >= m.w->shape.context)
            return fail("positions must be below the context of %d, got %d in row %d", m.w->shape.context,
                        s.positions[r], r);
        if (r && s.slots[r] == s.slots[r - 1] && s.positions[r] != s.positions[r - 1] + 1)
            return fail("a slot's positions must ascend by 1, got %d after %d in row %d", s.positions[r],
                        s.positions[r - 1], r);
    }
    for (int o = 0; o < s.outputs; o++)
        if (s.output_rows[o] < (o ? s.output_rows[o - 1] + 1 : 0) || s.output_rows[o] >= s.rows)
            return fail("output rows must ascend and be below %d, got %d", s.rows, s.output_rows[o]);
    return 0;
}

// The rows of each sequence. A slot whose rows do not stand together is an error.
int find_runs(Model& m) {
    const mlk_step& s = m.step;
    m.run_count = 0;
    for (int r = 0; r < s.rows; r++) {
        if (r && s.slots[r] == s.slots[r - 1]) m.runs[m.run_count - 1].count++;
        else m.runs[m.run_count++] = {r, 1};
    }
    uint8_t* seen = reinterpret_cast<uint8_t*>(m.lists.floats()) + m.lists_bytes;
    memset(seen, 0, static_cast<size_t>(m.slots));
    for (int i = 0; i < m.run_count; i++) {
        uint8_t& slot = seen[s.slots[m.runs[i].first]];
        if (slot) return fail("the rows of slot %d must stand together", s.slots[m.runs[i].first]);
        slot = 1;
    }
    return 0;
}

void embed(Model& m, int row) {
    float* x = m.x.floats() + int64_t{row} * m.w->d_model;
    unpack_row(m.w->shape.tied ? m.w->head : m.w->table, m.step.ids[row], x);
    for (int k = m.w->shape.d_model; k < m.w->d_model; k++) x[k] = 0.f;
}

void norm_rows(const Model& m, const float* x, const float* gain, int rows, float* to) {
    for (int64_t r = 0; r < rows; r++)
        m.backend->norm({x + r * m.w->d_model, to + r * m.w->d_model, gain, m.w->shape.d_model,
                         static_cast<float>(m.w->shape.norm_eps)});
}

// Keys and values of one row and key head go into its slot; its queries are turned.
void place(Model& m, int layer, int row, int kv) {
    const mlk_shape& s = m.w->shape;
    const Layer& y = m.w->layers[layer];
    float* qkv = m.qkv_rows.floats() + int64_t{row} * m.w->qkv;
    const int64_t half = s.head_dim / 2, position = m.step.positions[row];
    m.backend->place({qkv + int64_t{kv} * m.w->group * s.head_dim, qkv + m.w->queries + int64_t{kv} * s.head_dim,
                      qkv + m.w->queries + m.w->keys + int64_t{kv} * s.head_dim, m.w->group, s.head_dim,
                      static_cast<int>(position), m.w->cosine + position * half, m.w->sine + position * half,
                      s.head_norm ? y.query_norm : nullptr, s.head_norm ? y.key_norm : nullptr,
                      static_cast<float>(s.norm_eps), m.strip_of(m.step.slots[row], layer, kv)});
}

// Heads from `first` to `last` of a key head, for some tokens of one sequence.
void attend(Model& m, Own& own, int layer, Run tokens, int kv, int first, int last) {
    const mlk_shape& s = m.w->shape;
    const int64_t head = (int64_t{kv} * m.w->group + first) * s.head_dim;
    m.backend->attend({m.qkv_rows.floats() + int64_t{tokens.first} * m.w->qkv + head,
                       m.mixed_rows.floats() + int64_t{tokens.first} * m.w->mixed + head, m.w->qkv, m.w->mixed,
                       tokens.count, last - first, s.head_dim, m.step.positions[tokens.first], m.w->query_scale,
                       m.strip_of(m.step.slots[tokens.first], layer, kv), own.scores.floats()});
}

struct Rows {
    int first, count;
};

const Weight& weight_of(const Model& m, Kind kind, int layer) {
    const Layer& y = m.w->layers[layer];
    switch (kind) {
        case QKV: return y.qkv;
        case OUTPUT: return y.output;
        case GATE_UP: return y.gate_up;
        case DOWN: return y.down;
        default: return m.w->head;
    }
}

struct ProductAt {
    Kind kind;
    int layer;
};

// The product that comes next; after the head, the first of the next step.
ProductAt after(const Model& m, Kind kind, int layer) {
    switch (kind) {
        case QKV: return {OUTPUT, layer};
        case OUTPUT: return {GATE_UP, layer};
        case GATE_UP: return {DOWN, layer};
        case DOWN: return layer + 1 < m.w->shape.layers ? ProductAt{QKV, layer + 1} : ProductAt{HEAD, 0};
        default: return {QKV, 0};
    }
}

// Panels `first` to `last` of a product; `next` is what the thread will read afterwards.
void multiply(Model& m, Own& own, Kind kind, int layer, const float* x, Rows rows, int first, int last,
              const char* next) {
    const Weight& w = weight_of(m, kind, layer);
    auto product = [&](const float* from, int64_t from_stride, Epilogue epilogue, Scratch& out, int64_t out_stride,
                       const float* bias) {
        m.backend->product({from, from_stride, rows.count, &w, first, last, epilogue,
                            out.floats() + rows.first * out_stride, out_stride, bias, own.gates.floats(),
                            own.wide.floats(), next});
    };
    const float* mixed = m.mixed_rows.floats() + int64_t{rows.first} * m.w->mixed;
    const float* hidden = m.hidden.floats() + int64_t{rows.first} * m.w->d_hidden;
    const Layer& y = m.w->layers[layer];
    const float* bias = m.w->shape.qkv_bias ? y.bias : nullptr;
    const float* output_bias = m.w->shape.output_bias ? y.output_bias : nullptr;
    switch (kind) {
        case QKV: return product(x, m.w->d_model, STORE, m.qkv_rows, m.w->qkv, bias);
        case OUTPUT: return product(mixed, m.w->mixed, ADD, m.x, m.w->d_model, output_bias);
        case GATE_UP: return product(x, m.w->d_model, SILU_TIMES, m.hidden, m.w->d_hidden, nullptr);
        case DOWN: return product(hidden, m.w->d_hidden, ADD, m.x, m.w->d_model, nullptr);
        default: return product(x, m.w->d_model, STORE, m.logits, int64_t{w.panels} * LANES, nullptr);
    }
}

// The outputs among some rows: their place in the list.
Rows outputs_of(const mlk_step& s, Rows rows) {
    const int32_t* end = s.output_rows + s.outputs;
    const int32_t* from = std::lower_bound(s.output_rows, end, rows.first);
    const int32_t* to = std::lower_bound(from, end, rows.first + rows.count);
    return {static_cast<int>(from - s.output_rows), static_cast<int>(to - from)};
}

void norm_outputs(const Model& m, Rows outputs, float* to) {
    for (int o = 0; o < outputs.count; o++)
        norm_rows(m, m.x.floats() + int64_t{m.step.output_rows[outputs.first + o]} * m.w->d_model, m.w->norm, 1,
                  to + int64_t{o} * m.w->d_model);
}

void choose_output(Model& m, Own& own, int output) {
    const int vocab = m.w->shape.vocab;
    float* logits = m.logits.floats() + int64_t{output} * m.w->head.panels * LANES;
    const mlk_step& s = m.step;
    if (s.tokens)
        s.tokens[output] = choose(*m.backend, logits, vocab, s.samplers ? s.samplers[output] : nullptr, own.draw);
    if (!s.logits) return;
    float* out = s.logits + int64_t{output} * vocab;
    for (int i = 0; i < vocab; i++) {  // NaN has a sign and a payload that differ by processor; one stands for all
        const float x = logits[i];
        out[i] = x == x ? x : __builtin_nanf("");
    }
}

// Few rows ------------------------------------------------------------------------------------------------------------

// Panels that stay together: a gate's and what it gates.
int width_of(Kind kind) { return kind == GATE_UP ? 2 : 1; }
int panels_of(const Model& m, Kind kind) { return weight_of(m, kind, 0).panels / width_of(kind); }

// How many pieces a product is handed out in: some for each thread, so that one that is late takes fewer.
int pieces_of(const Model& m, Kind kind, int rows) {
    const int panels = panels_of(m, kind), threads = m.team.size();
    const int each = rows <= 3 ? (kind == HEAD ? 8 : 2) : 8;
    return threads == 1 ? 1 : std::min(panels, threads * each);
}
int start_of(const Model& m, Kind kind, int piece) {
    return static_cast<int>(int64_t{panels_of(m, kind)} * piece / m.chunks[kind]) * width_of(kind);
}

// Where the piece begins that a thread will probably take after this one: the others take those between.
const char* piece_after(const Model& m, Kind kind, int layer, int piece) {
    ProductAt at = {kind, layer};
    for (piece += m.team.size(); piece >= m.chunks[at.kind]; at = after(m, at.kind, at.layer)) {
        if (at.kind == HEAD) return nullptr;
        piece -= m.chunks[at.kind];
    }
    const Weight& w = weight_of(m, at.kind, at.layer);
    return w.data + start_of(m, at.kind, piece) * w.panel_bytes;
}

// Normed rows of the residual stream; each thread makes its own once for a stage, which is quicker than to wait.
const float* normed_for(Model& m, Own& own, int stage, const float* gain) {
    const int64_t wanted = m.steps * (m.w->shape.layers * STAGES_OF_A_LAYER + 2) + stage;
    if (own.normed_for != wanted) {
        if (gain) norm_rows(m, m.x.floats(), gain, m.step.rows, own.normed.floats());
        else norm_outputs(m, {0, m.step.outputs}, own.normed.floats());
        own.normed_for = wanted;
    }
    return own.normed.floats();
}

void shared_piece(void* context, int thread, int stage, int piece) {
    Model& m = *static_cast<Model*>(context);
    Own& own = m.own[thread];
    const int layer = std::min(stage / STAGES_OF_A_LAYER, m.w->shape.layers - 1);
    const Kind kind = static_cast<Kind>(stage < m.w->shape.layers * STAGES_OF_A_LAYER
                                            ? stage % STAGES_OF_A_LAYER
                                            : HEAD + stage - m.w->shape.layers * STAGES_OF_A_LAYER);
    const Layer& y = m.w->layers[layer];
    if (kind == PLACE) {
        for (int kv = 0; kv < m.w->shape.kv_heads; kv++) place(m, layer, piece, kv);
    } else if (kind == ATTEND) {
        const int part = piece % m.parts, kv = piece / m.parts % m.w->shape.kv_heads;
        const Run unit = m.units[piece / m.parts / m.w->shape.kv_heads];
        if (!m.chunks[PLACE]) place(m, layer, unit.first, kv);
        attend(m, own, layer, unit, kv, m.w->group * part / m.parts, m.w->group * (part + 1) / m.parts);
    } else if (kind == CHOOSE) {
        choose_output(m, own, piece);
    } else {
        const float* gain = kind == QKV ? y.attention_norm : kind == GATE_UP ? y.feed_forward_norm : nullptr;
        const float* x = gain || kind == HEAD ? normed_for(m, own, stage, gain) : nullptr;
        const Rows rows = {0, kind == HEAD ? m.step.outputs : m.step.rows};
        multiply(m, own, kind, layer, x, rows, start_of(m, kind, piece), start_of(m, kind, piece + 1),
                 piece_after(m, kind, layer, piece));
    }
}

void run_shared(Model& m) {
    const mlk_step& s = m.step;
    const int threads = m.team.size(), kv_heads = m.w->shape.kv_heads;
    int longest = 0;
    m.unit_count = 0;
    for (int i = 0; i < m.run_count; i++) {
        const Run& run = m.runs[i];
        for (int at = 0; at < run.count; at += UNIT)
            m.units[m.unit_count++] = {run.first + at, std::min(UNIT, run.count - at)};
        longest = std::max(longest, s.positions[run.first] + run.count);
    }
    const bool is_split = m.unit_count * kv_heads < threads && longest >= LONG;
    m.parts = is_split ? std::min(m.w->group, threads) : 1;
    for (Kind kind : {QKV, OUTPUT, GATE_UP, DOWN}) m.chunks[kind] = pieces_of(m, kind, s.rows);
    m.chunks[PLACE] = m.run_count < s.rows || m.parts > 1 ? s.rows : 0;  // else a row is placed where it attends
    m.chunks[ATTEND] = m.unit_count * kv_heads * m.parts;
    m.chunks[HEAD] = s.outputs ? pieces_of(m, HEAD, s.outputs) : 0;
    m.chunks[CHOOSE] = s.outputs;
    for (int r = 0; r < s.rows; r++) embed(m, r);
    const int stages = m.w->shape.layers * STAGES_OF_A_LAYER + 2;
    for (int i = 0; i < stages; i++)
        m.stage_pieces[i] = i < stages - 2 ? m.chunks[i % STAGES_OF_A_LAYER] : m.chunks[HEAD + i - (stages - 2)];
    m.team.run(m.stage_pieces, stages, shared_piece, &m);
}

// Many rows -----------------------------------------------------------------------------------------------------------

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

void bundle_piece(void* context, int thread, int, int bundle) {
    Model& m = *static_cast<Model*>(context);
    Own& own = m.own[thread];
    const Rows rows = {m.bundles[bundle], m.bundles[bundle + 1] - m.bundles[bundle]};
    const bool follows = bundle && m.step.slots[rows.first] == m.step.slots[rows.first - 1];
    const int kv_heads = m.w->shape.kv_heads;
    const float* x = m.x.floats() + int64_t{rows.first} * m.w->d_model;
    float* normed = own.normed.floats();
    own.normed_for = -1;
    for (int r = 0; r < rows.count; r++) embed(m, rows.first + r);
    for (int layer = 0; layer < m.w->shape.layers; layer++) {
        const Layer& y = m.w->layers[layer];
        norm_rows(m, x, y.attention_norm, rows.count, normed);
        multiply_all(m, own, QKV, layer, normed, rows);
        for (int r = 0; r < rows.count; r++)
            for (int kv = 0; kv < kv_heads; kv++) place(m, layer, rows.first + r, kv);
        if (follows) wait_for_layer(m, bundle - 1, layer);
        m.progress[bundle].store(static_cast<uint32_t>(layer + 1));
        m.team.parking.wake(m.progress[bundle]);
        for (int r = 0, count; r < rows.count; r += count) {
            for (count = 1;
                 r + count < rows.count && m.step.slots[rows.first + r + count] == m.step.slots[rows.first + r];)
                count++;
            for (int kv = 0; kv < kv_heads; kv++) attend(m, own, layer, {rows.first + r, count}, kv, 0, m.w->group);
        }
        multiply_all(m, own, OUTPUT, layer, nullptr, rows);
        norm_rows(m, x, y.feed_forward_norm, rows.count, normed);
        multiply_all(m, own, GATE_UP, layer, normed, rows);
        multiply_all(m, own, DOWN, layer, nullptr, rows);
    }
    const Rows outputs = outputs_of(m.step, rows);
    norm_outputs(m, outputs, normed);
    multiply_all(m, own, HEAD, 0, normed, outputs);
    for (int o = 0; o < outputs.count; o++) choose_output(m, own, outputs.first + o);
}

// How many bundles the rows make; 0 where they are too few to be cut.
int bundles_of(const Model& m, int rows) {
    const int threads = m.team.size(), fewest = m.w->bytes <= IN_CACHE ? FEWEST_CACHED : FEWEST_STREAMED;
    if (rows < fewest * threads) return 0;
    const int usual = std::max(fewest, BUNDLE);
    const int rounds = std::max(1, rows / (usual * threads));  // bundles of each thread
    return std::max(threads * std::min(rounds, 4), (rows + LARGEST_BUNDLE - 1) / LARGEST_BUNDLE);
}

// Multiply-adds of a row's layers, of its logits, and of attending to one position, whose short sums and exponentials
// take half as long again.
struct Costs {
    double row, output, position;
};

Costs costs_of(const Model& m) {
    const mlk_shape& s = m.w->shape;
    double row = 0;
    for (Kind kind : {QKV, OUTPUT, GATE_UP, DOWN}) {
        const Weight& w = weight_of(m, kind, 0);
        row += 1.0 * s.layers * w.inputs * w.outputs;
    }
    return {row, 1.0 * m.w->head.inputs * m.w->head.outputs, 3.0 * s.layers * s.heads * s.head_dim};
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

// Room for a step of so many rows.
bool make_room(Model& m, int rows, int outputs) {
    const int64_t n = rows, lists = n * 4 + 64;  // runs and units of two numbers, then bundles and progress
    m.lists_bytes = lists * 8;
    bool is_there = m.lists.at_least(lists * 2 + m.slots / 4 + 1) && m.x.at_least(n * m.w->d_model) &&
                    m.qkv_rows.at_least(n * m.w->qkv) && m.mixed_rows.at_least(n * m.w->mixed) &&
                    m.hidden.at_least(n * m.w->d_hidden) &&
                    m.logits.at_least(int64_t{outputs} * m.w->head.panels * LANES);
    const int64_t widest = std::max({m.w->shape.d_model, m.w->shape.d_hidden, m.w->shape.heads * m.w->shape.head_dim});
    for (int t = 0; is_there && t < m.team.made(); t++) {
        Own& own = m.own[t];
        is_there = own.normed.at_least(n * m.w->d_model) && own.gates.at_least(n * LANES) &&
                   own.wide.at_least(widest * LANES * WIDEST) && own.scores.at_least(6 * padded(m.w->shape.context)) &&
                   own.draw.at_least(m.w->shape.vocab);
    }
    if (!is_there) return false;
    m.runs = reinterpret_cast<Run*>(m.lists.floats());
    m.units = m.runs + n + 1;
    m.bundles = reinterpret_cast<int32_t*>(m.units + n + 1);
    m.progress = reinterpret_cast<std::atomic<uint32_t>*>(m.bundles + n + 2);
    return true;
}

}  // namespace

int run_step(Model& m, const mlk_step& step) {
    if (check(m, step)) return -1;
    m.step = step;
    if (!make_room(m, step.rows, step.outputs)) return fail("there is no memory for a step of %d rows", step.rows);
    if (find_runs(m)) return -1;
    m.steps++;
    const int bundles = bundles_of(m, step.rows);
    if (bundles) run_bundles(m, bundles);
    else run_shared(m);
    return 0;
}

}  // namespace mlk
