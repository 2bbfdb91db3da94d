// Shared code of the kernels: the C interface's conventions and the parts that every folder uses.
//
// The library is called from Python through ctypes: plain C functions on raw pointers to contiguous memory
// that the caller keeps alive. Read in this order:
//
//   common.h            this file: exported symbols, status codes, small integer helpers
//   cpu.h, cpu.cpp      instruction sets: detection at run time, and how one build holds code for all of them
//   threads.h           parallel_for on the OpenMP threads that Paddle has already started
//   scratch.h           per-thread buffers that are reused from call to call
//   channel_blocks.h    loops over [outer, channels, inner] tensors with one scale per channel
//   grouped_axes.h      loops over tensors whose scales belong to any subset of the axes
//
// The other folders are gemm/ (convolutions and matrix products in integers), winograd/ and depthwise/
// (faster ways for two kinds of layer), quantize/ (fp32 to integers and back, fake quantization), norm/
// (batch norm, ReLU, max-pool), optimizer/ (the step of an optimizer) and fp32_winograd/ (3x3 convolutions in
// fp32). Each has one header of its own name that explains it and declares its C functions.
//
// Rules for every function of the interface:
// - No axis of a tensor is 0, unless said otherwise, and pointers do not overlap. A null pointer means
//   "not wanted".
// - Results are the same bits for every instruction set and number of threads. Integer sums are exact;
//   floating-point sums are added in an order that depends on the shape alone.
// - No exception leaves the library. Functions return a status below 0 on failure; see `guarded`.
#pragma once
#include <stdint.h>

#include <new>
#include <stdexcept>
#include <type_traits>

#if defined(__GNUC__)
#define LOWBIT_PUBLIC extern "C" __attribute__((visibility("default")))
#else
#define LOWBIT_PUBLIC extern "C"
#endif

// What a function returns when it fails; 0 or more is success.
enum lowbit_status { LOWBIT_OUT_OF_MEMORY = -1, LOWBIT_INTERNAL_ERROR = -2 };

// The sources that the library was built from, as a hash: Python refuses a library that is out of date.
LOWBIT_PUBLIC const char* lowbit_fingerprint(void);

// Integers that are multiples of a scale: their lowest 16 bits and, unless `high` is null and they fit into
// int16, the 8 bits above.
struct lowbit_multiples {
    uint16_t* low;
    int8_t* high;
};

namespace lowbit {

inline int64_t round_up(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

inline int64_t ceil_div(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

// Calls `function` and turns an exception into a status: an exception must not enter C or Python code. A
// function that returns nothing gives 0.
template <class Function>
auto guarded(const Function& function) noexcept {
    using Returned = decltype(function());
    using Result = std::conditional_t<std::is_void_v<Returned>, int, Returned>;
    try {
        if constexpr (std::is_void_v<Returned>) {
            function();
            return Result{0};
        } else {
            return function();
        }
    } catch (const std::bad_alloc&) {
        return Result{LOWBIT_OUT_OF_MEMORY};
    } catch (...) {
        return Result{LOWBIT_INTERNAL_ERROR};
    }
}

// The status of a function of the interface that is called inside of `guarded`, unless it says failure.
inline int64_t checked(int64_t status) {
    if (status == LOWBIT_OUT_OF_MEMORY) throw std::bad_alloc();
    if (status < 0) throw std::runtime_error("a kernel failed");
    return status;
}

}  // namespace lowbit
