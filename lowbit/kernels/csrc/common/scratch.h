// Per-thread buffers for data that lives during one call, such as packed operands.
//
// A Scratch is a thread_local variable of the function that uses it: allocating and faulting in fresh pages
// for every layer would cost more than packing does. It grows to what is asked for, and shrinks again when a
// whole window of requests needed far less, so that one large layer does not hold its memory for the rest of
// the process. A training step asks for its largest layer well within a window, so that buffers do not change
// size in the steady state.
#pragma once
#include "common/common.h"

#include <algorithm>

// Bytes that the buffers of all threads hold at present.
LOWBIT_PUBLIC int64_t lowbit_scratch_bytes(void);

namespace lowbit {

class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { resize(0); }

    // At least `count` elements, aligned to a cache line, with undefined contents; what an earlier call
    // returned is no longer valid. Throws std::bad_alloc.
    template <class Element>
    Element* get(int64_t count) {
        const size_t bytes = (static_cast<size_t>(count) * sizeof(Element) + 63) / 64 * 64 + 64;
        largest_ = std::max(largest_, bytes);
        if (++requests_ == kWindow) {
            if (capacity_ > kAlwaysHeld && largest_ < capacity_ / 2) resize(largest_);
            requests_ = 0;
            largest_ = bytes;
        }
        if (bytes > capacity_) resize(bytes);
        return static_cast<Element*>(memory_);
    }

  private:
    static constexpr int kWindow = 1024;                    // requests
    static constexpr size_t kAlwaysHeld = size_t{1} << 20;  // bytes: less is not worth giving back

    void resize(size_t bytes);  // out of line: it is rare, and get() is inlined everywhere

    void* memory_ = nullptr;
    size_t capacity_ = 0;
    size_t largest_ = 0;  // request of this window
    int requests_ = 0;
};

}  // namespace lowbit
