// A decoder's weights and caches, and the step over them.
#pragma once

#include "backend.h"
#include "memory.h"
#include "minilab_kernels.h"
#include "sampling.h"
#include "team.h"

namespace mlk {

// Rows of cosines and sines, both (context, rope_dim / 2).
struct Angles {
    const float *cosine, *sine;
};

struct Layer {
    Weight qkv, output, up, down;  // up with the gates, where there are any: panel by panel in turn
    // In Weights::vectors, null where the model has none. A bias is as long as what it is added to, padding included.
    float *attention_norm, *attention_norm_bias, *attention_post_norm;
    float *feed_forward_norm, *feed_forward_norm_bias, *feed_forward_post_norm;
    float *query_norm, *key_norm, *bias, *output_bias, *up_bias, *down_bias;
    int window;  // positions that a token sees; 0: all
    int rope;    // of Weights::angles; -1: none
};

// What one thread needs for itself. Normed rows are remembered by the stage that wanted them.
struct Own {
    Scratch normed, gates, wide, scores;
    Draw draw;
    int64_t normed_for = -1;
};

// Rows first .. first + count - 1 of a step are one sequence's tokens at ascending positions.
struct Run {
    int first, count;
};

// The parts of a step, in the order of a model's list; those of no layer come last.
enum Kind : int { QKV, PLACE, ATTEND, OUTPUT, SETTLE_ATTENTION, UP, DOWN, SETTLE_FEED_FORWARD, HEAD, CHOOSE };
constexpr int KINDS = CHOOSE + 1, MOST_PARTS = HEAD;

// What a model is: nothing here changes once it runs, so any number of decoders may read it.
struct Weights {
    mlk_shape shape;
    int type;

    // What a layer is made of, and whether parts add their products to the residual stream later, by a part of their
    // own.
    Kind parts[MOST_PARTS];
    int part_count;
    bool settles;

    // Derived sizes. A row of queries, keys and values has three parts, each padded to whole panels.
    int queries, keys, qkv;        // padded floats of all query heads, of all key heads, and of the row
    int d_model, d_hidden, mixed;  // padded
    int group;                     // query heads of a key head
    float query_scale;

    Layer* layers;
    Weight head, table;                   // the head, and the embedding of untied models
    float *norm, *norm_bias, *positions;  // the last norm; learned positions, (context, padded d_model)
    Memory* memory;                       // of each weight
    Memory vectors, learned, ropes[MLK_ROPES];
    Angles angles[MLK_ROPES];
    bool* is_set;
    int64_t bytes;
    std::atomic<int> users;  // decoders that read it
};

// A decoder: caches of so many sequences, and what a step over them needs.
struct Model {
    Weights* w;  // shared with other decoders of the model
    int slots;
    const Backend* backend;
    Memory cache;
    int64_t strip, value_start, slot_stride;  // floats: a head's keys and values, where the values begin, a slot

    Team team;
    Own* own;

    // The step that runs.
    mlk_step step;
    Scratch x, qkv_rows, mixed_rows, hidden, added, logits;  // added: what a part gives, before it is settled
    Scratch lists;        // runs, units, bundles and progress below lie in it, then a mark for each slot
    int64_t lists_bytes;  // of it, before the marks
    int* stage_pieces;    // (layers * parts + 2)
    Run *runs, *units;
    int run_count, unit_count, parts;
    int32_t* bundles;                 // where each begins, and the end of the last
    std::atomic<uint32_t>* progress;  // layers whose keys and values a bundle has stored
    int64_t steps;                    // so far
    int chunks[KINDS];                // pieces of each kind of stage

    int stages() const { return w->shape.layers * w->part_count + 2; }  // the head and the choices are the last two
    Strip strip_of(int slot, int layer, int kv) const {
        float* at = cache.as<float>() + slot * slot_stride + (int64_t{layer} * w->shape.kv_heads + kv) * strip;
        return {at, at + value_start};
    }
};

int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
const Backend* backend_or_error();  // the one in use; null with an error
int run_step(Model& model, const mlk_step& step);

// A model without tensors; null with an error. The last decoder that reads it lets it go.
Weights* make_model(const mlk_shape& shape, int type);
void let_go(Weights* w);
int set_tensor(Weights& w, int tensor, int layer, int source_type, const void* data, int64_t rows, int64_t columns);
int set_rope(Weights& w, int index, const mlk_rope& rope);
int set_layer(Weights& w, int layer, int window, int rope);
// See that nothing is missing.
int check_complete(const Weights& w);

}  // namespace mlk
