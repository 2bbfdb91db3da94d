// Work on several threads, those of the OpenMP runtime that the process has already: this library links none.
#pragma once
#include "kernels.h"

#include <atomic>
#include <new>

// What OpenMP runtimes call GOMP_parallel: runs task(data) on that many threads (0: as many as it likes).
typedef void (*lowbit_fork)(void (*task)(void*), void* data, unsigned threads, unsigned flags);
// omp_get_max_threads.
typedef int (*lowbit_count)(void);

// Use a runtime's threads, as many as it says at the time; null pointers: one thread, as at the beginning.
LOWBIT_PUBLIC void lowbit_use_threads(lowbit_fork fork, lowbit_count count);
LOWBIT_PUBLIC int lowbit_threads(void);

namespace lowbit {

constexpr int64_t kItemsPerThread = 4;  // of a product's work, so that threads finish together

struct Job {
    int64_t count;
    const void* body;
    void (*call)(const void* body, int64_t item);
    std::atomic<int64_t> next{0};
    std::atomic<bool> out_of_memory{false};
};

void run_job(Job& job);

// body(0) ... body(count - 1), in any order, at the same time as far as there are threads. Results must not
// depend on who does what. std::bad_alloc when an item threw it.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
    Job job{count, &body, [](const void* of, int64_t item) { (*static_cast<const Body*>(of))(item); }};
    run_job(job);
    if (job.out_of_memory) throw std::bad_alloc();
}

}  // namespace lowbit
