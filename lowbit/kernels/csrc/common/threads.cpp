// Distribution of a job's items over threads, and the allocation of scratch memory; see threads.h and
// scratch.h.
#include "common/threads.h"

#include "common/scratch.h"

#include <cstdlib>

namespace {

std::atomic<lowbit_fork> fork_threads{nullptr};
std::atomic<lowbit_count> count_threads{nullptr};
std::atomic<int64_t> scratch_bytes{0};

void work(void* data) {
    lowbit::Job& job = *static_cast<lowbit::Job*>(data);
    try {
        for (int64_t item; (item = job.next.fetch_add(1)) < job.count;) job.call(job.body, item);
    } catch (...) {  // an exception must not leave a thread of the runtime
        if (!job.has_failed.exchange(true)) job.error = std::current_exception();
        job.next = job.count;
    }
}

}  // namespace

void lowbit_use_threads(lowbit_fork fork, lowbit_count count) {
    fork_threads = fork;
    count_threads = count;
}

int lowbit_threads(void) {
    const lowbit_count count = count_threads;
    return fork_threads && count ? count() : 1;
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
    const int threads = lowbit_threads();
    if (threads < 2 || job.count < 2) return work(&job);
    const int64_t wanted = threads < job.count ? threads : job.count;
    fork_threads.load()(work, &job, static_cast<unsigned>(wanted), 0);
}
