// Products of bytes with constant weights: convolutions of any kind, and linear layers as convolutions of one
// pixel.
#pragma once
#include "gemm/microkernel.h"
#include "runtime/requantize.h"

namespace lowbit::runtime {

// Integers [groups * outputs][inputs][taps] as the file has them, without their zero point.
struct ConvShape {
    int64_t groups = 1, outputs = 1, inputs = 1;  // channels of one group
    int64_t kernel[2] = {1, 1};

    int64_t taps() const { return kernel[0] * kernel[1]; }
    bool is_depthwise() const { return outputs == 1 && inputs == 1 && groups > 1; }
};

// Weights for a micro-kernel of gemm/: [group][panel of 16 outputs][tap][four inputs][16][4], and what sums
// start with.
struct PackedWeights {
    ConvShape shape;
    gemm::Microkernel kernel;
    int64_t step_bytes = 64;              // 32 for two weights per byte
    double largest_sum = 0;               // bound of its magnitude
    int64_t panels = 0, panel_bytes = 0;  // of a group
    std::vector<uint8_t> bytes;
    std::vector<int32_t> initial;  // -zero * sum of the weights, by channel of whole panels
    // Steps beside those of the panels, for products that would overflow 16 bits: see conv_weights.cpp. The
    // extra steps of panel p are extra_first[p] to extra_first[p + 1]; each is a step of the panel, with
    // other weights.
    std::vector<int32_t> extra_first, extra_steps;
    std::vector<uint8_t> extra_bytes;
    bool depthwise = false, depthwise_fours = false;  // other layouts: see depthwise_step.cpp
};

using PackedPointer = std::shared_ptr<const PackedWeights>;

// For such a source and the instruction set in use. Throws if sums could exceed int32.
PackedPointer pack_weights(const ConvShape& shape, const int16_t* integers, const Bytes& source);

struct ConvTarget {
    bool to_float = false;
    Bytes bytes;                              // unless to_float,
    int slot = -1;                            // else fp32 with these steps:
    int64_t image = 0, pixel = 0, plane = 0;  // from image to image, pixel to pixel, channel to channel
    Bytes residual;
};

// The window's `out` is the size of the result.
StepPointer conv_step(const Bytes& from, const Window& window, PackedPointer weights, Epilogue epilogue,
                      const ConvTarget& target);

// ---- For conv_step.cpp and depthwise_step.cpp.

// Where the pixels of a strip are: in the source (their first tap), the result and the residual.
struct StripOffsets {
    int64_t source[gemm::kStrip + gemm::kSlack], target[gemm::kStrip], residual[gemm::kStrip];
};

struct ConvPlan {
    Bytes from;
    Window window;
    PackedPointer weights;
    Epilogue epilogue;
    ConvTarget target;

    int64_t out_pixels() const { return from.layout.images * window.out[0] * window.out[1]; }
    // Of output pixels from number `first` on, counted through all images.
    void find_offsets(int64_t first, int64_t pixels, StripOffsets* offsets) const;
    // What follows the sums [pixels][16] of output channels from `channel` on, which is `padded` if panels
    // are counted whole.
    void finish(const Memory& memory, const int32_t* sums, const StripOffsets& offsets, int64_t pixels,
                int64_t padded, int64_t channel, int64_t channels) const;
};

StepPointer depthwise_step(ConvPlan plan);
void pack_depthwise(const int16_t* integers, const Grid& source, PackedWeights* packed);

// Micro-kernels of the runtime's own: weights of 8 bits without VNNI, and 4-bit weights that stay packed.
void run_nibbles_portable(const gemm::Strip& strip);
#if LOWBIT_X86
void run_wide_avx2(const gemm::Strip& strip);
// Adds the products of `count` more steps to the sums of a strip, 64 bytes of weights each.
void add_extras_avx2(const gemm::Strip& strip, const int32_t* steps, int64_t count, const int64_t* offsets,
                     const uint8_t* weights);
void run_nibbles_avx2(const gemm::Strip& strip);
void run_nibbles_avx512vnni(const gemm::Strip& strip);
void run_nibbles_two_panels_avx512vnni(const gemm::Strip& strip);
#endif

}  // namespace lowbit::runtime
