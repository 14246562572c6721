// log_softmax of single tokens: (x - highest) - log(sum of exp(x - highest)), summed by rule 2, else in double, rounded
// to float at the end.
#include "logprobs.h"

#include "exact_math.h"

namespace mlk {

namespace {

// The ids of the most probable, found in one pass: the list is short, and nearly all ids fail at its end.
int most_probable(const float* logits, int vocab, int count, int32_t* ids) {
    int found = 0;
    for (int i = 0; i < vocab && count; i++) {
        if (found == count && logits[i] <= logits[ids[count - 1]]) continue;
        int at = found < count ? found++ : count - 1;
        for (; at && logits[ids[at - 1]] < logits[i]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
    return found;
}

}  // namespace

void logprobs(const Backend& backend, const float* logits, int vocab, const Logprobs& wanted, Draw& draw) {
    for (int i = 0; i < wanted.count; i++) wanted.ids[i] = -1, wanted.of_ids[i] = 0.f;
    *wanted.of_token = __builtin_nanf("");
    const Top top = backend.top(logits, vocab);
    if (top.id < 0 || wanted.token < 0) return;
    const float sum = backend.exponentials(logits, vocab, top.highest, 1.f, draw.probabilities.floats());
    const double highest = static_cast<double>(top.highest), whole = exact_log(static_cast<double>(sum));
    auto of = [&](int id) {
        const float x = static_cast<float>((static_cast<double>(logits[id]) - highest) - whole);
        return x > LEAST_LOGPROB ? x : LEAST_LOGPROB;
    };
    *wanted.of_token = of(wanted.token);
    const int found = most_probable(logits, vocab, wanted.count, wanted.ids);
    for (int i = 0; i < found; i++) wanted.of_ids[i] = of(wanted.ids[i]);
}

}  // namespace mlk
