// See thread_pool.h.
#include "runtime/thread_pool.h"

#if LOWBIT_X86 || defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowbit::runtime {
namespace {

constexpr int kSpins = 20000;  // some tens of microseconds

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
    {
        const std::lock_guard<std::mutex> lock(sleeping_);
        body_ = body, call_ = call, count_ = count;
        next_ = 0;
        busy_ = static_cast<int>(workers_.size());
        generation_++;
    }
    wake_.notify_all();
    take_items();
    while (busy_.load(std::memory_order_acquire)) pause();
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
        take_items();
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace lowbit::runtime
