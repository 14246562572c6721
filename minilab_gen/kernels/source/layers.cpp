// The parts of a layer, and of what follows the last one, over the rows of a step.
#include "logprobs.h"
#include "rules.h"
#include "step.h"
#include "weights.h"

namespace mlk {

void embed(Model& m, int row) {
    const Weights& w = *m.w;
    float* x = m.x.floats() + int64_t{row} * w.d_model;
    unpack_row(w.shape.tied ? w.head : w.table, m.step.ids[row], x);
    const float scale = static_cast<float>(w.shape.embedding_scale);
    for (int k = 0; scale != 1.f && k < w.shape.d_model; k++) x[k] *= scale;
    if (w.positions) {
        const float* learned = w.positions + int64_t{m.step.positions[row]} * w.d_model;
        for (int k = 0; k < w.shape.d_model; k++) x[k] += learned[k];
    }
    for (int k = w.shape.d_model; k < w.d_model; k++) x[k] = 0.f;
}

Gains gains_before(const Model& m, Kind kind, int layer) {
    const Layer& y = m.w->layers[layer];
    switch (kind) {
        case QKV: return {y.attention_norm, y.attention_norm_bias};
        case UP: return {y.feed_forward_norm, y.feed_forward_norm_bias};
        case HEAD: return {m.w->norm, m.w->norm_bias};
        default: return {nullptr, nullptr};
    }
}

void norm_rows(const Model& m, const float* x, Gains gains, int rows, float* to) {
    for (int64_t r = 0; r < rows; r++)
        m.backend->norm({x + r * m.w->d_model, to + r * m.w->d_model, gains.gain, gains.bias, m.w->shape.d_model,
                         static_cast<float>(m.w->shape.norm_eps)});
}

// The angles of a position in a layer; null where it has no rope.
static Angles angles_at(const Weights& w, int layer, int64_t position) {
    const int rope = w.layers[layer].rope;
    if (rope < 0 || !w.shape.rope_dim) return {};
    const int64_t row = position * (w.shape.rope_dim / 2);
    return {w.angles[rope].cosine + row, w.angles[rope].sine + row};
}

void place(Model& m, int layer, int row, int kv) {
    const mlk_shape& s = m.w->shape;
    const Layer& y = m.w->layers[layer];
    float* qkv = m.qkv_rows.floats() + int64_t{row} * m.w->qkv;
    const int position = m.step.positions[row];
    const Angles angles = angles_at(*m.w, layer, position);
    m.backend->place({qkv + int64_t{kv} * m.w->group * s.head_dim, qkv + m.w->queries + int64_t{kv} * s.head_dim,
                      qkv + m.w->queries + m.w->keys + int64_t{kv} * s.head_dim, m.w->group, s.head_dim, position,
                      angles.cosine ? s.rope_dim : 0, angles.cosine, angles.sine, s.head_norm ? y.query_norm : nullptr,
                      s.head_norm ? y.key_norm : nullptr, static_cast<float>(s.norm_eps),
                      m.strip_of(m.step.slots[row], layer, kv)});
}

void place_row(Model& m, int layer, int row) {
    const mlk_shape& s = m.w->shape;
    if (s.row_norm) {
        const Layer& y = m.w->layers[layer];
        float *queries = m.qkv_rows.floats() + int64_t{row} * m.w->qkv, *keys = queries + m.w->queries;
        const float eps = static_cast<float>(s.norm_eps);
        m.backend->norm({queries, queries, y.query_norm, nullptr, s.heads * s.head_dim, eps});
        m.backend->norm({keys, keys, y.key_norm, nullptr, s.kv_heads * s.head_dim, eps});
    }
    for (int kv = 0; kv < s.kv_heads; kv++) place(m, layer, row, kv);
}

void attend(Model& m, Own& own, int layer, Run tokens, int kv, int first, int last) {
    const mlk_shape& s = m.w->shape;
    const int64_t head = (int64_t{kv} * m.w->group + first) * s.head_dim;
    m.backend->attend({m.qkv_rows.floats() + int64_t{tokens.first} * m.w->qkv + head,
                       m.mixed_rows.floats() + int64_t{tokens.first} * m.w->mixed + head, m.w->qkv, m.w->mixed,
                       tokens.count, last - first, s.head_dim, m.step.positions[tokens.first],
                       m.w->layers[layer].window, m.w->query_scale, m.strip_of(m.step.slots[tokens.first], layer, kv),
                       own.scores.floats()});
}

const Weight& weight_of(const Model& m, Kind kind, int layer) {
    const Layer& y = m.w->layers[layer];
    switch (kind) {
        case QKV: return y.qkv;
        case OUTPUT: return y.output;
        case UP: return y.up;
        case DOWN: return y.down;
        default: return m.w->head;
    }
}

ProductAt after(const Model& m, Kind kind, int layer) {
    const Weights& w = *m.w;
    auto is_product = [](Kind k) { return k == QKV || k == OUTPUT || k == UP || k == DOWN; };
    if (kind == HEAD) return {QKV, 0};
    int at = 0;
    while (w.parts[at] != kind) at++;
    while (++at < w.part_count)
        if (is_product(w.parts[at])) return {w.parts[at], layer};
    return layer + 1 < w.shape.layers ? ProductAt{QKV, layer + 1} : ProductAt{HEAD, 0};
}

void multiply(Model& m, Own& own, Kind kind, int layer, const float* x, Rows rows, int first, int last,
              const char* next) {
    const Weight& w = weight_of(m, kind, layer);
    auto product = [&](const float* from, int64_t from_stride, Epilogue epilogue, Scratch& out, int64_t out_stride,
                       const float* bias) {
        m.backend->product({from, from_stride, rows.count, &w, first, last, epilogue, m.w->shape.activation,
                            out.floats() + rows.first * out_stride, out_stride, bias, own.gates.floats(),
                            own.wide.floats(), next});
    };
    const int d_model = m.w->d_model, d_hidden = m.w->d_hidden;
    const float* mixed = m.mixed_rows.floats() + int64_t{rows.first} * m.w->mixed;
    const float* hidden = m.hidden.floats() + int64_t{rows.first} * d_hidden;
    const Layer& y = m.w->layers[layer];
    const Epilogue adding = m.w->settles ? STORE : ADD;
    Scratch& sum = m.w->settles ? m.added : m.x;
    switch (kind) {
        case QKV: return product(x, d_model, STORE, m.qkv_rows, m.w->qkv, y.bias);
        case OUTPUT: return product(mixed, m.w->mixed, adding, sum, d_model, y.output_bias);
        case UP: return product(x, d_model, m.w->shape.gated ? GATE : ACTIVATE, m.hidden, d_hidden, y.up_bias);
        case DOWN: return product(hidden, d_hidden, adding, sum, d_model, y.down_bias);
        default: return product(x, d_model, STORE, m.logits, int64_t{w.panels} * LANES, nullptr);
    }
}

void settle(Model& m, Kind kind, int layer, int row) {
    const Layer& y = m.w->layers[layer];
    const float* gain = kind == SETTLE_ATTENTION ? y.attention_post_norm : y.feed_forward_post_norm;
    const float scale = static_cast<float>(m.w->shape.residual_scale);
    float *x = m.x.floats() + int64_t{row} * m.w->d_model, *added = m.added.floats() + int64_t{row} * m.w->d_model;
    if (gain) norm_rows(m, added, {gain, nullptr}, 1, added);
    for (int k = 0; k < m.w->shape.d_model; k++) x[k] += added[k] * scale;
}

void norm_outputs(const Model& m, Rows outputs, float* to) {
    for (int o = 0; o < outputs.count; o++)
        norm_rows(m, m.x.floats() + int64_t{m.step.output_rows[outputs.first + o]} * m.w->d_model,
                  gains_before(m, HEAD, 0), 1, to + int64_t{o} * m.w->d_model);
}

namespace {

// The logprobs of an output: of the chosen token, unless another is judged.
void list_output(const Model& m, Own& own, const float* logits, int output, int chosen) {
    const mlk_listing& listing = *m.step.listing;
    const int count = listing.counts[output], judged = listing.judged[output];
    if (count < 0) return;
    const int64_t first = int64_t{output} * listing.most;
    logprobs(*m.backend, logits, m.w->shape.vocab,
             {judged < 0 ? chosen : judged, count, listing.of_tokens + output, listing.ids + first,
              listing.of_ids + first},
             own.draw);
}

}  // namespace

void choose_output(Model& m, Own& own, int output) {
    const int vocab = m.w->shape.vocab;
    float* logits = m.logits.floats() + int64_t{output} * m.w->head.panels * LANES;
    const mlk_step& s = m.step;
    const float divisor = static_cast<float>(m.w->shape.logit_divisor);
    if (divisor != 1.f) m.backend->divide(logits, vocab, divisor);
    int chosen = MLK_NOT_FINITE;
    if (s.tokens) {
        chosen = choose(*m.backend, logits, vocab, s.samplers ? s.samplers[output] : nullptr, own.draw);
        s.tokens[output] = chosen;
    }
    if (s.listing) list_output(m, own, logits, output, chosen);
    if (!s.logits) return;
    float* out = s.logits + int64_t{output} * vocab;
    for (int i = 0; i < vocab; i++) {  // NaN has a sign and a payload that differ by processor; one stands for all
        const float x = logits[i];
        out[i] = x == x ? x : __builtin_nanf("");
    }
}

}  // namespace mlk
