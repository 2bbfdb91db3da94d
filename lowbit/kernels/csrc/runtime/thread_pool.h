// The threads of an engine. They wait between steps: first spinning, since the next step is near, then
// asleep. A loop waits only for threads that have entered it: one that gets no processor, on a busy machine,
// does not hold up the others.
#pragma once
#include "runtime/runtime.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace lowbit::runtime {

class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // body(0) ... body(count - 1), in any order, also on the calling thread; results must not depend on it.
    // The body must not throw. One loop runs at a time: plans of one engine wait for each other.
    template <class Body>
    void parallel_for(int64_t count, const Body& body) {
        if (workers_.empty() || count < 2) {
            for (int64_t item = 0; item < count; item++) body(item);
            return;
        }
        run(count, &body, [](const void* of, int64_t item) { (*static_cast<const Body*>(of))(item); });
    }

  private:
    using Call = void (*)(const void* body, int64_t item);

    void run(int64_t count, const void* body, Call call);
    void work();
    void take_items();

    std::vector<std::thread> workers_;
    std::mutex one_loop_, sleeping_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};  // counts loops
    std::atomic<bool> open_{false};        // whether a loop may be entered
    std::atomic<int> inside_{0};           // workers that are in a loop, or about to see that it is closed
    std::atomic<bool> ends_{false};
    std::atomic<int64_t> next_{0};
    int64_t count_ = 0;
    const void* body_ = nullptr;
    Call call_ = nullptr;
};

}  // namespace lowbit::runtime
