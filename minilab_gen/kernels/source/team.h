// Threads that compute the pieces of a step's stages, and never wait for one of them that has not begun.
//
// A stage is a ticket: which step it belongs to, how many pieces it has, which comes next. Whoever is there takes the
// next piece; when none is left, it waits until those taken are finished, and goes on to the next stage. So a helper
// that the operating system does not let run costs its share of the work and no more: nobody counts on it. One that
// comes late finds the pieces taken or, by the step's number in the ticket, the step over.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace mlk {

// A bounded spin, then sleep until the word changes.
class Parking {
  public:
    void wait_while(const std::atomic<uint32_t>& word, uint32_t value, int spins);
    void wake(std::atomic<uint32_t>& word);  // after a change of it

  private:
    std::atomic<int> sleepers_{0};
#if !defined(__linux__)
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed_ = PTHREAD_COND_INITIALIZER;
#endif
};

constexpr int MOST_THREADS = 256, MOST_PIECES = (1 << 18) - 2;

class Team {
  public:
    using Piece = void (*)(void* context, int thread, int stage, int piece);

    Team() = default;
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    bool start(int threads, int most_stages);
    void use(int threads) { used_ = threads < 1 ? 1 : threads > made_ ? made_ : threads; }
    int size() const;  // those used; 1 in a process that was forked from the one with the helpers
    int made() const { return made_; }

    // Compute all pieces of all stages, one stage after the other, this thread along with the others.
    void run(const int* pieces, int stages, Piece piece, void* context);

    Parking parking;  // for waits inside a piece, too

  private:
    struct alignas(64) Stage {
        std::atomic<uint64_t> ticket{0};  // step (28 bits), next piece (18), pieces (18)
        std::atomic<uint32_t> done{0};    // step (14 bits), finished pieces (18)
    };
    struct Helper {
        Team* team;
        int id;
        pthread_t thread;
    };
    static void* serve(void* helper);
    void walk(uint64_t step, int thread);

    int made_ = 1, used_ = 1;
    int pid_ = 0;
    Helper helpers_[MOST_THREADS];
    Stage* stages_ = nullptr;
    Piece piece_ = nullptr;
    void* context_ = nullptr;
    alignas(64) std::atomic<uint32_t> step_{0};
    std::atomic<int> helping_{0};
    std::atomic<bool> over_{false};
};

}  // namespace mlk
