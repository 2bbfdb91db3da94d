// The arena of a plan, and running it; see plan.h.
#include "runtime/plan.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace lowbit::runtime {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxArena = int64_t{1} << 36;

struct Lifetime {
    int slot;
    int64_t first, last;  // steps
    int64_t bytes;
};

}  // namespace

Plan::Plan(std::shared_ptr<Engine> engine, PlanParts parts)
    : engine_(std::move(engine)), parts_(std::move(parts)), arena_(nullptr, std::free) {
    place_slots();
    if (arena_bytes_) {
        arena_.reset(
            static_cast<uint8_t*>(std::aligned_alloc(kAlignment, static_cast<size_t>(arena_bytes_))));
        if (!arena_) throw std::bad_alloc();
        // Padding channels are computed with and dropped: they need some value.
        memset(arena_.get(), 0, static_cast<size_t>(arena_bytes_));
    }
    for (const Slot& slot : parts_.slots) {
        uint8_t* constant = static_cast<uint8_t*>(const_cast<void*>(slot.constant));  // steps only read it
        pointers_.push_back(slot.constant ? constant : arena_.get() + slot.offset);
    }
    for (const StepPointer& step : parts_.steps) description_ += step->label + "\n";
}

// Slots that live at the same time lie apart; the largest are placed first, each at the lowest free place.
void Plan::place_slots() {
    const int64_t never = static_cast<int64_t>(parts_.steps.size());
    std::vector<Lifetime> lives;
    for (size_t i = 0; i < parts_.slots.size(); i++) {
        const int64_t bytes = round_up(std::max<int64_t>(parts_.slots[i].bytes, 1), kAlignment);
        lives.push_back({static_cast<int>(i), never, -1, bytes});
    }
    for (int64_t s = 0; s < never; s++) {
        const Step& step = *parts_.steps[static_cast<size_t>(s)];
        for (const std::vector<int>* used : {&step.reads, &step.writes}) {
            for (int slot : *used) {
                lives[slot].first = std::min(lives[slot].first, s);
                lives[slot].last = std::max(lives[slot].last, s);
            }
        }
    }
    for (const PlanOutput& output : parts_.outputs) lives[output.slot].last = never;
    std::vector<Lifetime> placed;
    std::stable_sort(lives.begin(), lives.end(),
                     [](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; });
    for (const Lifetime& life : lives) {
        Slot& slot = parts_.slots[life.slot];
        if (slot.constant || slot.input >= 0) continue;
        std::vector<std::pair<int64_t, int64_t>> taken;  // [begin, end) of those that live at the same time
        for (const Lifetime& other : placed) {
            if (other.first > life.last || other.last < life.first) continue;
            const int64_t begin = parts_.slots[other.slot].offset;
            taken.push_back({begin, begin + other.bytes});
        }
        std::sort(taken.begin(), taken.end());
        int64_t at = 0;
        for (const auto& [begin, end] : taken) {
            if (at + life.bytes <= begin) break;
            at = std::max(at, end);
        }
        slot.offset = at;
        arena_bytes_ = std::max(arena_bytes_, at + life.bytes);
        check(arena_bytes_ <= kMaxArena, "the model needs too much memory for this batch");
        placed.push_back(life);
    }
}

void Plan::run(const void* const* inputs, void* const* outputs, double* seconds) {
    const std::lock_guard<std::mutex> alone(running_);
    for (size_t i = 0; i < parts_.slots.size(); i++) {
        const int input = parts_.slots[i].input;
        if (input >= 0) pointers_[i] = static_cast<uint8_t*>(const_cast<void*>(inputs[input]));
    }
    const Memory memory{pointers_.data()};
    for (size_t i = 0; i < parts_.steps.size(); i++) {
        const auto start = std::chrono::steady_clock::now();
        parts_.steps[i]->run(memory, engine_->pool);
        if (seconds)
            seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    for (size_t i = 0; i < parts_.outputs.size(); i++) {
        const PlanOutput& output = parts_.outputs[i];
        const size_t bytes = static_cast<size_t>(output.dims.count() * type_bytes(output.type));
        if (bytes) memcpy(outputs[i], pointers_[output.slot], bytes);
    }
}

int64_t Plan::weight_bytes() const {
    int64_t bytes = 0;
    for (const StepPointer& step : parts_.steps) bytes += step->weight_bytes();
    return bytes;
}

}  // namespace lowbit::runtime
