// A decoder's weights and caches, and the step over them.
#pragma once

#include "backend.h"
#include "memory.h"
#include "minilab_kernels.h"
#include "sampling.h"
#include "team.h"

namespace mlk {

struct Layer {
    Weight qkv, output, gate_up, down;
    float *attention_norm, *feed_forward_norm, *bias, *output_bias, *query_norm,
        *key_norm;  // in Weights::vectors; bias as qkv's outputs
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

// What a model is: nothing here changes once it runs, so any number of decoders may read it.
struct Weights {
    mlk_shape shape;
    int type;

    // Derived sizes. A row of queries, keys and values has three parts, each padded to whole panels.
    int queries, keys, qkv;        // padded floats of all query heads, of all key heads, and of the row
    int d_model, d_hidden, mixed;  // padded
    int group;                     // query heads of a key head
    float query_scale;

    Layer* layers;
    Weight head, table;  // the head, and the embedding of untied models
    float* norm;
    Memory* memory;  // of each weight
    Memory vectors, rope;
    float *cosine, *sine;
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
    Scratch x, qkv_rows, mixed_rows, hidden, logits;
    Scratch lists;        // runs, units, bundles and progress below lie in it, then a mark for each slot
    int64_t lists_bytes;  // of it, before the marks
    int* stage_pieces;    // (layers * 6 + 2)
    Run *runs, *units;
    int run_count, unit_count, parts;
    int32_t* bundles;                 // where each begins, and the end of the last
    std::atomic<uint32_t>* progress;  // layers whose keys and values a bundle has stored
    int64_t steps;                    // so far
    int chunks[8];                    // pieces of each kind of stage

    Strip strip_of(int slot, int layer, int kv) const {
        float* at = cache.as<float>() + slot * slot_stride + (int64_t{layer} * w->shape.kv_heads + kv) * strip;
        return {at, at + value_start};
    }
};

int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
const Backend* backend_or_error();  // the one in use; null with an error
int run_step(Model& model, const mlk_step& step);

}  // namespace mlk
