// From logits to the next token: temperature, softmax, top-k, top-p, draw, always in this order.
#pragma once

#include "backend.h"
#include "memory.h"

// What mlk_sampler is: one sequence's settings and its generator.
struct mlk_sampler {
    float divisor;
    int top_k;  // 0: all
    float top_p;
    bool greedy;
    uint32_t state[624];  // of mt19937
    uint32_t used;        // of them
};

namespace mlk {

void seed(mlk_sampler& sampler, uint64_t number);
// Move the generator past so many numbers of 32 bits.
void skip(mlk_sampler& sampler, uint64_t numbers);

// Room for the work on one row: probabilities and a list of those that remain.
struct Draw {
    Scratch probabilities, kept;
    bool at_least(int vocab) { return probabilities.at_least(vocab + 16) && kept.at_least(int64_t{vocab} * 2 + 16); }
};

// Probabilities (vocab) of the next token, from finite logits; they sum to 1.
void probabilities_of(const Backend& backend, const float* logits, int vocab, const mlk_sampler& sampler, Draw& draw);
// The next token, -1 where logits are not finite. A null sampler is greedy.
int choose(const Backend& backend, const float* logits, int vocab, mlk_sampler* sampler, Draw& draw);

}  // namespace mlk
