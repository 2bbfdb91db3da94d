// Sharing out the items of a job; see threads.h.
#include "threads.h"

namespace {

std::atomic<lowbit_fork> fork_threads{nullptr};
std::atomic<lowbit_count> count_threads{nullptr};

void work(void* data) {
    lowbit::Job& job = *static_cast<lowbit::Job*>(data);
    try {
        for (int64_t item; (item = job.next.fetch_add(1)) < job.count;) job.call(job.body, item);
    } catch (const std::bad_alloc&) {  // it must not leave a thread
        job.out_of_memory = true;
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

void lowbit::run_job(Job& job) {
    const int threads = lowbit_threads();
    if (threads < 2 || job.count < 2) return work(&job);
    const int64_t wanted = threads < job.count ? threads : job.count;
    fork_threads.load()(work, &job, static_cast<unsigned>(wanted), 0);
}
