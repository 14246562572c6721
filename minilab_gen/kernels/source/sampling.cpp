// Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
// Neural Text Degeneration" (top-p); Matsumoto and Nishimura 1998, "Mersenne Twister"; the draw is that of
// torch.multinomial: a race in which token i arrives after a time that is exponential with rate p_i. Nguyen et al.
// 2024, "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs" (min-p).
#include "sampling.h"

#include <algorithm>
#include <cstring>

#include "exact_math.h"
#include "minilab_kernels.h"

namespace mlk {

namespace {

constexpr uint32_t N = 624, M = 397;

uint32_t twisted(uint32_t high, uint32_t low) {
    const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (y >> 1) ^ ((0u - (low & 1u)) & 0x9908b0dfu);
}

void refill(mlk_sampler& g) {  // in three loops without a wrap, so that the compiler can take several numbers at once
    uint32_t* s = g.state;
    for (uint32_t i = 0; i < N - M; i++) s[i] = s[i + M] ^ twisted(s[i], s[i + 1]);
    for (uint32_t i = N - M; i < N - 1; i++) s[i] = s[i + M - N] ^ twisted(s[i], s[i + 1]);
    s[N - 1] = s[M - 1] ^ twisted(s[N - 1], s[0]);
    g.used = 0;
}

uint32_t next(mlk_sampler& g) {
    if (g.used == N) refill(g);
    uint32_t y = g.state[g.used++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

// From 0 to 1 without 1, in steps of 2^-53, as torch makes its doubles.
double uniform(mlk_sampler& g) {
    const uint64_t high = next(g), low = next(g);
    return static_cast<double>((high << 32 | low) & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

// Added from left to right in double and rounded once, as torch's cumsum does, so that its last element is equal.
float total(const float* p, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += static_cast<double>(p[i]);
    return static_cast<float>(sum);
}

// Every token at least as probable as the k-th stays.
void keep_top_k(float* p, int vocab, int k, float* scratch) {
    memcpy(scratch, p, static_cast<size_t>(vocab) * 4);
    std::nth_element(scratch, scratch + k - 1, scratch + vocab, [](float a, float b) { return a > b; });
    const float least = scratch[k - 1];
    for (int i = 0; i < vocab; i++) p[i] = p[i] < least ? 0.f : p[i];
}

// The most probable tokens stay whose predecessors sum to less than the share; of equals the lowest ids.
//
// To sort all would take longest. Those above a threshold are sorted instead, and the threshold falls until their sum
// reaches the share: the rest cannot matter then, since it follows all of them.
void keep_top_p(float* p, int vocab, float share, uint64_t* kept) {
    float most = 0;
    for (int i = 0; i < vocab; i++) most = p[i] > most ? p[i] : most;
    const float bound = share * total(p, vocab);
    for (float threshold = most / 64;; threshold = threshold > 1e-30f ? threshold / 256 : 0.f) {
        int count = 0;
        for (int i = 0; i < vocab; i++) {
            uint32_t bits;
            memcpy(&bits, &p[i], 4);  // of numbers that are not negative, bits are ordered as they are
            kept[count] = static_cast<uint64_t>(~bits) << 32 | static_cast<uint32_t>(i);
            count += p[i] >= threshold && p[i] > 0.f;
        }
        // The most probable first, then by id. Compared by a function of ours: libc++ has the usual sort compiled, and
        // a build without a C++ library could not be loaded.
        std::sort(kept, kept + count, [](uint64_t a, uint64_t b) { return a < b; });
        double sum = 0;
        int inside = 0;
        float before = 0;
        for (; inside < count && (inside == 0 || before < bound); inside++) {
            sum += static_cast<double>(p[static_cast<uint32_t>(kept[inside])]);
            before = static_cast<float>(sum);
        }
        if (before < bound && threshold > 0.f) continue;
        if (inside < count || threshold > 0.f) {
            const uint64_t last = kept[inside - 1];
            for (int i = 0; i < vocab; i++) {
                uint32_t bits;
                memcpy(&bits, &p[i], 4);
                if ((static_cast<uint64_t>(~bits) << 32 | static_cast<uint32_t>(i)) > last) p[i] = 0.f;
            }
        }
        return;
    }
}

// Every token at least min_p times as probable as the most probable one stays, which itself always does.
void keep_min_p(float* p, int vocab, float min_p) {
    float most = 0;
    for (int i = 0; i < vocab; i++) most = p[i] > most ? p[i] : most;
    const float least = min_p * most;
    for (int i = 0; i < vocab; i++) p[i] = p[i] < least ? 0.f : p[i];
}

// The token with the highest p / noise, noise = -log(1 - u) with a number u for each; of equals the lowest id.
//
// -log(1 - u) >= u, so a token whose p / u is below the best score has lost without a logarithm. With the most probable
// token's score to begin with, a few logarithms remain of thousands.
int race(const float* p, int vocab, mlk_sampler& g) {
    constexpr double SLACK = 1 + 1e-6;  // more than the roundings of noise and score to float
    int winner = -1;
    float best = -1;
    for (int i = 0; i < vocab; i++) {
        if (p[i] <= 0.f) {  // its number is passed over, but not made
            skip(g, 2);
            continue;
        }
        const double u = uniform(g);
        if (static_cast<double>(p[i]) * SLACK < static_cast<double>(best) * u) continue;
        const float noise = u > 0 ? static_cast<float>(-exact_log(1 - u)) : 0.f;
        const float score = p[i] / noise;
        if (score > best) best = score, winner = i;
    }
    return winner;
}

}  // namespace

void seed(mlk_sampler& g, uint64_t number) {
    g.state[0] = static_cast<uint32_t>(number);
    for (uint32_t i = 1; i < N; i++) g.state[i] = 1812433253u * (g.state[i - 1] ^ (g.state[i - 1] >> 30)) + i;
    g.used = N;
}

void skip(mlk_sampler& g, uint64_t numbers) {
    while (numbers > N - g.used) {
        numbers -= N - g.used;
        refill(g);
    }
    g.used += static_cast<uint32_t>(numbers);
}

void probabilities_of(const Backend& backend, const float* logits, int vocab, const mlk_sampler& sampler, Draw& draw) {
    float* p = draw.probabilities.floats();
    const Top top = backend.top(logits, vocab);
    const float sum = backend.exponentials(logits, vocab, top.highest, sampler.divisor, p);
    backend.divide(p, vocab, sum);
    if (sampler.top_k > 0 && sampler.top_k < vocab) keep_top_k(p, vocab, sampler.top_k, draw.kept.floats());
    if (sampler.top_p < 1.f) keep_top_p(p, vocab, sampler.top_p, reinterpret_cast<uint64_t*>(draw.kept.floats()));
    if (sampler.min_p > 0.f) keep_min_p(p, vocab, sampler.min_p);
    backend.divide(p, vocab, total(p, vocab));
}

const float* edited(const float* logits, int vocab, const mlk_sampler& sampler, Draw& draw) {
    if (!sampler.edits.any) return logits;
    float* own = draw.edited.floats();
    memcpy(own, logits, static_cast<size_t>(vocab) * 4);
    edit(sampler.edits, own);
    return own;
}

int choose(const Backend& backend, const float* logits, int vocab, mlk_sampler* sampler, Draw& draw) {
    const Top top = backend.top(logits, vocab);
    if (top.id < 0 || !sampler) return top.id;
    Edits& edits = sampler->edits;
    if (edits.vocab != vocab || edits.lacks_memory) return MLK_NO_ROOM;
    const float* own = edited(logits, vocab, *sampler, draw);
    int token = own == logits ? top.id : backend.top(own, vocab).id;
    if (token < 0) return MLK_ALL_MASKED;
    if (!sampler->greedy) {
        probabilities_of(backend, own, vocab, *sampler, draw);
        token = race(draw.probabilities.floats(), vocab, *sampler);
    }
    note(edits, token, true);
    return token;
}

}  // namespace mlk
