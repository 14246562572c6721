// What the settings of a sequence do to its logits before a token is chosen: bias, masks, penalties, in this order.
//
// Each id is edited by itself, so the order of ids is free, and only ids that a setting names or that the sequence
// holds are touched. A sequence without such settings pays nothing.
#pragma once

#include <cstdint>

#include "minilab_kernels.h"

namespace mlk {

// How often an id stands in the answer; an id of the prompt alone stands there 0 times.
struct Count {
    int32_t id;  // -1 where nothing is kept
    int32_t answered;
};

struct Edits {
    int vocab;
    bool any;           // whether a logit may change
    bool lacks_memory;  // for an id that should have been counted

    int32_t biases, stops, bad_words, longest_bad_word;
    int32_t *bias_ids, *stop_ids, *bad_word_ids;
    float* bias;
    uint32_t *allowed, *mask;  // (vocab / 32) bits each, or null: of the settings, and of whoever set it last
    int64_t min_tokens, answered;

    int32_t* recent;  // (longest_bad_word - 1): the last ids of prompt and answer, in order
    int32_t recents;

    float repetition, frequency, presence;
    Count* counts;  // a hash table of the ids that are penalized, or null
    uint32_t room;  // of it, a power of 2
    uint32_t counted;
};

// Take the settings' lists; -1 with an error.
int make(Edits& edits, const mlk_settings& settings);
void destroy(Edits& edits);
// Another mask of what may be chosen, or none; -1 without memory.
int set_mask(Edits& edits, const uint32_t* bits);
// An id of the sequence, in its order.
void note(Edits& edits, int32_t id, bool is_answer);
// Edit finite logits (vocab); an id that cannot be chosen gets minus infinity, and may have it already.
void edit(const Edits& edits, float* logits);

}  // namespace mlk
