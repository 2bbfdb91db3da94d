// The neighbours of convolutions compiled for each instruction set; see variants.cpp for how.
#include "neighbours.h"

#include "instruction_set.h"
#include "neighbours_norm.h"
#include "neighbours_pool.h"
#include "neighbours_relu.h"
#include "room.h"

namespace {

using lowbit::InstructionSet;

struct Loops {
    decltype(&lowbit_batch_norm_forward) batch_norm_forward;
    decltype(&lowbit_batch_norm_backward) batch_norm_backward;
    decltype(&lowbit_relu_forward) relu_forward;
    decltype(&lowbit_relu_backward) relu_backward;
    void (*max_pool_forward)(const float*, float*, uint8_t*, const lowbit_pool*, float*, int32_t*);
    decltype(&lowbit_max_pool_backward) max_pool_backward;
};

#define LOWBIT_NEIGHBOURS(NAME, TARGET)                                                                       \
    namespace NAME {                                                                                          \
    TARGET void batch_norm_forward(const lowbit_batch_norm* of, float* y, float* mean, float* inverse,        \
                                   float* running_mean, float* running_variance) {                            \
        lowbit::neighbours::batch_norm_forward(*of, y, mean, inverse, running_mean, running_variance);        \
    }                                                                                                         \
    TARGET void batch_norm_backward(const lowbit_batch_norm* of, const float* mean, const float* inverse,     \
                                    const float* dy, float* dx, float* dweight, float* dbias) {               \
        lowbit::neighbours::batch_norm_backward(*of, mean, inverse, dy, dx, dweight, dbias);                  \
    }                                                                                                         \
    TARGET void relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {                        \
        lowbit::neighbours::relu_forward(x, y, bits, count);                                                  \
    }                                                                                                         \
    TARGET void relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {               \
        lowbit::neighbours::relu_backward(dy, bits, dx, count);                                               \
    }                                                                                                         \
    TARGET void max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool* of,            \
                                 float* best, int32_t* at) {                                                  \
        lowbit::neighbours::max_pool_forward(x, y, places, *of, best, at);                                    \
    }                                                                                                         \
    TARGET void max_pool_backward(const float* dy, const uint8_t* places, float* dx, const lowbit_pool* of) { \
        lowbit::neighbours::max_pool_backward(dy, places, dx, *of);                                           \
    }                                                                                                         \
    const Loops loops = {batch_norm_forward, batch_norm_backward, relu_forward,                               \
                         relu_backward,      max_pool_forward,    max_pool_backward};                         \
    }

#if LOWBIT_X86
LOWBIT_NEIGHBOURS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
LOWBIT_NEIGHBOURS(avx2, __attribute__((target("avx2"))))
#endif
LOWBIT_NEIGHBOURS(baseline, )

const Loops& loops() {
    switch (lowbit::instruction_set()) {
#if LOWBIT_X86
        case InstructionSet::avx512vnni:
        case InstructionSet::avx512:
            return avx512::loops;
        case InstructionSet::avxvnni:
        case InstructionSet::avx2:
            return avx2::loops;
#endif
        default:
            return baseline::loops;
    }
}

}  // namespace

void lowbit_batch_norm_forward(const lowbit_batch_norm* of, float* y, float* mean, float* inverse,
                               float* running_mean, float* running_variance) {
    loops().batch_norm_forward(of, y, mean, inverse, running_mean, running_variance);
}

void lowbit_batch_norm_backward(const lowbit_batch_norm* of, const float* mean, const float* inverse,
                                const float* dy, float* dx, float* dweight, float* dbias) {
    loops().batch_norm_backward(of, mean, inverse, dy, dx, dweight, dbias);
}

void lowbit_relu_forward(const float* x, float* y, uint8_t* bits, int64_t count) {
    loops().relu_forward(x, y, bits, count);
}

void lowbit_relu_backward(const float* dy, const uint8_t* bits, float* dx, int64_t count) {
    loops().relu_backward(dy, bits, dx, count);
}

void lowbit_max_pool_forward(const float* x, float* y, uint8_t* places, const lowbit_pool* of) {
    thread_local lowbit::Room best, at;
    const int64_t rows = of->height * of->out_width;
    loops().max_pool_forward(x, y, places, of, best.of<float>(rows), at.of<int32_t>(rows));
}

void lowbit_max_pool_backward(const float* dy, const uint8_t* places, float* dx, const lowbit_pool* of) {
    loops().max_pool_backward(dy, places, dx, of);
}
