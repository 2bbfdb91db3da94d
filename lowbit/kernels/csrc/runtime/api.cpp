// The C interface of the runtime: arguments are checked, exceptions become statuses. See lowbit_runtime.h.
// Beside the Python package: it is installed without the sources, too.
#include "../../../runtime/lowbit_runtime.h"

#include "runtime/plan.h"

#include <cstdio>

struct lowbit_engine {
    std::shared_ptr<lowbit::runtime::Engine> engine;
};

struct lowbit_plan {
    lowbit_plan(std::shared_ptr<lowbit::runtime::Engine> engine, lowbit::runtime::PlanParts parts)
        : plan(std::move(engine), std::move(parts)) {}
    lowbit::runtime::Plan plan;
};

namespace {

using namespace lowbit::runtime;

constexpr int kMostThreads = 1024;

// Of a fixed size, so that also the lack of memory can be told.
thread_local char last_error[1024] = "";

void tell(const char* message) { snprintf(last_error, sizeof last_error, "%s", message); }

template <class Function>
int protected_call(const Function& function) noexcept {
    try {
        function();
        return 0;
    } catch (const Error& error) {
        tell(error.what());
        return LOWBIT_RUNTIME_INVALID;
    } catch (const std::bad_alloc&) {
        tell("not enough memory");
        return LOWBIT_RUNTIME_OUT_OF_MEMORY;
    } catch (const std::length_error&) {
        tell("not enough memory");
        return LOWBIT_RUNTIME_OUT_OF_MEMORY;
    } catch (const std::exception& error) {
        tell(error.what());
        return LOWBIT_RUNTIME_INTERNAL_ERROR;
    } catch (...) {
        tell("an unknown error");
        return LOWBIT_RUNTIME_INTERNAL_ERROR;
    }
}

std::vector<uint8_t> read_file(const char* path) {
    std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path, "rb"), fclose);
    check(file != nullptr, std::string(path) + " cannot be opened");
    std::vector<uint8_t> bytes;
    uint8_t block[1 << 16];
    for (size_t count; (count = fread(block, 1, sizeof block, file.get())) > 0;) {
        bytes.insert(bytes.end(), block, block + count);
    }
    check(!ferror(file.get()), std::string(path) + " cannot be read");
    return bytes;
}

void open_bytes(const void* bytes, size_t size, int threads, lowbit_engine** engine) {
    check(engine != nullptr && bytes != nullptr, "a null pointer was given");
    check(threads >= 1 && threads <= kMostThreads, "the number of threads must be from 1 to 1024");
    Graph graph = read_onnx(static_cast<const uint8_t*>(bytes), size);
    auto opened = std::make_unique<lowbit_engine>();
    opened->engine = std::make_shared<Engine>(std::move(graph), threads);
    *engine = opened.release();
}

int copy_dims(const Dims& dims, int64_t* to) {
    for (int axis = 0; axis < dims.rank && to; axis++) to[axis] = dims[axis];
    return dims.rank;
}

bool has_input(const lowbit_engine* engine, int number) {
    return engine && number >= 0 && number < static_cast<int>(engine->engine->graph.inputs.size());
}

bool has_output(const lowbit_plan* plan, int number) {
    return plan && number >= 0 && number < static_cast<int>(plan->plan.outputs().size());
}

void make_plan(lowbit_engine* engine, const int64_t* dims, const char* const* tensors, int tensor_count,
               int flags, lowbit_plan** plan) {
    check(engine && plan && (dims || engine->engine->graph.inputs.empty()), "a null pointer was given");
    const Graph& graph = engine->engine->graph;
    std::vector<Dims> inputs;
    for (const GraphInput& input : graph.inputs) {
        Dims given;
        for (int axis = 0; axis < input.dims.rank; axis++, dims++) {
            const int64_t expected = input.dims[axis];
            check(*dims > 0 && (expected < 0 || *dims == expected),
                  "input \"" + graph.names[input.tensor] + "\" is " + to_string(input.dims) +
                      " in the file (-1: any size); its dimension " + std::to_string(axis) + " cannot be " +
                      std::to_string(*dims));
            given.push(*dims);
        }
        check_dims(given, "input \"" + graph.names[input.tensor] + "\"");
        inputs.push_back(given);
    }
    std::vector<int> wanted;
    for (int i = 0; tensors && i < tensor_count; i++) {
        check(tensors[i] != nullptr, "a null pointer was given");
        wanted.push_back(graph.find(tensors[i]));
        check(wanted.back() != kAbsent, std::string("there is no tensor \"") + tensors[i] + "\"");
    }
    PlanParts parts =
        make_steps(*engine->engine, inputs, tensors ? wanted : graph.outputs, flags & LOWBIT_PLAN_UNMERGED);
    *plan = new lowbit_plan(engine->engine, std::move(parts));
}

}  // namespace

extern "C" {

int lowbit_engine_open(const char* path, int threads, lowbit_engine** engine) {
    return protected_call([&] {
        check(path != nullptr, "a null pointer was given");
        const std::vector<uint8_t> bytes = read_file(path);
        check(!bytes.empty(), std::string(path) + " is empty");
        open_bytes(bytes.data(), bytes.size(), threads, engine);
    });
}

int lowbit_engine_open_bytes(const void* bytes, size_t size, int threads, lowbit_engine** engine) {
    return protected_call([&] { open_bytes(bytes, size, threads, engine); });
}

void lowbit_engine_close(lowbit_engine* engine) { delete engine; }

int lowbit_engine_inputs(const lowbit_engine* engine) {
    return engine ? static_cast<int>(engine->engine->graph.inputs.size()) : 0;
}

int lowbit_engine_outputs(const lowbit_engine* engine) {
    return engine ? static_cast<int>(engine->engine->graph.outputs.size()) : 0;
}

const char* lowbit_engine_input_name(const lowbit_engine* engine, int number) {
    if (!has_input(engine, number)) return nullptr;
    const Graph& graph = engine->engine->graph;
    return graph.names[graph.inputs[number].tensor].c_str();
}

const char* lowbit_engine_output_name(const lowbit_engine* engine, int number) {
    if (number < 0 || number >= lowbit_engine_outputs(engine)) return nullptr;
    const Graph& graph = engine->engine->graph;
    return graph.names[graph.outputs[number]].c_str();
}

int lowbit_engine_tensors(const lowbit_engine* engine) {
    return engine ? static_cast<int>(engine->engine->graph.names.size()) : 0;
}

const char* lowbit_engine_tensor_name(const lowbit_engine* engine, int number) {
    if (number < 0 || number >= lowbit_engine_tensors(engine)) return nullptr;
    return engine->engine->graph.names[number].c_str();
}

int lowbit_engine_input_type(const lowbit_engine* engine, int number) {
    return has_input(engine, number) ? static_cast<int>(engine->engine->graph.inputs[number].type)
                                     : LOWBIT_RUNTIME_INVALID;
}

int lowbit_engine_input_dims(const lowbit_engine* engine, int number, int64_t* dims) {
    return has_input(engine, number) ? copy_dims(engine->engine->graph.inputs[number].dims, dims)
                                     : LOWBIT_RUNTIME_INVALID;
}

int lowbit_plan_make(lowbit_engine* engine, const int64_t* dims, const char* const* tensors, int tensor_count,
                     int flags, lowbit_plan** plan) {
    return protected_call([&] { make_plan(engine, dims, tensors, tensor_count, flags, plan); });
}

void lowbit_plan_free(lowbit_plan* plan) { delete plan; }

int lowbit_plan_outputs(const lowbit_plan* plan) {
    return plan ? static_cast<int>(plan->plan.outputs().size()) : 0;
}

int lowbit_plan_output_type(const lowbit_plan* plan, int number) {
    return has_output(plan, number) ? static_cast<int>(plan->plan.outputs()[number].type)
                                    : LOWBIT_RUNTIME_INVALID;
}

int lowbit_plan_output_dims(const lowbit_plan* plan, int number, int64_t* dims) {
    return has_output(plan, number) ? copy_dims(plan->plan.outputs()[number].dims, dims)
                                    : LOWBIT_RUNTIME_INVALID;
}

int lowbit_plan_run(lowbit_plan* plan, const void* const* inputs, void* const* outputs) {
    return protected_call([&] {
        check(plan && inputs && outputs, "a null pointer was given");
        plan->plan.run(inputs, outputs, nullptr);
    });
}

int64_t lowbit_plan_steps(const lowbit_plan* plan) { return plan ? plan->plan.steps() : 0; }

int lowbit_plan_time(lowbit_plan* plan, const void* const* inputs, void* const* outputs, double* seconds) {
    return protected_call([&] {
        check(plan && inputs && outputs && seconds, "a null pointer was given");
        plan->plan.run(inputs, outputs, seconds);
    });
}

int64_t lowbit_plan_arena_bytes(const lowbit_plan* plan) { return plan ? plan->plan.arena_bytes() : 0; }

int64_t lowbit_plan_weight_bytes(const lowbit_plan* plan) { return plan ? plan->plan.weight_bytes() : 0; }

const char* lowbit_plan_description(const lowbit_plan* plan) { return plan ? plan->plan.description() : ""; }

const char* lowbit_runtime_error(void) { return last_error; }

}  // extern "C"
