// Logprobs: the logarithms of the probabilities that a model itself gives, before any setting.
#pragma once

#include "backend.h"
#include "sampling.h"

namespace mlk {

constexpr float LEAST_LOGPROB = -9999.f;  // for what is impossible, since minus infinity is no number of JSON

// What is said of one row: the logprob of `token`, which is NaN where logits are not finite, and the `count` most
// probable tokens, of equals the lowest ids first; where there are fewer, or none can be told, the ids left are -1.
struct Logprobs {
    int token, count;
    float* of_token;
    int32_t* ids;   // (count)
    float* of_ids;  // (count)
};

void logprobs(const Backend& backend, const float* logits, int vocab, const Logprobs& wanted, Draw& draw);

}  // namespace mlk
