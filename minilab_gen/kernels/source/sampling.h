// From logits to the next token: bias, masks, penalties, temperature, softmax, top-k, top-p, min-p, draw, always in
// this order.
#pragma once

#include "backend.h"
#include "edits.h"
#include "memory.h"

// What mlk_sampler is: one sequence's settings and its generator.
struct mlk_sampler {
    float divisor;
    int top_k;  // 0: all
    float top_p, min_p;
    bool greedy;
    mlk::Edits edits;
    uint32_t state[624];  // of mt19937
    uint32_t used;        // of them
};

namespace mlk {

void seed(mlk_sampler& sampler, uint64_t number);
// Move the generator past so many numbers of 32 bits.
void skip(mlk_sampler& sampler, uint64_t numbers);

// Room for the work on one row: its edited logits, probabilities, and a list of those that remain.
struct Draw {
    Scratch edited, probabilities, kept;
    bool at_least(int vocab) {
        return edited.at_least(vocab) && probabilities.at_least(vocab + 16) && kept.at_least(int64_t{vocab} * 2 + 16);
    }
};

// The logits that a token is chosen from: these, or a copy that the settings have edited. They are the model's own for
// all else.
const float* edited(const float* logits, int vocab, const mlk_sampler& sampler, Draw& draw);
// Probabilities (vocab) of the next token, from edited logits; they sum to 1.
void probabilities_of(const Backend& backend, const float* logits, int vocab, const mlk_sampler& sampler, Draw& draw);
// The next token, or of mlk_no_token. A null sampler is greedy.
int choose(const Backend& backend, const float* logits, int vocab, mlk_sampler* sampler, Draw& draw);

}  // namespace mlk
