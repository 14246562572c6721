// The C interface, and the decoders behind it: caches and threads over a model.
#include "minilab_kernels.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "exact_math.h"
#include "logprobs.h"
#include "model.h"
#include "numbers.h"
#include "processor.h"
#include "rope.h"
#include "rules.h"

struct mlk_model : mlk::Model {};

namespace mlk {

namespace {

thread_local char last_error[256];

constexpr int64_t SMALL_CACHE = int64_t{64} << 20;  // bytes that are not worth giving back, so huge pages may hold them
constexpr int PAGE_FLOATS = 1024;
constexpr int MOST_SLOTS = 1 << 24;

void destroy(mlk_model* m) {
    if (m->own)
        for (int t = 0; t < m->team.made(); t++) m->own[t].~Own();
    free(m->own), free(m->stage_pieces);
    let_go(m->w);
    m->~mlk_model();
    free(m);
}

// Room for the keys and values of every slot, and for each thread.
int make_caches(Model& m) {
    const mlk_shape& s = m.w->shape;
    const int64_t head_size = padded(s.head_dim), context = padded(s.context);
    m.stage_pieces = static_cast<int*>(calloc(static_cast<size_t>(m.stages()), sizeof(int)));
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

// A decoder over weights, which it holds from now on; null with an error.
mlk_model* decoder_over(Weights* w, const Backend* backend, int slots, int threads) {
    if (slots < 1 || slots > MOST_SLOTS) {
        fail("slots must be from 1 to %d, got %d", MOST_SLOTS, slots);
        return nullptr;
    }
    if (threads < 1 || threads > MOST_THREADS) {
        fail("threads must be from 1 to %d, got %d", MOST_THREADS, threads);
        return nullptr;
    }
    w->users++;
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(mlk_model))) {
        fail("there is no memory for a decoder");
        let_go(w);
        return nullptr;
    }
    mlk_model* m = new (memory) mlk_model();
    m->w = w, m->slots = slots, m->backend = backend;
    if (!m->team.start(threads, m->stages())) fail("there is no memory for a team of threads");
    else if (!make_caches(*m)) return m;
    destroy(m);
    return nullptr;
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

using namespace mlk;

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

mlk_model* mlk_create(const mlk_shape* shape, int32_t type, int32_t slots, int32_t threads) {
    const Backend* backend = backend_or_error();
    if (!backend) return nullptr;
    const RoundingMode mode;
    Weights* w = make_model(*shape, type);
    if (!w) return nullptr;
    mlk_model* m = decoder_over(w, backend, slots, threads);
    let_go(w);
    return m;
}

mlk_model* mlk_beside(const mlk_model* model, int32_t slots, int32_t threads) {
    return decoder_over(model->w, model->backend, slots, threads);
}

void mlk_destroy(mlk_model* model) {
    if (model) destroy(model);
}

int32_t mlk_set(mlk_model* m, int32_t tensor, int32_t layer, int32_t source_type, const void* data, int64_t rows,
                int64_t columns) {
    const RoundingMode mode;
    return set_tensor(*m->w, tensor, layer, source_type, data, rows, columns);
}

int32_t mlk_set_rope(mlk_model* m, int32_t index, const mlk_rope* rope) {
    const RoundingMode mode;
    return set_rope(*m->w, index, *rope);
}

int32_t mlk_set_layer(mlk_model* m, int32_t layer, int32_t window, int32_t rope) {
    return set_layer(*m->w, layer, window, rope);
}

int32_t mlk_run(mlk_model* m, const mlk_step* step) {
    if (m->steps == 0 && check_complete(*m->w)) return -1;
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

int32_t mlk_logprobs(const float* logits, int32_t vocab, int32_t token, int32_t count, float* of_token, int32_t* ids,
                     float* of_ids) {
    const Backend* backend = backend_or_error();
    Draw draw;
    if (!backend) return -1;
    if (token < 0 || token >= vocab) return fail("a token must be below %d, got %d", vocab, token);
    if (!draw.at_least(vocab)) return fail("there is no memory for logprobs");
    const RoundingMode mode;
    logprobs(*backend, logits, vocab, {token, count, of_token, ids, of_ids}, draw);
    return 0;
}

int32_t mlk_rope_tables(const mlk_rope* rope, int32_t rope_dim, int32_t context, float* cosine, float* sine) {
    if (const char* wrong = wrong_rope(*rope, rope_dim)) return fail("%s", wrong);
    const RoundingMode mode;
    rope_tables(*rope, rope_dim, context, cosine, sine);
    return 0;
}

int32_t mlk_functions(const float* a, const float* b, const float* c, float* fused, float* exps, float* activations,
                      int32_t activation, int32_t count) {
    const Backend* backend = backend_or_error();
    if (!backend) return -1;
    if (count % LANES) return fail("count must be a multiple of %d, got %d", LANES, count);
    const RoundingMode mode;
    backend->functions(a, b, c, fused, exps, activations, activation, count);
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
