// Memory straight from the operating system: only addresses until it is written, in huge pages where that pays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlk {

class Memory {
  public:
    Memory() = default;
    ~Memory() { free(); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    // False where there is no room. Zeros; a huge page is backed whole by its first write.
    bool allocate(int64_t bytes, bool huge);
    void free();
    // Give the pages between back; they read as zeros, or as what they held.
    void release(int64_t start, int64_t bytes);

    template <class T> T* as() const { return reinterpret_cast<T*>(start_); }
    int64_t bytes() const { return bytes_; }

  private:
    char *start_ = nullptr, *mapped_ = nullptr;
    int64_t bytes_ = 0, mapped_bytes_ = 0;
};

// A piece of memory that is made anew when more is wanted than it has; what it held is lost.
class Scratch {
  public:
    bool at_least(int64_t floats) {
        const int64_t bytes = floats * 4;
        return bytes <= memory_.bytes() || memory_.allocate(bytes + bytes / 4, bytes >= (1 << 20));
    }
    float* floats() const { return memory_.as<float>(); }

  private:
    Memory memory_;
};

}  // namespace mlk
