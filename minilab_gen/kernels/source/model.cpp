// Making a model: what its layers are made of, and its memory.
#include "model.h"

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <new>

#include "rules.h"
#include "weights.h"

namespace mlk {

namespace {

constexpr int LARGEST = 1 << 24;  // of any size: products of two then fit 64 bits, and products of panels 32
constexpr int LONGEST_CONTEXT = 1500000;

int check_sizes(const mlk_shape& s) {
    const struct {
        const char* name;
        int64_t value;
    } sizes[] = {{"vocab", s.vocab},       {"context", s.context},   {"layers", s.layers},   {"heads", s.heads},
                 {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim}, {"d_model", s.d_model}, {"d_hidden", s.d_hidden}};
    for (const auto& size : sizes)
        if (size.value < 1 || size.value > LARGEST)
            return fail("%s must be from 1 to %d, got %lld", size.name, LARGEST, static_cast<long long>(size.value));
    if (s.head_dim % 2 || s.head_dim > LARGEST_HEAD)
        return fail("head_dim must be even and at most %d, got %d", LARGEST_HEAD, s.head_dim);
    if (s.rope_dim < 0 || s.rope_dim % 2 || s.rope_dim > s.head_dim)
        return fail("rope_dim must be even and at most the head_dim of %d, got %d", s.head_dim, s.rope_dim);
    if (s.heads % s.kv_heads) return fail("heads must be a multiple of kv_heads, got %d and %d", s.heads, s.kv_heads);
    if (int64_t{s.heads} * s.head_dim > LARGEST) return fail("heads times head_dim must be at most %d", LARGEST);
    if (s.context > LONGEST_CONTEXT) return fail("context must be at most %d, got %d", LONGEST_CONTEXT, s.context);
    return 0;
}

int check(const mlk_shape& s, int type) {
    if (check_sizes(s)) return -1;
    if (type != MLK_FLOAT32 && type != MLK_BFLOAT16 && type != MLK_INT8)
        return fail("there is no weight type %d", type);
    if (s.activation < MLK_SILU || s.activation > MLK_GELU) return fail("there is no activation %d", s.activation);
    for (double number : {s.norm_eps, s.embedding_scale, s.residual_scale, s.logit_divisor})
        if (!(number > 0)) return fail("norm_eps, scales and divisors must be above 0");
    if (!(s.attention_scale >= 0)) return fail("attention_scale must be 0 or more");
    if (!s.pre_norm && !s.post_norm) return fail("a model must have norms before its parts, or behind them");
    if (s.head_norm && s.row_norm) return fail("queries and keys are normed by the head or by the row, not both");
    if (s.post_norm && s.layer_norm) return fail("norms behind parts are RMS norms");
    return 0;
}

// What a layer is made of, in the order in which it is computed.
void compose(Weights& w) {
    const mlk_shape& s = w.shape;
    w.settles = s.post_norm || s.residual_scale != 1;
    w.part_count = 0;
    auto take = [&](std::initializer_list<Kind> kinds) {
        for (Kind kind : kinds) w.parts[w.part_count++] = kind;
    };
    take({QKV, PLACE, ATTEND});
    if (s.parallel) take({UP});  // reads the residual stream before attention has added to it
    take({OUTPUT});
    if (w.settles) take({SETTLE_ATTENTION});
    if (!s.parallel) take({UP});
    take({DOWN});
    if (w.settles) take({SETTLE_FEED_FORWARD});
}

void derive(Weights& w) {
    const mlk_shape& s = w.shape;
    w.queries = static_cast<int>(padded(int64_t{s.heads} * s.head_dim));
    w.keys = static_cast<int>(padded(int64_t{s.kv_heads} * s.head_dim));
    w.qkv = w.queries + 2 * w.keys;
    w.d_model = static_cast<int>(padded(s.d_model)), w.d_hidden = static_cast<int>(padded(s.d_hidden));
    w.mixed = w.queries;
    w.group = s.heads / s.kv_heads;
    w.query_scale =
        s.attention_scale > 0 ? static_cast<float>(s.attention_scale) : 1.f / sqrtf(static_cast<float>(s.head_dim));
}

// Give each vector that the model has its place, from `at` on; returns how many floats they take. With null only that.
int64_t place_vectors(Weights& w, float* at) {
    const mlk_shape& s = w.shape;
    int64_t used = 0;
    auto take = [&](bool is_there, int64_t size) -> float* {
        if (!is_there) return nullptr;
        used += size;
        return at ? at + used - size : nullptr;
    };
    const int64_t d = w.d_model, hidden = int64_t{w.d_hidden} * (s.gated ? 2 : 1), head = padded(s.head_dim);
    const bool normed = s.head_norm || s.row_norm;
    w.norm = take(true, d), w.norm_bias = take(s.layer_norm, d);
    for (int l = 0; l < s.layers; l++) {
        Layer& y = w.layers[l];
        y.attention_norm = take(s.pre_norm, d), y.attention_norm_bias = take(s.pre_norm && s.layer_norm, d);
        y.feed_forward_norm = take(s.pre_norm, d), y.feed_forward_norm_bias = take(s.pre_norm && s.layer_norm, d);
        y.attention_post_norm = take(s.post_norm, d), y.feed_forward_post_norm = take(s.post_norm, d);
        y.query_norm = take(normed, s.row_norm ? w.queries : head),
        y.key_norm = take(normed, s.row_norm ? w.keys : head);
        y.bias = take(s.qkv_bias, w.qkv), y.output_bias = take(s.output_bias, d);
        y.up_bias = take(s.feed_forward_bias, hidden), y.down_bias = take(s.feed_forward_bias, d);
    }
    return used;
}

int lay_out(Weights& w) {
    const mlk_shape& s = w.shape;
    w.layers = static_cast<Layer*>(calloc(static_cast<size_t>(s.layers), sizeof(Layer)));
    w.is_set = static_cast<bool*>(calloc(static_cast<size_t>(s.layers) * MLK_TENSORS, 1));
    w.memory = static_cast<Memory*>(calloc(static_cast<size_t>(s.layers) * 4 + 2, sizeof(Memory)));
    const int64_t learned = s.learned_positions ? int64_t{s.context} * w.d_model * 4 : 0;
    if (!w.layers || !w.is_set || !w.memory || !w.vectors.allocate(place_vectors(w, nullptr) * 4, false) ||
        (learned && !w.learned.allocate(learned, false)))
        return fail("there is no memory for a model");
    place_vectors(w, w.vectors.as<float>());
    w.positions = w.learned.as<float>();
    return 0;
}

int make_weights(Weights& w) {
    const mlk_shape& s = w.shape;
    Memory* memory = w.memory;
    bool made = make_weight(w.head, *memory++, s.d_model, s.vocab, w.type);
    if (!s.tied) made = made && make_weight(w.table, *memory, s.d_model, s.vocab, w.type);
    memory++;
    for (int l = 0; made && l < s.layers; l++) {
        Layer& y = w.layers[l];
        made = make_weight(y.qkv, memory[0], s.d_model, w.qkv, w.type) &&
               make_weight(y.output, memory[1], s.heads * s.head_dim, s.d_model, w.type) &&
               make_weight(y.up, memory[2], s.d_model, (s.gated ? 2 : 1) * w.d_hidden, w.type) &&
               make_weight(y.down, memory[3], s.d_hidden, s.d_model, w.type);
        memory += 4;
    }
    if (!made) return fail("there is no memory for the weights");
    for (int i = 0; i < 4 * s.layers + 2; i++) w.bytes += w.memory[i].bytes();
    return 0;
}

}  // namespace

Weights* make_model(const mlk_shape& shape, int type) {
    if (check(shape, type)) return nullptr;
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(Weights))) {
        fail("there is no memory for a model");
        return nullptr;
    }
    Weights* w = new (memory) Weights();
    w->shape = shape, w->type = type, w->users = 1;
    derive(*w);
    compose(*w);
    if (lay_out(*w) || make_weights(*w)) {
        let_go(w);
        return nullptr;
    }
    return w;
}

void let_go(Weights* w) {
    if (w->users.fetch_sub(1) > 1) return;
    if (w->memory)
        for (int i = 0; i < 4 * w->shape.layers + 2; i++) w->memory[i].free();
    free(w->memory), free(w->layers), free(w->is_set);
    w->~Weights();
    free(w);
}

}  // namespace mlk
