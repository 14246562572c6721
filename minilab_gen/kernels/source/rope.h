// Tables of rotary angles, the same on every machine.
#pragma once

#include "minilab_kernels.h"

namespace mlk {

// What is wrong with a rope of so many dimensions, or null.
const char* wrong_rope(const mlk_rope& rope, int rope_dim);
// Cosine and sine of each position and frequency, both (context, rope_dim / 2).
void rope_tables(const mlk_rope& rope, int rope_dim, int context, float* cosine, float* sine);

}  // namespace mlk
