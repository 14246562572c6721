// Few rows: a stage's panels are handed out in pieces, and the next stage begins when they are done.
#include <algorithm>

#include "step.h"

namespace mlk {

namespace {

constexpr int UNIT = 12;   // prompt tokens that attend as one piece
constexpr int LONG = 512;  // positions from which a lone token's heads are worth splitting

// Panels that stay together: a gate's and what it gates.
int width_of(const Model& m, Kind kind) { return kind == UP && m.w->shape.gated ? 2 : 1; }
int panels_of(const Model& m, Kind kind) { return weight_of(m, kind, 0).panels / width_of(m, kind); }

struct PartAt {
    Kind kind;
    int layer;
};
PartAt part_at(const Model& m, int stage) {
    const int parts = m.w->part_count, layer = stage / parts;
    if (layer < m.w->shape.layers) return {m.w->parts[stage % parts], layer};
    return {stage == layer * parts ? HEAD : CHOOSE, 0};
}

// How many pieces a product is handed out in: some for each thread, so that one that is late takes fewer.
int pieces_of(const Model& m, Kind kind, int rows) {
    const int panels = panels_of(m, kind), threads = m.team.size();
    const int each = rows <= 3 ? (kind == HEAD ? 8 : 2) : 8;
    return threads == 1 ? 1 : std::min(panels, threads * each);
}
int start_of(const Model& m, Kind kind, int piece) {
    return static_cast<int>(int64_t{panels_of(m, kind)} * piece / m.chunks[kind]) * width_of(m, kind);
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
const float* normed_for(Model& m, Own& own, int stage, PartAt part) {
    const Gains gains = gains_before(m, part.kind, part.layer);
    if (!gains.gain) return m.x.floats();
    const int64_t wanted = m.steps * m.stages() + stage;
    if (own.normed_for != wanted) {
        if (part.kind == HEAD) norm_outputs(m, {0, m.step.outputs}, own.normed.floats());
        else norm_rows(m, m.x.floats(), gains, m.step.rows, own.normed.floats());
        own.normed_for = wanted;
    }
    return own.normed.floats();
}

void shared_piece(void* context, int thread, int stage, int piece) {
    Model& m = *static_cast<Model*>(context);
    Own& own = m.own[thread];
    const PartAt at = part_at(m, stage);
    switch (at.kind) {
        case PLACE: return place_row(m, at.layer, piece);
        case ATTEND: {
            const int part = piece % m.parts, kv = piece / m.parts % m.w->shape.kv_heads;
            const Run unit = m.units[piece / m.parts / m.w->shape.kv_heads];
            if (!m.chunks[PLACE]) place(m, at.layer, unit.first, kv);
            return attend(m, own, at.layer, unit, kv, m.w->group * part / m.parts, m.w->group * (part + 1) / m.parts);
        }
        case SETTLE_ATTENTION:
        case SETTLE_FEED_FORWARD: return settle(m, at.kind, at.layer, piece);
        case CHOOSE: return choose_output(m, own, piece);
        default:
            multiply(m, own, at.kind, at.layer, normed_for(m, own, stage, at),
                     {0, at.kind == HEAD ? m.step.outputs : m.step.rows}, start_of(m, at.kind, piece),
                     start_of(m, at.kind, piece + 1), piece_after(m, at.kind, at.layer, piece));
    }
}

}  // namespace

void run_stages(Model& m) {
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
    for (Kind kind : {QKV, OUTPUT, UP, DOWN}) m.chunks[kind] = pieces_of(m, kind, s.rows);
    const bool is_apart = m.run_count < s.rows || m.parts > 1 || m.w->shape.row_norm;
    m.chunks[PLACE] = is_apart ? s.rows : 0;  // else a row is placed where it attends
    m.chunks[SETTLE_ATTENTION] = m.chunks[SETTLE_FEED_FORWARD] = s.rows;
    m.chunks[ATTEND] = m.unit_count * kv_heads * m.parts;
    m.chunks[HEAD] = s.outputs ? pieces_of(m, HEAD, s.outputs) : 0;
    m.chunks[CHOOSE] = s.outputs;
    for (int r = 0; r < s.rows; r++) embed(m, r);
    const int stages = m.stages();
    for (int i = 0; i < stages; i++) m.stage_pieces[i] = m.chunks[part_at(m, i).kind];
    m.team.run(m.stage_pieces, stages, shared_piece, &m);
}

}  // namespace mlk
