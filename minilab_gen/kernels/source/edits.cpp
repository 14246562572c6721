// Sources: Keskar et al. 2019, "CTRL" (repetition penalty); OpenAI's API (presence and frequency penalty, logit bias).
#include "edits.h"

#include <cfloat>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "model.h"

namespace mlk {

namespace {

constexpr uint32_t FIRST_ROOM = 64;  // counts of a short prompt, before the table grows

int words_of(int vocab) { return (vocab + 31) / 32; }

bool is_id(const Edits& e, int32_t id) { return id >= 0 && id < e.vocab; }

template <class T> T* room_for(int64_t count) {
    return static_cast<T*>(calloc(static_cast<size_t>(count > 0 ? count : 1), sizeof(T)));
}

template <class T> int copy(T*& to, const T* from, int64_t count) {
    to = room_for<T>(count);
    if (!to) return fail("there is no memory for a sampler");
    if (count > 0) memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
    return 0;
}

int check_ids(const Edits& e, const int32_t* ids, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!is_id(e, ids[i])) return fail("ids must be from 0 to %d, got %d", e.vocab - 1, ids[i]);
    return 0;
}

bool penalizes(const Edits& e) { return e.repetition != 1.f || e.frequency != 0.f || e.presence != 0.f; }

// Where an id is counted, or could be.
Count* place_of(Count* counts, uint32_t room, int32_t id) {
    uint32_t at = static_cast<uint32_t>(id) * 2654435769u;  // Fibonacci hashing: neighbours lie far apart
    for (at ^= at >> 15;; at++) {
        Count* found = counts + (at & (room - 1));
        if (found->id == id || found->id < 0) return found;
    }
}

Count* empty_counts(uint32_t room) {
    Count* counts = room_for<Count>(room);
    for (uint32_t i = 0; counts && i < room; i++) counts[i].id = -1;
    return counts;
}

// Half of the table stays empty.
bool make_room(Edits& e) {
    if (e.counts && e.counted < e.room / 2) return true;
    const uint32_t room = e.counts ? e.room * 2 : FIRST_ROOM;
    Count* counts = empty_counts(room);
    if (!counts) return false;
    for (uint32_t i = 0; e.counts && i < e.room; i++)
        if (e.counts[i].id >= 0) *place_of(counts, room, e.counts[i].id) = e.counts[i];
    free(e.counts);
    e.counts = counts, e.room = room;
    return true;
}

void count(Edits& e, int32_t id, bool is_answer) {
    if (!make_room(e)) {
        e.lacks_memory = true;
        return;
    }
    Count* found = place_of(e.counts, e.room, id);
    if (found->id < 0) found->id = id, e.counted++;
    found->answered += is_answer;
}

void remember(Edits& e, int32_t id) {
    const int32_t most = e.longest_bad_word - 1;
    if (most < 1) return;
    if (e.recents == most) memmove(e.recent, e.recent + 1, static_cast<size_t>(most - 1) * 4);
    else e.recents++;
    e.recent[e.recents - 1] = id;
}

int take_bad_words(Edits& e, const mlk_settings& s) {
    int64_t length = 0;
    for (int w = 0; w < s.bad_words; w++) {
        const int32_t ids = s.bad_word_ids[length];
        if (ids < 1 || ids > s.longest_bad_word) return fail("a bad word has 1 to %d ids", s.longest_bad_word);
        if (check_ids(e, s.bad_word_ids + length + 1, ids)) return -1;
        length += ids + 1;
    }
    e.bad_words = s.bad_words, e.longest_bad_word = s.longest_bad_word;
    if (copy(e.bad_word_ids, s.bad_word_ids, length)) return -1;
    e.recent = room_for<int32_t>(e.longest_bad_word);
    return e.recent ? 0 : fail("there is no memory for a sampler");
}

int take_allowed(Edits& e, const mlk_settings& s) {
    if (check_ids(e, s.allowed_ids, s.allowed)) return -1;
    e.allowed = room_for<uint32_t>(words_of(e.vocab));
    if (!e.allowed) return fail("there is no memory for a sampler");
    for (int i = 0; i < s.allowed; i++) e.allowed[s.allowed_ids[i] / 32] |= 1u << (s.allowed_ids[i] % 32);
    return 0;
}

void see_whether_any(Edits& e) {
    e.any = e.biases || e.allowed || e.mask || (e.stops && e.min_tokens) || e.bad_words || penalizes(e);
}

constexpr float NEVER = -__builtin_inff();

void keep_allowed(const uint32_t* bits, int vocab, float* x) {
    for (int w = 0; w < words_of(vocab); w++) {
        if (bits[w] == 0xffffffffu) continue;
        const int last = vocab - w * 32 < 32 ? vocab - w * 32 : 32;
        for (int i = 0; i < last; i++)
            if (!(bits[w] >> i & 1)) x[w * 32 + i] = NEVER;
    }
}

// The last id of each bad word whose others were just said.
void avoid_bad_words(const Edits& e, float* x) {
    const int32_t* word = e.bad_word_ids;
    for (int w = 0; w < e.bad_words; w++, word += *word + 1) {
        const int32_t before = *word - 1;
        if (before > e.recents) continue;
        if (!memcmp(word + 1, e.recent + e.recents - before, static_cast<size_t>(before) * 4)) x[word[*word]] = NEVER;
    }
}

// A logit stays finite: a tiny penalty must not make it infinite.
float finite(float x) { return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x; }

float penalized(const Edits& e, float x, float answered) {
    if (x == NEVER) return x;
    if (e.repetition != 1.f) x = finite(x > 0.f ? x / e.repetition : x * e.repetition);
    if (answered > 0.f) {
        x = x - e.frequency * answered;
        x = x - e.presence;
    }
    return x;
}

}  // namespace

int make(Edits& e, const mlk_settings& s) {
    if (s.vocab < 1) return fail("vocab must be at least 1, got %d", s.vocab);
    e.vocab = s.vocab, e.biases = s.biases, e.stops = s.stops, e.min_tokens = s.min_tokens;
    e.repetition = s.repetition_penalty, e.frequency = s.frequency_penalty, e.presence = s.presence_penalty;
    if (check_ids(e, s.bias_ids, s.biases) || check_ids(e, s.stop_ids, s.stops)) return -1;
    if (copy(e.bias_ids, s.bias_ids, s.biases) || copy(e.bias, s.bias, s.biases)) return -1;
    if (copy(e.stop_ids, s.stop_ids, s.stops) || (s.bad_words && take_bad_words(e, s))) return -1;
    if (s.allowed >= 0 && take_allowed(e, s)) return -1;
    if (penalizes(e) && !make_room(e)) return fail("there is no memory for a sampler");
    see_whether_any(e);
    return 0;
}

void destroy(Edits& e) {
    for (int32_t* ids : {e.bias_ids, e.stop_ids, e.bad_word_ids, e.recent}) free(ids);
    for (uint32_t* bits : {e.allowed, e.mask}) free(bits);
    free(e.bias);
    free(e.counts);
}

int set_mask(Edits& e, const uint32_t* bits) {
    if (!bits) {
        free(e.mask);
        e.mask = nullptr;
    } else {
        if (!e.mask) e.mask = room_for<uint32_t>(words_of(e.vocab));
        if (!e.mask) return fail("there is no memory for a mask");
        memcpy(e.mask, bits, static_cast<size_t>(words_of(e.vocab)) * 4);
    }
    see_whether_any(e);
    return 0;
}

void note(Edits& e, int32_t id, bool is_answer) {
    e.answered += is_answer;
    if (penalizes(e) && (is_answer || e.repetition != 1.f)) count(e, id, is_answer);
    remember(e, id);
}

void edit(const Edits& e, float* x) {
    for (int i = 0; i < e.biases; i++) x[e.bias_ids[i]] = x[e.bias_ids[i]] + e.bias[i];
    if (e.allowed) keep_allowed(e.allowed, e.vocab, x);
    if (e.mask) keep_allowed(e.mask, e.vocab, x);
    if (e.answered < e.min_tokens)
        for (int i = 0; i < e.stops; i++) x[e.stop_ids[i]] = NEVER;
    avoid_bad_words(e, x);
    for (uint32_t i = 0; e.counts && i < e.room; i++)
        if (e.counts[i].id >= 0)
            x[e.counts[i].id] = penalized(e, x[e.counts[i].id], static_cast<float>(e.counts[i].answered));
}

}  // namespace mlk
