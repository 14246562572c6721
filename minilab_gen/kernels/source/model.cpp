// Making a model: its memory and its weights.
#include "model.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "exact_math.h"
#include "numbers.h"
#include "processor.h"
#include "rope.h"
#include "rules.h"
#include "weights.h"

namespace mlk {

namespace {

thread_local char last_error[256];

constexpr int LARGEST = 1 << 24;   // of any size: products of two then fit 64 bits, and products of panels 32
constexpr int LARGEST_HEAD = 512;  // of a head; scratch in the back ends is that long
constexpr int64_t SMALL_CACHE = int64_t{64} << 20;  // bytes that are not worth giving back, so huge pages may hold them
constexpr int PAGE_FLOATS = 1024;

const char* const NAMES[MLK_TENSORS] = {
    "embedding",   "norm",       "head",       "attention norm", "query",
    "key",         "value",      "query bias", "key bias",       "value bias",
    "output bias", "query norm", "key norm",   "output",         "feed-forward norm",
    "gate",        "up",         "down"};

bool is_vector(int tensor) {
    return tensor == MLK_NORM || tensor == MLK_ATTENTION_NORM || tensor == MLK_FEED_FORWARD_NORM ||
           (tensor >= MLK_QUERY_BIAS && tensor <= MLK_KEY_NORM);
}

bool is_wanted(const mlk_shape& s, int tensor) {
    if (tensor == MLK_HEAD) return !s.tied;
    if (tensor >= MLK_QUERY_BIAS && tensor <= MLK_VALUE_BIAS) return s.qkv_bias;
    if (tensor == MLK_OUTPUT_BIAS) return s.output_bias;
    if (tensor == MLK_QUERY_NORM || tensor == MLK_KEY_NORM) return s.head_norm;
    return true;
}

// Rows and columns that a tensor must have.
void dimensions(const mlk_shape& s, int tensor, int64_t* rows, int64_t* columns) {
    const int64_t queries = int64_t{s.heads} * s.head_dim, keys = int64_t{s.kv_heads} * s.head_dim;
    *rows = 1, *columns = s.d_model;
    switch (tensor) {
        case MLK_EMBEDDING:
        case MLK_HEAD: *rows = s.vocab; break;
        case MLK_QUERY: *rows = queries; break;
        case MLK_KEY:
        case MLK_VALUE: *rows = keys; break;
        case MLK_QUERY_BIAS: *columns = queries; break;
        case MLK_KEY_BIAS:
        case MLK_VALUE_BIAS: *columns = keys; break;
        case MLK_QUERY_NORM:
        case MLK_KEY_NORM: *columns = s.head_dim; break;
        case MLK_OUTPUT: *rows = s.d_model, *columns = queries; break;
        case MLK_GATE:
        case MLK_UP: *rows = s.d_hidden; break;
        case MLK_DOWN: *rows = s.d_model, *columns = s.d_hidden; break;
        default: break;
    }
}

int check(const mlk_shape& s, int type, int slots, int threads) {
    const struct {
        const char* name;
        int64_t value;
    } sizes[] = {{"vocab", s.vocab},       {"context", s.context},   {"layers", s.layers},   {"heads", s.heads},
                 {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim}, {"d_model", s.d_model}, {"d_hidden", s.d_hidden},
                 {"slots", slots},         {"threads", threads}};
    for (const auto& size : sizes)
        if (size.value < 1 || size.value > LARGEST)
            return fail("%s must be from 1 to %d, got %lld", size.name, LARGEST, static_cast<long long>(size.value));
    if (s.head_dim % 2 || s.head_dim > LARGEST_HEAD)
        return fail("head_dim must be even and at most %d, got %d", LARGEST_HEAD, s.head_dim);
    if (s.heads % s.kv_heads) return fail("heads must be a multiple of kv_heads, got %d and %d", s.heads, s.kv_heads);
    if (int64_t{s.heads} * s.head_dim > LARGEST) return fail("heads times head_dim must be at most %d", LARGEST);
    if (s.context > 1500000) return fail("context must be at most 1500000, got %d", s.context);
    if (threads > MOST_THREADS) return fail("threads must be at most %d, got %d", MOST_THREADS, threads);
    if (type != MLK_FLOAT32 && type != MLK_BFLOAT16 && type != MLK_INT8)
        return fail("there is no weight type %d", type);
    if (!(s.norm_eps > 0) || !(s.rope_theta > 0)) return fail("norm_eps and rope_theta must be above 0");
    if (s.rope_kind < MLK_ROPE_PLAIN || s.rope_kind > MLK_ROPE_LONG)
        return fail("there is no rope kind %d", s.rope_kind);
    if (s.rope_kind == MLK_ROPE_LONG && !s.rope_divisors) return fail("this rope kind must have divisors");
    if (s.rope_kind != MLK_ROPE_PLAIN && s.rope_kind != MLK_ROPE_LONG && !(s.rope_factor > 0))
        return fail("the rope factor must be above 0");
    if (s.rope_kind == MLK_ROPE_YARN && !(s.rope_original > 0 && s.rope_low > 0 && s.rope_high > 0 && s.rope_theta > 1))
        return fail("YaRN must have its turns and its trained context above 0, and rope_theta above 1");
    return 0;
}

// Sizes, tables and room for vectors.
int lay_out(Weights& w) {
    const mlk_shape& s = w.shape;
    w.queries = static_cast<int>(padded(int64_t{s.heads} * s.head_dim));
    w.keys = static_cast<int>(padded(int64_t{s.kv_heads} * s.head_dim));
    w.qkv = w.queries + 2 * w.keys;
    w.d_model = static_cast<int>(padded(s.d_model)), w.d_hidden = static_cast<int>(padded(s.d_hidden));
    w.mixed = w.queries;
    w.group = s.heads / s.kv_heads;
    w.query_scale = 1.f / sqrtf(static_cast<float>(s.head_dim));

    w.layers = static_cast<Layer*>(calloc(static_cast<size_t>(s.layers), sizeof(Layer)));
    w.is_set = static_cast<bool*>(calloc(static_cast<size_t>(s.layers) * MLK_TENSORS, 1));
    w.memory = static_cast<Memory*>(calloc(static_cast<size_t>(s.layers) * 4 + 2, sizeof(Memory)));
    const int64_t head_size = padded(s.head_dim), half = s.head_dim / 2;
    const int64_t layer_vectors = 3 * int64_t{w.d_model} + w.qkv + 2 * head_size;
    if (!w.layers || !w.is_set || !w.memory || !w.vectors.allocate((layer_vectors * s.layers + w.d_model) * 4, false) ||
        !w.rope.allocate(2 * half * s.context * 4, half * s.context > (1 << 18)))
        return fail("there is no memory for a model");
    float* v = w.vectors.as<float>();
    auto take = [&](int64_t n) {
        float* at = v;
        v += n;
        return at;
    };
    w.norm = take(w.d_model);
    for (int l = 0; l < s.layers; l++) {
        Layer& y = w.layers[l];
        y.attention_norm = take(w.d_model), y.feed_forward_norm = take(w.d_model), y.bias = take(w.qkv);
        y.output_bias = take(w.d_model), y.query_norm = take(head_size), y.key_norm = take(head_size);
    }
    w.cosine = w.rope.as<float>(), w.sine = w.cosine + half * s.context;
    rope_tables(s, w.cosine, w.sine);
    w.shape.rope_kind = MLK_ROPE_PLAIN, w.shape.rope_divisors = nullptr;  // the caller's, and read
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
               make_weight(y.gate_up, memory[2], s.d_model, 2 * w.d_hidden, w.type) &&
               make_weight(y.down, memory[3], s.d_hidden, s.d_model, w.type);
        memory += 4;
    }
    if (!made) return fail("there is no memory for the weights");
    for (int i = 0; i < 4 * s.layers + 2; i++) w.bytes += w.memory[i].bytes();
    return 0;
}

int set(Weights& w, int tensor, int layer, const Source& source, int64_t rows) {
    Layer& y = w.layers[layer];
    Scratch row;
    if (!row.at_least(source.columns)) return fail("there is no memory for a row of weights");
    float* scratch = row.floats();
    auto vector = [&](float* to) { source.row(0, to); };
    auto matrix = [&](Weight& to, int first, int step) { pack(to, source, rows, first, step, scratch); };
    const int key = w.queries / LANES, value = key + w.keys / LANES;
    switch (tensor) {
        case MLK_EMBEDDING: matrix(w.shape.tied ? w.head : w.table, 0, 1); break;
        case MLK_NORM: vector(w.norm); break;
        case MLK_HEAD: matrix(w.head, 0, 1); break;
        case MLK_ATTENTION_NORM: vector(y.attention_norm); break;
        case MLK_QUERY: matrix(y.qkv, 0, 1); break;
        case MLK_KEY: matrix(y.qkv, key, 1); break;
        case MLK_VALUE: matrix(y.qkv, value, 1); break;
        case MLK_QUERY_BIAS: vector(y.bias); break;
        case MLK_KEY_BIAS: vector(y.bias + w.queries); break;
        case MLK_VALUE_BIAS: vector(y.bias + w.queries + w.keys); break;
        case MLK_OUTPUT_BIAS: vector(y.output_bias); break;
        case MLK_QUERY_NORM: vector(y.query_norm); break;
        case MLK_KEY_NORM: vector(y.key_norm); break;
        case MLK_OUTPUT: matrix(y.output, 0, 1); break;
        case MLK_FEED_FORWARD_NORM: vector(y.feed_forward_norm); break;
        case MLK_GATE: matrix(y.gate_up, 0, 2); break;
        case MLK_UP: matrix(y.gate_up, 1, 2); break;
        default: matrix(y.down, 0, 1); break;
    }
    return 0;
}

int missing(const Weights& w) {
    for (int l = 0; l < w.shape.layers; l++)
        for (int t = l ? MLK_ATTENTION_NORM : 0; t < MLK_TENSORS; t++)
            if (is_wanted(w.shape, t) && !w.is_set[l * MLK_TENSORS + t])
                return fail("layer %d lacks its %s", l, NAMES[t]);
    return 0;
}

// A copy of the weights is freed by the last decoder that reads it.
void let_go(Weights* w) {
    if (w->users.fetch_sub(1) > 1) return;
    if (w->memory)
        for (int i = 0; i < 4 * w->shape.layers + 2; i++) w->memory[i].free();
    free(w->memory), free(w->layers), free(w->is_set);
    w->~Weights();
    free(w);
}

void destroy(Model* m) {
    if (m->own)
        for (int t = 0; t < m->team.made(); t++) m->own[t].~Own();
    free(m->own), free(m->stage_pieces);
    let_go(m->w);
    m->~Model();
    free(m);
}

// Room for the keys and values of every slot, and for each thread.
int make_caches(Model& m) {
    const mlk_shape& s = m.w->shape;
    const int64_t head_size = padded(s.head_dim), context = padded(s.context);
    m.stage_pieces = static_cast<int*>(calloc(static_cast<size_t>(s.layers) * 6 + 2, sizeof(int)));
    m.own = static_cast<Own*>(calloc(static_cast<size_t>(m.team.made()), sizeof(Own)));
    if (!m.stage_pieces || !m.own) return fail("there is no memory for a decoder");
    for (int t = 0; t < m.team.made(); t++) new (&m.own[t]) Own;
    m.value_start = context * s.head_dim;
    m.strip = m.value_start + context * head_size;
    m.slot_stride = (m.strip * s.kv_heads * s.layers + PAGE_FLOATS - 1) / PAGE_FLOATS;
    m.slot_stride = (m.slot_stride | 1) * PAGE_FLOATS;  // an odd number of pages, lest slots fight for cache sets
    const int64_t cache = m.slot_stride * m.slots * 4;
    if (!m.cache.allocate(cache, cache <= SMALL_CACHE))
        return fail("%.1f GB of addresses for keys and values were refused; take fewer slots",
                    static_cast<double>(cache) / 1e9);
    return 0;
}

template <class T> T* made() {
    void* memory = nullptr;
    return posix_memalign(&memory, 64, sizeof(T)) ? nullptr : new (memory) T();
}

}  // namespace

int fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return -1;
}

const Backend* backend_or_error() {
    const Backend* backend = chosen();
    if (!backend) fail("MINILAB_KERNELS must be one of: %s; got %s", runnable(), getenv("MINILAB_KERNELS"));
    return backend;
}

}  // namespace mlk

// The C interface -----------------------------------------------------------------------------------------------------

using namespace mlk;

struct mlk_model : Model {};

#define MLK_TEXT_(x) #x
#define MLK_TEXT(x) MLK_TEXT_(x)
#if !defined(MLK_BUILD)
#define MLK_BUILD unknown
#endif

int32_t mlk_abi(void) { return MLK_ABI; }
int32_t mlk_numerics(void) { return MLK_NUMERICS; }
const char* mlk_build(void) { return MLK_TEXT(MLK_BUILD); }
const char* mlk_error(void) { return last_error; }
const char* mlk_backend(void) { return chosen() ? chosen()->name : nullptr; }
const char* mlk_backends(void) { return runnable(); }
const char* mlk_backend_for(uint32_t ecx1, uint32_t ebx7, uint32_t xcr0) { return best_for({ecx1, ebx7, xcr0})->name; }

// A decoder over weights, which it holds from now on; null with an error.
static mlk_model* decoder_over(Weights* w, const Backend* backend, int slots, int threads) {
    w->users++;
    mlk_model* m = made<mlk_model>();
    if (!m) {
        fail("there is no memory for a decoder");
        let_go(w);
        return nullptr;
    }
    m->w = w, m->slots = slots, m->backend = backend;
    if (!m->team.start(threads, w->shape.layers * 6 + 2)) fail("there is no memory for a team of threads");
    else if (!make_caches(*m)) return m;
    destroy(m);
    return nullptr;
}

mlk_model* mlk_create(const mlk_shape* shape, int32_t type, int32_t slots, int32_t threads) {
    const Backend* backend = backend_or_error();
    if (!backend || check(*shape, type, slots, threads)) return nullptr;
    const RoundingMode mode;
    Weights* w = made<Weights>();
    if (!w) {
        fail("there is no memory for a model");
        return nullptr;
    }
    w->shape = *shape, w->type = type, w->users = 1;
    mlk_model* m = lay_out(*w) || make_weights(*w) ? nullptr : decoder_over(w, backend, slots, threads);
    let_go(w);
    return m;
}

mlk_model* mlk_beside(const mlk_model* model, int32_t slots, int32_t threads) {
    if (check(model->w->shape, model->w->type, slots, threads)) return nullptr;
    return decoder_over(model->w, model->backend, slots, threads);
}

void mlk_destroy(mlk_model* model) {
    if (model) destroy(model);
}

int32_t mlk_set(mlk_model* m, int32_t tensor, int32_t layer, int32_t source_type, const void* data, int64_t rows,
                int64_t columns) {
    if (tensor < 0 || tensor >= MLK_TENSORS || !is_wanted(m->w->shape, tensor))
        return fail("this model has no tensor %d", tensor);
    if (layer < 0 || layer >= (tensor < MLK_ATTENTION_NORM ? 1 : m->w->shape.layers))
        return fail("there is no layer %d", layer);
    if (source_type != MLK_FLOAT32 && source_type != MLK_BFLOAT16 && source_type != MLK_FLOAT16)
        return fail("weights come as float32, bfloat16 or float16, got type %d", source_type);
    int64_t want_rows, want_columns;
    dimensions(m->w->shape, tensor, &want_rows, &want_columns);
    if (rows != want_rows || columns != want_columns)
        return fail("%s must be (%lld, %lld), got (%lld, %lld)", NAMES[tensor], static_cast<long long>(want_rows),
                    static_cast<long long>(want_columns), static_cast<long long>(rows),
                    static_cast<long long>(columns));
    const RoundingMode mode;
    if (set(*m->w, tensor, layer, {data, source_type, columns}, is_vector(tensor) ? 1 : rows)) return -1;
    m->w->is_set[layer * MLK_TENSORS + tensor] = true;
    return 0;
}

int32_t mlk_run(mlk_model* m, const mlk_step* step) {
    if (m->steps == 0 && missing(*m->w)) return -1;
    const RoundingMode mode;
    return run_step(*m, *step);
}

void mlk_release(mlk_model* m, int32_t slot) {
    if (slot < 0 || slot >= m->slots || m->cache.bytes() <= SMALL_CACHE) return;
    m->cache.release(slot * m->slot_stride * 4, m->slot_stride * 4);
}

int32_t mlk_threads(mlk_model* m, int32_t threads) {
    m->team.use(threads);
    return m->team.size();
}

int64_t mlk_weight_bytes(const mlk_model* m) { return m->w->bytes; }

int32_t mlk_rope(const mlk_shape* shape, float* cosine, float* sine) {
    if (check(*shape, MLK_FLOAT32, 1, 1)) return -1;
    const RoundingMode mode;
    rope_tables(*shape, cosine, sine);
    return 0;
}

int32_t mlk_functions(const float* a, const float* b, const float* c, float* fused, float* exps, float* silus,
                      int32_t count) {
    const Backend* backend = backend_or_error();
    if (!backend) return -1;
    if (count % LANES) return fail("count must be a multiple of %d, got %d", LANES, count);
    const RoundingMode mode;
    backend->functions(a, b, c, fused, exps, silus, count);
    return 0;
}

void mlk_to_bfloat16(const float* from, uint16_t* to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from[i]);
}

void mlk_from_float16(const uint16_t* from, float* to, int64_t count) {
    const RoundingMode mode;
    for (int64_t i = 0; i < count; i++) to[i] = from_float16(from[i]);
}

void mlk_logarithms(const double* from, double* to, int64_t count) {
    const RoundingMode mode;
    for (int64_t i = 0; i < count; i++) to[i] = exact_log(from[i]);
}
