// parallel_for on the threads of the OpenMP runtime that Paddle has loaded.
//
// The library links no OpenMP itself: a second runtime in the process would compete for the same processors.
// Python passes in three functions of the first one instead.
//
// Each thread has its own consecutive share of a job's items, always the same one, and helps others when it
// is done. Most jobs go through a tensor in the order of its images, so that a thread mostly reads what it
// wrote itself: processors need not share a cache (the core complexes of an AMD processor do not).
#pragma once
#include "common/common.h"

#include <atomic>
#include <exception>

// GOMP_parallel of an OpenMP runtime: runs task(data) on that many threads.
typedef void (*lowbit_fork)(void (*task)(void*), void* data, unsigned threads, unsigned flags);
// omp_get_max_threads, and omp_get_thread_num: a thread's number among those that run a task.
typedef int (*lowbit_count)(void);

// Use a runtime's threads, as many as it reports at each call. Null pointers, as at the start: one thread.
LOWBIT_PUBLIC void lowbit_use_threads(lowbit_fork fork, lowbit_count count, lowbit_count number);
LOWBIT_PUBLIC int lowbit_threads(void);

// The seconds that a cache line takes from one thread to another: some 30 ns where their processors share a
// cache, 100 or more where they do not. 0 if there is only one thread, or a second one does not come.
LOWBIT_PUBLIC int lowbit_exchange_time(double* seconds);

namespace lowbit {

constexpr int64_t kItemsPerThread =
    4;  // items to divide a product into, so that threads finish at about the same time

struct Job {
    int64_t count;
    const void* body;
    void (*call)(const void* body, int64_t item);
    std::atomic<bool> has_failed{false};
    std::exception_ptr error{};  // of the item that failed first
};

void run_job(Job& job);

// body(0) ... body(count - 1), in any order and at the same time on several threads. Results must not depend
// on which thread does what. Rethrows what an item threw.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
    Job job{count, &body, [](const void* of, int64_t item) { (*static_cast<const Body*>(of))(item); }};
    run_job(job);
    if (job.has_failed) std::rethrow_exception(job.error);
}

// The same, on this thread alone where the work is not worth others.
template <class Body>
void for_each(bool in_parallel, int64_t count, const Body& body) {
    if (in_parallel) return parallel_for(count, body);
    for (int64_t item = 0; item < count; ++item) body(item);
}

}  // namespace lowbit
