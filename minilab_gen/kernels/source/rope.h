// Tables of rotary angles, the same on every machine.
#pragma once

#include "minilab_kernels.h"

namespace mlk {

// Cosine and sine of each position and frequency, both (context, head_dim / 2).
void rope_tables(const mlk_shape& shape, float* cosine, float* sine);

}  // namespace mlk
