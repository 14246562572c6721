// The tensors of a model: which there are, their shapes, and where each goes.
#include <cstring>

#include "model.h"
#include "rope.h"
#include "rules.h"
#include "weights.h"

namespace mlk {

namespace {

// A size of a tensor that a shape gives.
enum Size : int { ONE, VOCAB, CONTEXT, D_MODEL, QUERIES, KEYS, QUERY_GAINS, KEY_GAINS, HIDDEN };

struct Tensor {
    const char* name;
    Size rows, columns;
};

const Tensor TENSORS[MLK_TENSORS] = {
    {"embedding", VOCAB, D_MODEL},
    {"positions", CONTEXT, D_MODEL},
    {"norm", ONE, D_MODEL},
    {"norm bias", ONE, D_MODEL},
    {"head", VOCAB, D_MODEL},
    {"attention norm", ONE, D_MODEL},
    {"attention norm bias", ONE, D_MODEL},
    {"query", QUERIES, D_MODEL},
    {"key", KEYS, D_MODEL},
    {"value", KEYS, D_MODEL},
    {"query bias", ONE, QUERIES},
    {"key bias", ONE, KEYS},
    {"value bias", ONE, KEYS},
    {"query norm", ONE, QUERY_GAINS},
    {"key norm", ONE, KEY_GAINS},
    {"output", D_MODEL, QUERIES},
    {"output bias", ONE, D_MODEL},
    {"attention post-norm", ONE, D_MODEL},
    {"feed-forward norm", ONE, D_MODEL},
    {"feed-forward norm bias", ONE, D_MODEL},
    {"gate", HIDDEN, D_MODEL},
    {"gate bias", ONE, HIDDEN},
    {"up", HIDDEN, D_MODEL},
    {"up bias", ONE, HIDDEN},
    {"down", D_MODEL, HIDDEN},
    {"down bias", ONE, D_MODEL},
    {"feed-forward post-norm", ONE, D_MODEL},
};

int64_t size_of(const mlk_shape& s, Size size) {
    const int64_t queries = int64_t{s.heads} * s.head_dim, keys = int64_t{s.kv_heads} * s.head_dim;
    switch (size) {
        case VOCAB: return s.vocab;
        case CONTEXT: return s.context;
        case D_MODEL: return s.d_model;
        case QUERIES: return queries;
        case KEYS: return keys;
        case QUERY_GAINS: return s.row_norm ? queries : s.head_dim;
        case KEY_GAINS: return s.row_norm ? keys : s.head_dim;
        case HIDDEN: return s.d_hidden;
        default: return 1;
    }
}

bool is_wanted(const mlk_shape& s, int tensor) {
    switch (tensor) {
        case MLK_POSITIONS: return s.learned_positions;
        case MLK_NORM_BIAS: return s.layer_norm;
        case MLK_HEAD: return !s.tied;
        case MLK_ATTENTION_NORM:
        case MLK_FEED_FORWARD_NORM: return s.pre_norm;
        case MLK_ATTENTION_NORM_BIAS:
        case MLK_FEED_FORWARD_NORM_BIAS: return s.pre_norm && s.layer_norm;
        case MLK_ATTENTION_POST_NORM:
        case MLK_FEED_FORWARD_POST_NORM: return s.post_norm;
        case MLK_QUERY_BIAS:
        case MLK_KEY_BIAS:
        case MLK_VALUE_BIAS: return s.qkv_bias;
        case MLK_QUERY_NORM:
        case MLK_KEY_NORM: return s.head_norm || s.row_norm;
        case MLK_OUTPUT_BIAS: return s.output_bias;
        case MLK_GATE: return s.gated;
        case MLK_GATE_BIAS: return s.gated && s.feed_forward_bias;
        case MLK_UP_BIAS:
        case MLK_DOWN_BIAS: return s.feed_forward_bias;
        default: return true;
    }
}

// Where the gains of norms go; null for any other tensor.
float* gains_of(Weights& w, Layer& y, int tensor) {
    switch (tensor) {
        case MLK_NORM: return w.norm;
        case MLK_ATTENTION_NORM: return y.attention_norm;
        case MLK_ATTENTION_POST_NORM: return y.attention_post_norm;
        case MLK_FEED_FORWARD_NORM: return y.feed_forward_norm;
        case MLK_FEED_FORWARD_POST_NORM: return y.feed_forward_post_norm;
        case MLK_QUERY_NORM: return y.query_norm;
        case MLK_KEY_NORM: return y.key_norm;
        default: return nullptr;
    }
}

float* bias_of(Weights& w, Layer& y, int tensor) {
    switch (tensor) {
        case MLK_NORM_BIAS: return w.norm_bias;
        case MLK_ATTENTION_NORM_BIAS: return y.attention_norm_bias;
        case MLK_QUERY_BIAS: return y.bias;
        case MLK_KEY_BIAS: return y.bias + w.queries;
        case MLK_VALUE_BIAS: return y.bias + w.queries + w.keys;
        case MLK_OUTPUT_BIAS: return y.output_bias;
        case MLK_FEED_FORWARD_NORM_BIAS: return y.feed_forward_norm_bias;
        case MLK_DOWN_BIAS: return y.down_bias;
        default: return nullptr;
    }
}

// Panels of a matrix, `step` apart from `first` on, that a tensor's outputs become.
struct Panels {
    Weight* weight;
    int first, step;
};

Panels panels_of(Weights& w, Layer& y, int tensor) {
    const int key = w.queries / LANES, value = key + w.keys / LANES, step = w.shape.gated ? 2 : 1;
    switch (tensor) {
        case MLK_EMBEDDING: return {w.shape.tied ? &w.head : &w.table, 0, 1};
        case MLK_HEAD: return {&w.head, 0, 1};
        case MLK_QUERY: return {&y.qkv, 0, 1};
        case MLK_KEY: return {&y.qkv, key, 1};
        case MLK_VALUE: return {&y.qkv, value, 1};
        case MLK_OUTPUT: return {&y.output, 0, 1};
        case MLK_GATE:
        case MLK_GATE_BIAS: return {&y.up, 0, step};
        case MLK_UP:
        case MLK_UP_BIAS: return {&y.up, step - 1, step};
        default: return {&y.down, 0, 1};
    }
}

void copy(Weights& w, Layer& y, int tensor, const Source& source, int64_t rows, float* row) {
    if (float* gains = gains_of(w, y, tensor)) {
        source.row(0, gains);
        const float offset = static_cast<float>(w.shape.gain_offset);
        for (int64_t i = 0; offset != 0.f && i < source.columns; i++) gains[i] = offset + gains[i];
    } else if (float* bias = bias_of(w, y, tensor)) {
        source.row(0, bias);
    } else if (tensor == MLK_POSITIONS) {
        for (int64_t r = 0; r < rows; r++) source.row(r, w.positions + r * w.d_model);
    } else if (tensor == MLK_GATE_BIAS || tensor == MLK_UP_BIAS) {
        const Panels at = panels_of(w, y, tensor);
        source.row(0, row);
        for (int64_t i = 0; i < source.columns; i++)
            y.up_bias[(at.first + i / LANES * at.step) * LANES + i % LANES] = row[i];
    } else {
        const Panels at = panels_of(w, y, tensor);
        pack(*at.weight, source, rows, at.first, at.step, row);
    }
}

}  // namespace

int set_tensor(Weights& w, int tensor, int layer, int source_type, const void* data, int64_t rows, int64_t columns) {
    const mlk_shape& s = w.shape;
    if (tensor < 0 || tensor >= MLK_TENSORS || !is_wanted(s, tensor))
        return fail("this model has no tensor %d", tensor);
    if (layer < 0 || layer >= (tensor < MLK_ATTENTION_NORM ? 1 : s.layers)) return fail("there is no layer %d", layer);
    if (source_type != MLK_FLOAT32 && source_type != MLK_BFLOAT16 && source_type != MLK_FLOAT16)
        return fail("weights come as float32, bfloat16 or float16, got type %d", source_type);
    const int64_t want_rows = size_of(s, TENSORS[tensor].rows), want_columns = size_of(s, TENSORS[tensor].columns);
    if (rows != want_rows || columns != want_columns)
        return fail("%s must be (%lld, %lld), got (%lld, %lld)", TENSORS[tensor].name,
                    static_cast<long long>(want_rows), static_cast<long long>(want_columns),
                    static_cast<long long>(rows), static_cast<long long>(columns));
    Scratch row;
    if (!row.at_least(columns)) return fail("there is no memory for a row of weights");
    copy(w, w.layers[layer], tensor, {data, source_type, columns}, rows, row.floats());
    w.is_set[layer * MLK_TENSORS + tensor] = true;
    return 0;
}

int set_rope(Weights& w, int index, const mlk_rope& rope) {
    if (index < 0 || index >= MLK_ROPES) return fail("ropes are numbered below %d, got %d", MLK_ROPES, index);
    if (const char* wrong = wrong_rope(rope, w.shape.rope_dim)) return fail("%s", wrong);
    const int64_t half = w.shape.rope_dim / 2, count = half * w.shape.context;
    if (!w.ropes[index].allocate(2 * count * 4, count > (1 << 18))) return fail("there is no memory for angles");
    float *cosine = w.ropes[index].as<float>(), *sine = cosine + count;
    rope_tables(rope, w.shape.rope_dim, w.shape.context, cosine, sine);
    w.angles[index] = {cosine, sine};
    return 0;
}

int set_layer(Weights& w, int layer, int window, int rope) {
    if (layer < 0 || layer >= w.shape.layers) return fail("there is no layer %d", layer);
    if (window < 0) return fail("a window must be at least 1, or 0 for none, got %d", window);
    if (rope < -1 || rope >= MLK_ROPES) return fail("ropes are numbered below %d, got %d", MLK_ROPES, rope);
    w.layers[layer].window = window, w.layers[layer].rope = rope;
    return 0;
}

int check_complete(const Weights& w) {
    for (int l = 0; l < w.shape.layers; l++) {
        for (int t = l ? MLK_ATTENTION_NORM : 0; t < MLK_TENSORS; t++)
            if (is_wanted(w.shape, t) && !w.is_set[l * MLK_TENSORS + t])
                return fail("layer %d lacks its %s", l, TENSORS[t].name);
        const int rope = w.layers[l].rope;
        if (w.shape.rope_dim && rope >= 0 && !w.angles[rope].cosine) return fail("layer %d lacks its rope %d", l, rope);
    }
    return 0;
}

}  // namespace mlk
