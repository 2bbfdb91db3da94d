// See thread_pool.h.
#include "runtime/thread_pool.h"

#if LOWBIT_X86 || defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowbit::runtime {
namespace {

constexpr int kSpins = 2000;  // some tens of microseconds

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard<std::mutex> lock(sleeping_);
        ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, const void* body, Call call) {
    const std::lock_guard<std::mutex> alone(one_loop_);
    body_ = body, call_ = call, count_ = count;
    next_ = 0;
    open_ = true;
    {
        const std::lock_guard<std::mutex> lock(sleeping_);
        generation_++;
    }
    wake_.notify_all();
    take_items();
    // A worker first says that it is inside, then looks whether it may be: it is waited for, or it leaves.
    open_ = false;
    for (int spin = 0; inside_; spin++) {
        if (spin < kSpins) {
            pause();
        } else {
            std::this_thread::yield();
        }
    }
}

void ThreadPool::take_items() {
    for (int64_t item; (item = next_.fetch_add(1)) < count_;) call_(body_, item);
}

void ThreadPool::work() {
    for (uint64_t seen = 0;;) {
        for (int spin = 0; spin < kSpins && generation_ == seen && !ends_; spin++) pause();
        if (generation_ == seen) {
            std::unique_lock<std::mutex> lock(sleeping_);
            wake_.wait(lock, [&] { return generation_ != seen || ends_; });
        }
        if (ends_) return;
        seen = generation_;
        inside_++;
        if (open_) take_items();
        inside_--;
    }
}

}  // namespace lowbit::runtime
