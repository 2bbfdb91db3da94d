// Distribution of a job's items over threads, and the allocation of scratch memory; see threads.h and
// scratch.h.
#include "common/threads.h"

#include "common/scratch.h"

#include <chrono>
#include <cstdlib>

namespace {

std::atomic<lowbit_fork> fork_threads{nullptr};
std::atomic<lowbit_count> count_threads{nullptr}, number_of_thread{nullptr};
std::atomic<int64_t> scratch_bytes{0};

constexpr int kMaxShares = 64;  // more threads than this begin in the middle of others' shares

// A thread's items that nobody has taken yet; in a cache line of its own.
struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
};

struct SharedJob {
    lowbit::Job& job;
    const int shares;
    Share share[kMaxShares];

    SharedJob(lowbit::Job& of, int64_t threads)
        : job(of), shares(int(std::min<int64_t>(threads, kMaxShares))) {
        for (int64_t i = 0; i < shares; ++i) {
            share[i].next = job.count * i / shares;
            share[i].end = job.count * (i + 1) / shares;
        }
    }
};

// The own share, then what is left of the others'.
void work(void* data) {
    SharedJob& shared = *static_cast<SharedJob*>(data);
    const lowbit::Job& job = shared.job;
    const int first = number_of_thread.load()();
    try {
        for (int turn = 0; turn < shared.shares; ++turn) {
            Share& share = shared.share[(first + turn) % shared.shares];
            for (int64_t item; !job.has_failed && (item = share.next.fetch_add(1)) < share.end;) {
                job.call(job.body, item);
            }
        }
    } catch (...) {  // an exception must not leave a thread of the runtime
        if (!shared.job.has_failed.exchange(true)) shared.job.error = std::current_exception();
    }
}

}  // namespace

void lowbit_use_threads(lowbit_fork fork, lowbit_count count, lowbit_count number) {
    fork_threads = fork;
    count_threads = count;
    number_of_thread = number;
}

int lowbit_threads(void) {
    const lowbit_count count = count_threads;
    return fork_threads && count && number_of_thread ? count() : 1;
}

int64_t lowbit_scratch_bytes(void) { return scratch_bytes; }

void lowbit::Scratch::resize(size_t bytes) {
    std::free(memory_);
    memory_ = bytes ? std::aligned_alloc(64, bytes) : nullptr;
    const size_t before = capacity_;
    capacity_ = memory_ ? bytes : 0;
    scratch_bytes += static_cast<int64_t>(capacity_) - static_cast<int64_t>(before);
    if (bytes && !memory_) throw std::bad_alloc();
}

void lowbit::run_job(Job& job) {
    const int64_t threads = lowbit_threads(), wanted = threads < job.count ? threads : job.count;
    if (wanted < 2) {
        for (int64_t item = 0; item < job.count; ++item) job.call(job.body, item);
        return;
    }
    SharedJob shared(job, wanted);
    fork_threads.load()(work, &shared, static_cast<unsigned>(wanted), 0);
}

int lowbit_exchange_time(double* seconds) {
    return lowbit::guarded([&] {
        using Clock = std::chrono::steady_clock;
        constexpr int64_t kExchanges = 4000, kFirst = 100;  // those before are for both to arrive
        alignas(64) std::atomic<int64_t> turn{0};
        const Clock::time_point latest = Clock::now() + std::chrono::milliseconds(100);
        *seconds = 0;
        if (lowbit_threads() < 2) return;
        lowbit::parallel_for(2, [&](int64_t own) {  // even turns are of the first thread
            Clock::time_point start{};
            for (int64_t mine = own; mine < kExchanges; mine += 2) {
                for (int64_t spin = 1; turn.load(std::memory_order_acquire) != mine; ++spin) {
                    if (spin % 1024 == 0 && Clock::now() > latest) return;
                }
                if (mine == kFirst) start = Clock::now();
                turn.store(mine + 1, std::memory_order_release);
            }
            const std::chrono::duration<double> passed = Clock::now() - start;
            if (own == 0) *seconds = passed.count() / double(kExchanges - kFirst);
        });
    });
}
