// Su et al. 2021, "RoFormer"; Grattafiori et al. 2024, "The Llama 3 Herd of Models" (the scaling of slow angles).
//
// Frequencies and angles are rounded to float at the places where everybody rounds them, since models were trained with
// these roundings, which add up far into a long context. Between them everything is in double and our own.
#include "rope.h"

#include "exact_math.h"

namespace mlk {

namespace {

constexpr double TWO_PI = 6.283185307179586;

float scaled(float frequency, const mlk_shape& s) {
    const float turns = static_cast<float>(s.rope_original) / (static_cast<float>(TWO_PI) / frequency);
    float share = (turns - static_cast<float>(s.rope_low)) / static_cast<float>(s.rope_high - s.rope_low);
    share = share < 0 ? 0 : share > 1 ? 1 : share;  // 0: slowed down by the whole factor; 1: as it was
    return (1.f - share) * frequency / static_cast<float>(s.rope_factor) + share * frequency;
}

}  // namespace

void rope_tables(const mlk_shape& s, float* cosine, float* sine) {
    const int half = s.head_dim / 2;
    const double log_theta = exact_log(s.rope_theta);
    for (int i = 0; i < half; i++) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(s.head_dim);
        float frequency = 1.f / static_cast<float>(exact_exp(exponent * log_theta));
        if (s.rope_factor > 0) frequency = scaled(frequency, s);
        for (int64_t position = 0; position < s.context; position++) {
            const float angle = static_cast<float>(position) * frequency;
            double sin, cos;
            exact_sine_cosine(angle, &sin, &cos);
            cosine[position * half + i] = static_cast<float>(cos);
            sine[position * half + i] = static_cast<float>(sin);
        }
    }
}

}  // namespace mlk
