// Memory for what lives during one product: kept by the thread and only ever made larger.
#pragma once
#include <stdint.h>

#include <cstdlib>
#include <new>

namespace lowbit {

class Room {
  public:
    Room() = default;
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() { std::free(memory_); }

    // At least `count` elements, aligned to a cache line; what was there is lost. std::bad_alloc when out of it.
    template <class Element>
    Element* of(int64_t count) {
        const size_t bytes = (static_cast<size_t>(count) * sizeof(Element) + 63) / 64 * 64 + 64;
        if (bytes > bytes_) {
            std::free(memory_);
            memory_ = std::aligned_alloc(64, bytes);
            bytes_ = memory_ ? bytes : 0;
            if (!memory_) throw std::bad_alloc();
        }
        return static_cast<Element*>(memory_);
    }

  private:
    void* memory_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace lowbit
