// The parts of a layer, and of what follows the last one, over the rows of a step.
#include "rules.h"
#include "step.h"
#include "weights.h"

namespace mlk {

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

void attend(Model& m, Own& own, int layer, Run tokens, int kv, int first, int last) {
    const mlk_shape& s = m.w->shape;
    const int64_t head = (int64_t{kv} * m.w->group + first) * s.head_dim;
    m.backend->attend({m.qkv_rows.floats() + int64_t{tokens.first} * m.w->qkv + head,
                       m.mixed_rows.floats() + int64_t{tokens.first} * m.w->mixed + head, m.w->qkv, m.w->mixed,
                       tokens.count, last - first, s.head_dim, m.step.positions[tokens.first], m.w->query_scale,
                       m.strip_of(m.step.slots[tokens.first], layer, kv), own.scores.floats()});
}

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

ProductAt after(const Model& m, Kind kind, int layer) {
    switch (kind) {
        case QKV: return {OUTPUT, layer};
        case OUTPUT: return {GATE_UP, layer};
        case GATE_UP: return {DOWN, layer};
        case DOWN: return layer + 1 < m.w->shape.layers ? ProductAt{QKV, layer + 1} : ProductAt{HEAD, 0};
        default: return {QKV, 0};
    }
}

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

}  // namespace mlk
