/* lowbit's inference runtime from C: an exported ONNX file, loaded, planned and run.
 *
 *     lowbit_engine* engine = NULL;
 *     lowbit_plan* plan = NULL;
 *     const int64_t dims[] = {1, 3, 224, 224};
 *     if (lowbit_engine_open("inference.onnx", 1, &engine) || lowbit_plan_make(engine, dims, NULL, 0, 0,
 * &plan)) fprintf(stderr, "%s\n", lowbit_runtime_error()); const void* inputs[] = {image};       // float32,
 * 1 x 3 x 224 x 224 void* outputs[] = {logits};           // lowbit_plan_output_dims says how large
 *     lowbit_plan_run(plan, inputs, outputs);
 *
 * Functions that return int return 0, or a negative number when they fail; lowbit_runtime_error() then says
 * why, until the next call on the same thread. An engine may be used by several threads at a time, and so may
 * several plans; one plan runs one batch at a time. Everything a plan needs is allocated when it is made.
 */
#ifndef LOWBIT_RUNTIME_H
#define LOWBIT_RUNTIME_H
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LOWBIT_RUNTIME_API __attribute__((visibility("default")))
#else
#define LOWBIT_RUNTIME_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lowbit_engine lowbit_engine; /* a model */
typedef struct lowbit_plan lowbit_plan; /* a model, planned for inputs of certain sizes, with its memory */

enum lowbit_runtime_status {
    LOWBIT_RUNTIME_OUT_OF_MEMORY = -1,
    LOWBIT_RUNTIME_INTERNAL_ERROR = -2,
    LOWBIT_RUNTIME_INVALID = -3 /* the file, or an argument; lowbit_runtime_error() names it */
};

/* Element types, with ONNX's numbers. */
enum lowbit_runtime_type {
    LOWBIT_FLOAT32 = 1,
    LOWBIT_UINT8 = 2,
    LOWBIT_INT8 = 3,
    LOWBIT_INT32 = 6,
    LOWBIT_INT64 = 7
};

/* Of lowbit_plan_make: run every operator by itself, as the slow reference of the merged ones. */
enum lowbit_plan_flags { LOWBIT_PLAN_UNMERGED = 1 };

LOWBIT_RUNTIME_API int lowbit_engine_open(const char* path, int threads, lowbit_engine** engine);
LOWBIT_RUNTIME_API int lowbit_engine_open_bytes(const void* bytes, size_t size, int threads,
                                                lowbit_engine** engine);
LOWBIT_RUNTIME_API void lowbit_engine_close(lowbit_engine* engine);

LOWBIT_RUNTIME_API int lowbit_engine_inputs(const lowbit_engine* engine);
LOWBIT_RUNTIME_API int lowbit_engine_outputs(const lowbit_engine* engine);
LOWBIT_RUNTIME_API const char* lowbit_engine_input_name(const lowbit_engine* engine, int number);
LOWBIT_RUNTIME_API const char* lowbit_engine_output_name(const lowbit_engine* engine, int number);
/* The names of all tensors of the file, also of those between the layers. */
LOWBIT_RUNTIME_API int lowbit_engine_tensors(const lowbit_engine* engine);
LOWBIT_RUNTIME_API const char* lowbit_engine_tensor_name(const lowbit_engine* engine, int number);
LOWBIT_RUNTIME_API int lowbit_engine_input_type(const lowbit_engine* engine, int number);
/* The rank; `dims` (room for 8) gets the sizes, -1 where the file leaves one open, such as the batch. */
LOWBIT_RUNTIME_API int lowbit_engine_input_dims(const lowbit_engine* engine, int number, int64_t* dims);

/* Plans for inputs of these sizes: all dimensions of all inputs, one after the other. `tensors` names what to
 * return instead of the model's outputs, any tensor of the file. Plans of one engine share the packed
 * weights, which they keep: an engine may be closed before its plans. */
LOWBIT_RUNTIME_API int lowbit_plan_make(lowbit_engine* engine, const int64_t* dims,
                                        const char* const* tensors, int tensor_count, int flags,
                                        lowbit_plan** plan);
LOWBIT_RUNTIME_API void lowbit_plan_free(lowbit_plan* plan);
LOWBIT_RUNTIME_API int lowbit_plan_outputs(const lowbit_plan* plan);
LOWBIT_RUNTIME_API int lowbit_plan_output_type(const lowbit_plan* plan, int number);
LOWBIT_RUNTIME_API int lowbit_plan_output_dims(const lowbit_plan* plan, int number, int64_t* dims);
LOWBIT_RUNTIME_API int lowbit_plan_run(lowbit_plan* plan, const void* const* inputs, void* const* outputs);

/* The same, with the time of each step: room for lowbit_plan_steps() numbers. */
LOWBIT_RUNTIME_API int lowbit_plan_time(lowbit_plan* plan, const void* const* inputs, void* const* outputs,
                                        double* seconds);
LOWBIT_RUNTIME_API int64_t lowbit_plan_steps(const lowbit_plan* plan);

/* Bytes of the plan's arena, and of the packed weights. */
LOWBIT_RUNTIME_API int64_t lowbit_plan_arena_bytes(const lowbit_plan* plan);
LOWBIT_RUNTIME_API int64_t lowbit_plan_weight_bytes(const lowbit_plan* plan);
/* One line per step, with the operators merged into it; valid as long as the plan. */
LOWBIT_RUNTIME_API const char* lowbit_plan_description(const lowbit_plan* plan);

/* Why the last call on this thread failed. */
LOWBIT_RUNTIME_API const char* lowbit_runtime_error(void);

#ifdef __cplusplus
}
#endif
#endif
