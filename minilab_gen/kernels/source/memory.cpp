#include "memory.h"

#include <sys/mman.h>

namespace mlk {

namespace {
constexpr int64_t PAGE = 4096, HUGE_PAGE = int64_t{2} << 20;
constexpr int64_t BEHIND = 4096;  // bytes that prefetches and whole vectors may touch behind the end

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
}  // namespace

bool Memory::allocate(int64_t bytes, bool huge) {
    free();
    const int64_t align = huge ? HUGE_PAGE : PAGE;
    bytes_ = bytes;
    mapped_bytes_ = up(bytes + BEHIND, PAGE) + (huge ? HUGE_PAGE : 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;  // caches are laid out for the longest sequences and cost what is used
#endif
    void* mapped = mmap(nullptr, static_cast<size_t>(mapped_bytes_), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED) {
        bytes_ = mapped_bytes_ = 0;
        return false;
    }
    mapped_ = static_cast<char*>(mapped);
    start_ = reinterpret_cast<char*>(up(reinterpret_cast<int64_t>(mapped_), align));
#if defined(MADV_HUGEPAGE)
    madvise(mapped_, static_cast<size_t>(mapped_bytes_), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    return true;
}

void Memory::free() {
    if (mapped_) munmap(mapped_, static_cast<size_t>(mapped_bytes_));
    start_ = mapped_ = nullptr;
    bytes_ = mapped_bytes_ = 0;
}

void Memory::release(int64_t start, int64_t bytes) {
    const int64_t from = up(reinterpret_cast<int64_t>(start_) + start, PAGE);
    const int64_t to = (reinterpret_cast<int64_t>(start_) + start + bytes) / PAGE * PAGE;
#if defined(__linux__)
    if (from < to) madvise(reinterpret_cast<void*>(from), static_cast<size_t>(to - from), MADV_DONTNEED);
#elif defined(MADV_FREE)
    if (from < to) madvise(reinterpret_cast<void*>(from), static_cast<size_t>(to - from), MADV_FREE);
#else
    (void)from, (void)to;
#endif
}

}  // namespace mlk
