// The C interface of samplers: how they are made, what they are told, and choices from logits without a model.
#include <cstdlib>
#include <cstring>

#include "model.h"
#include "rules.h"

using namespace mlk;

mlk_sampler* mlk_sampler_create(const mlk_settings* settings) {
    mlk_sampler* sampler = static_cast<mlk_sampler*>(calloc(1, sizeof(mlk_sampler)));
    if (!sampler) {
        fail("there is no memory for a sampler");
        return nullptr;
    }
    sampler->divisor = settings->temperature, sampler->greedy = settings->temperature == 0.f;
    sampler->top_k = settings->top_k, sampler->top_p = settings->top_p, sampler->min_p = settings->min_p;
    if (make(sampler->edits, *settings)) {
        mlk_sampler_destroy(sampler);
        return nullptr;
    }
    seed(*sampler, settings->seed);
    return sampler;
}

void mlk_sampler_destroy(mlk_sampler* sampler) {
    if (sampler) destroy(sampler->edits);
    free(sampler);
}

int32_t mlk_sampler_begin(mlk_sampler* sampler, const int32_t* prompt, int64_t prompt_ids, const int32_t* answered,
                          int64_t answered_ids) {
    Edits& edits = sampler->edits;
    const struct {
        const int32_t* ids;
        int64_t count;
    } parts[] = {{prompt, prompt_ids}, {answered, answered_ids}};
    for (const auto& part : parts)
        for (int64_t i = 0; i < part.count; i++)
            if (part.ids[i] < 0 || part.ids[i] >= edits.vocab)
                return fail("ids must be from 0 to %d, got %d", edits.vocab - 1, part.ids[i]);
    for (int64_t i = 0; i < prompt_ids; i++) note(edits, prompt[i], false);
    for (int64_t i = 0; i < answered_ids; i++) note(edits, answered[i], true);
    if (!sampler->greedy && answered_ids > 0)
        skip(*sampler, 2 * static_cast<uint64_t>(edits.vocab) * static_cast<uint64_t>(answered_ids));
    return edits.lacks_memory ? fail("there is no memory for a sampler") : 0;
}

int32_t mlk_sampler_mask(mlk_sampler* sampler, const uint32_t* bits) { return set_mask(sampler->edits, bits); }

int32_t mlk_choose(const float* logits, int64_t stride, int32_t rows, int32_t vocab, mlk_sampler* const* samplers,
                   int32_t* tokens) {
    const Backend* backend = backend_or_error();
    Draw draw;
    if (!backend) return -1;
    if (!draw.at_least(vocab)) return fail("there is no memory for a draw");
    const RoundingMode mode;
    for (int r = 0; r < rows; r++)
        tokens[r] = choose(*backend, logits + r * stride, vocab, samplers ? samplers[r] : nullptr, draw);
    return 0;
}

int32_t mlk_probabilities(const float* logits, int32_t vocab, const mlk_sampler* sampler, float* out) {
    const Backend* backend = backend_or_error();
    Draw draw;
    if (!backend) return -1;
    if (!draw.at_least(vocab)) return fail("there is no memory for a draw");
    if (sampler->edits.vocab != vocab)
        return fail("vocab must be the sampler's, %d, got %d", sampler->edits.vocab, vocab);
    const RoundingMode mode;
    const float* own = edited(logits, vocab, *sampler, draw);
    if (backend->top(own, vocab).id < 0) return fail("no token is left");
    probabilities_of(*backend, own, vocab, *sampler, draw);
    memcpy(out, draw.probabilities.floats(), static_cast<size_t>(vocab) * 4);
    return 0;
}
