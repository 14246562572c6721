#include "processor.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mlk {

extern const Backend backend_plain;
#if defined(__x86_64__)
extern const Backend backend_avx2, backend_avx512;
#elif defined(__aarch64__)
extern const Backend backend_neon;
#endif

namespace {

struct Candidate {
    const Backend* backend;
    uint32_t ecx1, ebx7, xcr0;  // all that its object was compiled for; a processor must have every bit
};
constexpr uint32_t FMA = 1u << 12, OSXSAVE = 1u << 27, AVX = 1u << 28;
constexpr uint32_t AVX2 = 1u << 5, AVX512F = 1u << 16, AVX512DQ = 1u << 17, AVX512BW = 1u << 30, AVX512VL = 1u << 31;
constexpr uint32_t YMM_SAVED = 0x6, ZMM_SAVED = 0xe6;

const Candidate CANDIDATES[] = {
// best first
#if defined(__x86_64__)
    {&backend_avx512, FMA | OSXSAVE | AVX, AVX2 | AVX512F | AVX512DQ | AVX512BW | AVX512VL, ZMM_SAVED},
    {&backend_avx2, FMA | OSXSAVE | AVX, AVX2, YMM_SAVED},
#elif defined(__aarch64__)
    {&backend_neon, 0, 0, 0},  // every ARM of 64 bits has NEON, and nothing beyond it is used
#endif
    {&backend_plain, 0, 0, 0},
};

bool runs(const Candidate& c, const Features& has) {
    return (has.ecx1 & c.ecx1) == c.ecx1 && (has.ebx7 & c.ebx7) == c.ebx7 && (has.xcr0 & c.xcr0) == c.xcr0;
}

}  // namespace

Features features() {
    Features has = {0, 0, 0};
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) has.ecx1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) has.ebx7 = b;
    if (has.ecx1 & OSXSAVE) {
        unsigned low, high;
        asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        has.xcr0 = low;
    }
#endif
    return has;
}

const Backend* best_for(const Features& has) {
    for (const Candidate& c : CANDIDATES)
        if (runs(c, has)) return c.backend;
    return nullptr;
}

const Backend* named(const char* name, const Features& has) {
    for (const Candidate& c : CANDIDATES)
        if (!strcmp(c.backend->name, name)) return runs(c, has) ? c.backend : nullptr;
    return nullptr;
}

const Backend* chosen() {
    const char* name = getenv("MINILAB_KERNELS");
    return name && *name ? named(name, features()) : best_for(features());
}

const char* runnable() {
    static thread_local char names[64];
    names[0] = 0;
    const Features has = features();
    for (const Candidate& c : CANDIDATES)
        if (runs(c, has)) {
            if (names[0]) strcat(names, " ");
            strcat(names, c.backend->name);
        }
    return names;
}

}  // namespace mlk
