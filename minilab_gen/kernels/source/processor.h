// Which back end this processor, and its operating system, can run.
#pragma once

#include "backend.h"

namespace mlk {

struct Features {
    uint32_t ecx1, ebx7;  // CPUID leaf 1 and leaf 7
    uint32_t xcr0;        // which registers the operating system saves; 0 where it does not say
};
Features features();
// The best back end for these features that was compiled in.
const Backend* best_for(const Features& has);
// The one named, if it is compiled in and runs with these features; else null.
const Backend* named(const char* name, const Features& has);
// The one in use: MINILAB_KERNELS names it, else the best. Null where that name is none that runs here.
const Backend* chosen();
const char* runnable();

}  // namespace mlk
