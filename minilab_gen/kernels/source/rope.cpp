// Su et al. 2021, "RoFormer"; how angles are scaled for contexts longer than the trained one: Chen et al. 2023,
// "Extending Context Window of Large Language Models via Positional Interpolation" (linear); Grattafiori et al. 2024,
// "The Llama 3 Herd of Models"; Peng et al. 2023, "YaRN"; Ding et al. 2024, "LongRoPE".
//
// Frequencies and angles are rounded to float at the places where everybody rounds them, since models were trained with
// these roundings, which add up far into a long context. Between them everything is in double and our own.
#include "rope.h"

#include <cmath>

#include "exact_math.h"

namespace mlk {

namespace {

constexpr double TWO_PI = 6.283185307179586;

float clamped(float share) { return share < 0 ? 0.f : share > 1 ? 1.f : share; }

float scaled_as_llama3(float frequency, const mlk_rope& s) {
    const float turns = static_cast<float>(s.original) / (static_cast<float>(TWO_PI) / frequency);
    // 0: slowed down by the whole factor; 1: as it was
    const float share = clamped((turns - static_cast<float>(s.low)) / static_cast<float>(s.high - s.low));
    return (1.f - share) * frequency / static_cast<float>(s.factor) + share * frequency;
}

// Where YaRN's mixture begins and ends, in pairs of dimensions.
struct Range {
    double low, high;
};

Range yarn_range(const mlk_rope& s, int dim, double log_theta) {
    auto pair_that_turns = [&](double times) {
        return dim * exact_log(s.original / (times * TWO_PI)) / (2 * log_theta);
    };
    Range range = {pair_that_turns(s.high), pair_that_turns(s.low)};
    if (s.truncate) range = {std::floor(range.low), std::ceil(range.high)};
    range = {range.low < 0 ? 0 : range.low, range.high > dim - 1 ? dim - 1 : range.high};
    if (range.low == range.high) range.high += 0.001;
    return range;
}

float scaled_as_yarn(float power, int pair, const mlk_rope& s, const Range& range) {
    const float ramp = clamped((static_cast<float>(pair) - static_cast<float>(range.low)) /
                               static_cast<float>(range.high - range.low));
    const float share = 1.f - ramp, slow = 1.f / (static_cast<float>(s.factor) * power);
    return slow * (1.f - share) + 1.f / power * share;
}

// Radians for each position; `power` is theta to the pair's share of the head.
float frequency_of(float power, int pair, const mlk_rope& s, const Range& range) {
    switch (s.kind) {
        case MLK_ROPE_LINEAR: return 1.f / power / static_cast<float>(s.factor);
        case MLK_ROPE_LLAMA3: return scaled_as_llama3(1.f / power, s);
        case MLK_ROPE_YARN: return scaled_as_yarn(power, pair, s, range);
        case MLK_ROPE_LONG: return 1.f / (s.divisors[pair] * power);
        default: return 1.f / power;
    }
}

}  // namespace

const char* wrong_rope(const mlk_rope& s, int dim) {
    if (s.kind < MLK_ROPE_PLAIN || s.kind > MLK_ROPE_LONG) return "there is no such kind of rope";
    if (!(s.theta > 0)) return "theta must be above 0";
    if (s.kind == MLK_ROPE_LONG && !s.divisors) return "this kind of rope must have divisors";
    if (s.kind != MLK_ROPE_PLAIN && s.kind != MLK_ROPE_LONG && !(s.factor > 0))
        return "the rope's factor must be above 0";
    if (s.kind == MLK_ROPE_YARN && !(s.original > 0 && s.low > 0 && s.high > 0 && s.theta > 1))
        return "YaRN must have its turns and its trained context above 0, and theta above 1";
    return dim > 0 ? nullptr : "this model turns no dimensions";
}

void rope_tables(const mlk_rope& s, int dim, int context, float* cosine, float* sine) {
    const int half = dim / 2;
    const double log_theta = exact_log(s.theta);
    const Range range = s.kind == MLK_ROPE_YARN ? yarn_range(s, dim, log_theta) : Range{};
    const float attention = s.attention > 0 ? static_cast<float>(s.attention) : 1.f;
    for (int i = 0; i < half; i++) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
        const float power = static_cast<float>(exact_exp(exponent * log_theta));
        const float frequency = frequency_of(power, i, s, range);
        for (int64_t position = 0; position < context; position++) {
            const float angle = static_cast<float>(position) * frequency;
            double sin, cos;
            exact_sine_cosine(angle, &sin, &cos);
            cosine[position * half + i] = static_cast<float>(cos) * attention;
            sine[position * half + i] = static_cast<float>(sin) * attention;
        }
    }
}

}  // namespace mlk
