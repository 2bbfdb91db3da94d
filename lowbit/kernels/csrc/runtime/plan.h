// A model (Engine) and a model planned for inputs of certain sizes (Plan).
#pragma once
#include "common/cpu.h"
#include "runtime/conv_step.h"

#include <mutex>
#include <tuple>

namespace lowbit::runtime {

// Weights are packed for a tensor, its source's zero point, highest byte and fourth byte, and instructions.
using PackedKey = std::tuple<int, int, int, bool, InstructionSet>;

// A model with what its plans share: threads, and weights that are packed once.
struct Engine {
    Engine(Graph of, int threads) : graph(std::move(of)), pool(threads) {}

    const Graph graph;
    ThreadPool pool;
    std::mutex mutex;  // of `packed`
    std::map<PackedKey, PackedPointer> packed;
};

struct Slot {
    int64_t bytes = 0;
    const void* constant = nullptr;  // not in the arena
    int input = -1;                  // of the graph, given at every run
    int64_t offset = 0;
};

struct PlanOutput {
    int slot = -1;
    Type type = Type::none;
    Dims dims;
};

struct PlanParts {
    std::vector<StepPointer> steps;
    std::vector<Slot> slots;
    std::vector<PlanOutput> outputs;
    std::vector<std::shared_ptr<const Tensor>> constants;  // kept alive
};

// The steps for inputs of these sizes; `wanted` are tensors to return. Unmerged: every operator is a step.
PlanParts make_steps(Engine& engine, const std::vector<Dims>& inputs, const std::vector<int>& wanted,
                     bool unmerged);

class Plan {
  public:
    Plan(std::shared_ptr<Engine> engine, PlanParts parts);

    // Pointers to the graph's inputs, and to memory for the results. `seconds`, if not null, gets each step's
    // time.
    void run(const void* const* inputs, void* const* outputs, double* seconds);
    int64_t steps() const { return static_cast<int64_t>(parts_.steps.size()); }

    const std::vector<PlanOutput>& outputs() const { return parts_.outputs; }
    int64_t arena_bytes() const { return arena_bytes_; }
    int64_t weight_bytes() const;
    const char* description() const { return description_.c_str(); }

  private:
    void place_slots();

    std::shared_ptr<Engine> engine_;
    PlanParts parts_;
    int64_t arena_bytes_ = 0;
    std::unique_ptr<uint8_t, void (*)(void*)> arena_;
    std::vector<uint8_t*> pointers_;  // by slot
    std::mutex running_;
    std::string description_;
};

}  // namespace lowbit::runtime
