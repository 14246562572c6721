#include "team.h"

#include <stdlib.h>
#include <unistd.h>

#include <new>

#include "rules.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace mlk {

namespace {

constexpr int SPINS = 3000;  // some 40 microseconds: longer than a stage, and than Python needs between two steps
constexpr uint64_t PIECES = (1 << 18) - 1, END = PIECES, STEPS = (1 << 28) - 1;

uint64_t ticket(uint64_t step, uint64_t next, uint64_t pieces) { return step << 36 | next << 18 | pieces; }
uint64_t step_of(uint64_t t) { return t >> 36; }
uint64_t next_of(uint64_t t) { return t >> 18 & PIECES; }
uint64_t pieces_of(uint64_t t) { return t & PIECES; }
uint32_t finished(uint64_t step, uint64_t pieces) { return static_cast<uint32_t>(step << 18 | pieces); }

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

}  // namespace

void Parking::wait_while(const std::atomic<uint32_t>& word, uint32_t value, int spins) {
    for (int i = 0; i < spins; i++) {
        if (word.load(std::memory_order_acquire) != value) return;
        relax();
    }
    sleepers_.fetch_add(1);  // in one order with the change and the look at it in `wake`
#if defined(__linux__)
    while (word.load() == value) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    pthread_mutex_lock(&mutex_);
    while (word.load() == value) pthread_cond_wait(&changed_, &mutex_);
    pthread_mutex_unlock(&mutex_);
#endif
    sleepers_.fetch_sub(1);
}

void Parking::wake(std::atomic<uint32_t>& word) {
    if (!sleepers_.load()) return;
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
#else
    (void)word;
    pthread_mutex_lock(&mutex_);
    pthread_cond_broadcast(&changed_);
    pthread_mutex_unlock(&mutex_);
#endif
}

bool Team::start(int threads, int most_stages) {
    pid_ = getpid();
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(Stage) * static_cast<size_t>(most_stages + 1))) return false;
    stages_ = static_cast<Stage*>(memory);
    for (int i = 0; i <= most_stages; i++) new (&stages_[i]) Stage;
    threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    for (int id = 1; id < threads; id++) {
        helpers_[id] = {this, id, {}};
        if (pthread_create(&helpers_[id].thread, nullptr, serve, &helpers_[id])) break;  // fewer do as well
        made_ = id + 1;
    }
    used_ = made_;
    return true;
}

Team::~Team() {
    if (getpid() == pid_) {
        over_.store(true);
        step_.fetch_add(1);
        parking.wake(step_);
        for (int id = 1; id < made_; id++) pthread_join(helpers_[id].thread, nullptr);
    }
    free(stages_);
}

int Team::size() const { return getpid() == pid_ ? used_ : 1; }

void* Team::serve(void* argument) {
    const Helper& self = *static_cast<Helper*>(argument);
    Team& team = *self.team;
    const RoundingMode mode;
    for (uint32_t seen = 0;;) {
        team.parking.wait_while(team.step_, seen, SPINS);
        seen = team.step_.load(std::memory_order_acquire);
        if (team.over_.load()) return nullptr;
        if (self.id <= team.helping_.load(std::memory_order_relaxed)) team.walk(seen & STEPS, self.id);
    }
}

void Team::walk(uint64_t step, int thread) {
    for (int i = 0;; i++) {
        Stage& stage = stages_[i];
        uint64_t t = stage.ticket.load(std::memory_order_acquire);
        if (step_of(t) != step || pieces_of(t) == END) return;
        const uint32_t all = finished(step, pieces_of(t));
        while (step_of(t) == step && next_of(t) < pieces_of(t)) {
            if (!stage.ticket.compare_exchange_weak(t, t + (1 << 18), std::memory_order_acq_rel,
                                                    std::memory_order_acquire))
                continue;
            // The step cannot end before this piece has, so all that it needs stands still.
            piece_(context_, thread, i, static_cast<int>(next_of(t)));
            if (stage.done.fetch_add(1) + 1 == all) parking.wake(stage.done);
            t = stage.ticket.load(std::memory_order_acquire);
        }
        if (thread && pieces_of(stages_[i + 1].ticket.load(std::memory_order_acquire)) == END) return;
        for (uint32_t d; (d = stage.done.load(std::memory_order_acquire)) != all && (d ^ all) >> 18 == 0;)
            parking.wait_while(stage.done, d, SPINS);
    }
}

void Team::run(const int* pieces, int stages, Piece piece, void* context) {
    if (size() == 1) {
        for (int i = 0; i < stages; i++)
            for (int p = 0; p < pieces[i]; p++) piece(context, 0, i, p);
        return;
    }
    piece_ = piece;
    context_ = context;
    helping_.store(used_ - 1, std::memory_order_relaxed);
    const uint64_t step = (step_.load(std::memory_order_relaxed) + 1) & STEPS;
    for (int i = 0; i < stages; i++) {
        stages_[i].done.store(finished(step, 0), std::memory_order_relaxed);
        stages_[i].ticket.store(ticket(step, 0, static_cast<uint64_t>(pieces[i])), std::memory_order_release);
    }
    stages_[stages].ticket.store(ticket(step, 0, END), std::memory_order_release);
    step_.fetch_add(1);
    parking.wake(step_);
    walk(step, 0);
}

}  // namespace mlk
