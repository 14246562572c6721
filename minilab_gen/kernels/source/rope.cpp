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

float scaled_as_llama3(float frequency, const mlk_shape& s) {
    const float turns = static_cast<float>(s.rope_original) / (static_cast<float>(TWO_PI) / frequency);
    // 0: slowed down by the whole factor; 1: as it was
    const float share =
        clamped((turns - static_cast<float>(s.rope_low)) / static_cast<float>(s.rope_high - s.rope_low));
    return (1.f - share) * frequency / static_cast<float>(s.rope_factor) + share * frequency;
}

// Where YaRN's mixture begins and ends, in pairs of dimensions.
struct Range {
    double low, high;
};

Range yarn_range(const mlk_shape& s, double log_theta) {
    auto pair_that_turns = [&](double times) {
        return s.head_dim * exact_log(s.rope_original / (times * TWO_PI)) / (2 * log_theta);
    };
    Range range = {pair_that_turns(s.rope_high), pair_that_turns(s.rope_low)};
    if (s.rope_truncate) range = {std::floor(range.low), std::ceil(range.high)};
    range = {range.low < 0 ? 0 : range.low, range.high > s.head_dim - 1 ? s.head_dim - 1 : range.high};
    if (range.low == range.high) range.high += 0.001;
    return range;
}

float scaled_as_yarn(float power, int pair, const mlk_shape& s, const Range& range) {
    const float ramp = clamped((static_cast<float>(pair) - static_cast<float>(range.low)) /
                               static_cast<float>(range.high - range.low));
    const float share = 1.f - ramp, slow = 1.f / (static_cast<float>(s.rope_factor) * power);
    return slow * (1.f - share) + 1.f / power * share;
}

// Radians for each position; `power` is theta to the pair's share of the head.
float frequency_of(float power, int pair, const mlk_shape& s, const Range& range) {
    switch (s.rope_kind) {
        case MLK_ROPE_LINEAR: return 1.f / power / static_cast<float>(s.rope_factor);
        case MLK_ROPE_LLAMA3: return scaled_as_llama3(1.f / power, s);
        case MLK_ROPE_YARN: return scaled_as_yarn(power, pair, s, range);
        case MLK_ROPE_LONG: return 1.f / (s.rope_divisors[pair] * power);
        default: return 1.f / power;
    }
}

}  // namespace

void rope_tables(const mlk_shape& s, float* cosine, float* sine) {
    const int half = s.head_dim / 2;
    const double log_theta = exact_log(s.rope_theta);
    const Range range = s.rope_kind == MLK_ROPE_YARN ? yarn_range(s, log_theta) : Range{};
    const float attention = s.rope_attention > 0 ? static_cast<float>(s.rope_attention) : 1.f;
    for (int i = 0; i < half; i++) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(s.head_dim);
        const float power = static_cast<float>(exact_exp(exponent * log_theta));
        const float frequency = frequency_of(power, i, s, range);
        for (int64_t position = 0; position < s.context; position++) {
            const float angle = static_cast<float>(position) * frequency;
            double sin, cos;
            exact_sine_cosine(angle, &sin, &cos);
            cosine[position * half + i] = static_cast<float>(cos) * attention;
            sine[position * half + i] = static_cast<float>(sin) * attention;
        }
    }
}

}  // namespace mlk
