// Weights, packed once for a micro-kernel; see conv_step.h.
//
// With AVX2 alone, vpmaddubsw adds two products of bytes in 16 bits, and two such sums can be added before
// they must be widened, if no sum can exceed 16 bits. For weights of 7 and 8 bits that is not so for all
// weights, but for almost all: four weights of a channel rarely have all large magnitudes and one sign. So a
// weight w that would overflow is split into w' + w'': w' stays in the panel, w'' becomes part of an extra
// step for the same source bytes. Sums are exact. Which way is fastest for a layer follows from the number of
// extra steps. Images of three channels have the first one twice, in different pairs of a step: there, w' and
// w'' fit into the same step.
#include "common/cpu.h"
#include "runtime/conv_step.h"

#include <algorithm>
#include <cstdlib>

namespace lowbit::runtime {
namespace {

using gemm::kPanel;

constexpr int64_t kWords = kPanel * 4;  // weights of a step
constexpr int kExtraLimit = 64;         // of a weight in an extra step: two of them times 255 fit 16 bits

enum class Storage { bytes, pairs, nibbles };

// Weights of all panels as [panel][step][16][4].
using Steps = std::vector<int16_t>;

// Splits the weights of a panel so that the products of a step (of two consecutive ones, if `paired`) with
// sources up to `largest_source` fit 16 bits. Extra steps are appended; their weights to `bytes` unless it is
// null.
int64_t split_panel(int16_t* weights, int64_t steps, int64_t largest_source, bool paired,
                    std::vector<int32_t>* numbers, std::vector<uint8_t>* bytes) {
    const int limit = static_cast<int>(INT16_MAX / largest_source);
    std::vector<int16_t> excess(static_cast<size_t>(steps * kWords));
    for (int64_t pair = 0; pair < kWords / 2; pair++) {
        int before[2] = {0, 0};  // of the step before: its positive and its negative weights
        for (int64_t step = 0; step < steps; step++) {
            int16_t* two = weights + step * kWords + pair * 2;
            for (int sign = 0; sign < 2; sign++) {
                const auto size = [&](int i) { return std::max<int>(sign ? -two[i] : two[i], 0); };
                int over = size(0) + size(1) - (limit - (paired ? before[sign] : 0));
                while (over > 0) {
                    const int i = size(0) >= size(1) ? 0 : 1, take = std::min(over, size(i));
                    if (take == 0) break;
                    two[i] = static_cast<int16_t>(two[i] + (sign ? take : -take));
                    excess[step * kWords + pair * 2 + i] += static_cast<int16_t>(sign ? -take : take);
                    over -= take;
                }
            }
            for (int sign = 0; sign < 2; sign++) {
                before[sign] =
                    std::max<int>(sign ? -two[0] : two[0], 0) + std::max<int>(sign ? -two[1] : two[1], 0);
            }
        }
    }
    int64_t count = 0;
    for (int64_t step = 0; step < steps; step++) {
        int16_t* rest = excess.data() + step * kWords;
        while (std::any_of(rest, rest + kWords, [](int16_t one) { return one != 0; })) {
            count++;
            if (numbers) numbers->push_back(static_cast<int32_t>(step));
            for (int64_t i = 0; i < kWords; i++) {
                const int16_t part = std::clamp<int16_t>(rest[i], -kExtraLimit, kExtraLimit);
                if (bytes) bytes->push_back(static_cast<uint8_t>(part));
                rest[i] = static_cast<int16_t>(rest[i] - part);
            }
        }
    }
    return count;
}

// Steps of three channels and the first again: moves what is too much for the first two to the last two.
void use_repeated(Steps* weights, int64_t largest_source) {
    const int limit = static_cast<int>(INT16_MAX / largest_source);
    for (size_t i = 0; i < weights->size(); i += 4) {
        int16_t* four = weights->data() + i;
        const int sum = std::abs(four[0] + four[1]), over = sum - limit;
        if (four[0] * four[1] <= 0 || over <= 0) continue;
        const int moved = std::min(over, std::abs(static_cast<int>(four[0])));
        four[3] = static_cast<int16_t>(four[0] > 0 ? moved : -moved);
        four[0] = static_cast<int16_t>(four[0] - four[3]);
    }
}

#if LOWBIT_X86
// The cheapest way with AVX2 for weights whose products may exceed 16 bits; costs are relative to one step
// that is widened, measured.
Storage choose_avx2(Steps* weights, int64_t steps, int64_t largest_source, PackedWeights* packed) {
    constexpr double kPaired = 0.78, kSingle = 1.0, kExtra = 1.3, kWide = 1.6;
    const int64_t panels = static_cast<int64_t>(weights->size()) / (steps * kWords);
    const double all = static_cast<double>(steps * panels);
    double costs[2] = {kSingle * all, kPaired * all};
    for (int paired = 0; paired < 2; paired++) {
        Steps copy = *weights;
        for (int64_t p = 0; p < panels; p++) {
            int16_t* panel = copy.data() + p * steps * kWords;
            costs[paired] += kExtra * static_cast<double>(split_panel(panel, steps, largest_source, paired,
                                                                      nullptr, nullptr));
        }
    }
    const bool paired = costs[1] <= costs[0];
    if (kWide * all < costs[paired]) {
        packed->kernel = {1, run_wide_avx2, run_wide_avx2, 0};
        return Storage::pairs;
    }
    packed->kernel = paired ? gemm::Microkernel{1, gemm::run_int8_paired_avx2, gemm::run_int8_paired_avx2, 0}
                            : gemm::Microkernel{1, gemm::run_int8_acc32_avx2, gemm::run_int8_acc32_avx2, 0};
    for (int64_t p = 0; p < panels; p++) {
        packed->extra_first.push_back(static_cast<int32_t>(packed->extra_steps.size()));
        split_panel(weights->data() + p * steps * kWords, steps, largest_source, paired, &packed->extra_steps,
                    &packed->extra_bytes);
    }
    packed->extra_first.push_back(static_cast<int32_t>(packed->extra_steps.size()));
    return Storage::bytes;
}
#endif

// The micro-kernel for these operands, and how it wants its weights.
Storage choose_kernel(Steps* weights, int64_t steps, int64_t largest_source, PackedWeights* packed) {
    const auto [lowest, highest] = std::minmax_element(weights->begin(), weights->end());
    const int64_t largest = std::max(-*lowest, +*highest);
    if (*lowest < -8 || *highest > 7) {
        packed->kernel = gemm::choose_microkernel(largest_source, largest, true).microkernel;
#if LOWBIT_X86
        const bool is_narrow = packed->kernel.run == gemm::run_int8_acc16_avx2 ||
                               packed->kernel.run == gemm::run_int8_paired_avx2;
        const InstructionSet isa = instruction_set();
        if ((isa == InstructionSet::avx2 || isa == InstructionSet::avx512) && !is_narrow) {
            return choose_avx2(weights, steps, largest_source, packed);
        }
#endif
        return Storage::bytes;
    }
    packed->step_bytes = 32;
    packed->kernel = {1, run_nibbles_portable, run_nibbles_portable, 0};
#if LOWBIT_X86
    const InstructionSet isa = instruction_set();
    if (isa >= InstructionSet::avx512vnni) {
        packed->kernel = {2, run_nibbles_two_panels_avx512vnni, run_nibbles_avx512vnni, 0};
    } else if (isa >= InstructionSet::avx2) {
        const int64_t pair =
            std::max<int64_t>(2 * largest_source * largest, 1);  // in int16, at least 8 steps
        packed->kernel = {1, run_nibbles_avx2, run_nibbles_avx2, INT16_MAX / pair};
    }
#endif
    return Storage::nibbles;
}

// The weight of a channel (of 16) and an input (of 4) in the bytes of a step.
void store_weight(Storage storage, int64_t lane, int64_t input, int16_t value, uint8_t* step) {
    if (storage == Storage::pairs) {  // [first two inputs, last two][16 channels][2]
        step[input / 2 * 32 + lane * 2 + input % 2] = static_cast<uint8_t>(value);
    } else if (storage == Storage::bytes) {
        step[lane * 4 + input] = static_cast<uint8_t>(value);
    } else {  // with 8 added; the upper half of a byte is the channel 8 further
        uint8_t& byte = step[lane % 8 * 4 + input];
        byte =
            static_cast<uint8_t>(lane < 8 ? (byte & 0xf0) | (value + 8) : (byte & 0x0f) | (value + 8) << 4);
    }
}

}  // namespace

PackedPointer pack_weights(const ConvShape& shape, const int16_t* integers, const Bytes& from) {
    const Grid& source = from.grid;
    const int64_t per_output = shape.inputs * shape.taps(), outputs = shape.groups * shape.outputs;
    int64_t largest = 0;
    for (int64_t i = 0; i < outputs * per_output; i++)
        largest = std::max<int64_t>(largest, std::abs(integers[i]));
    const int64_t largest_source = std::max(source.highest, 1),
                  largest_sum = largest_source * largest * per_output * 2;
    check(largest_sum < INT32_MAX,
          "a layer with " + std::to_string(per_output) + " products per output would overflow 32 bits");
    auto packed = std::make_shared<PackedWeights>();
    packed->shape = shape;
    packed->largest_sum = static_cast<double>(largest_sum);
    if (shape.is_depthwise()) {
        pack_depthwise(integers, source, packed.get());
        return packed;
    }
    const int64_t words = ceil_div(shape.inputs, 4), taps = shape.taps(), steps = taps * words;
    packed->panels = ceil_div(shape.outputs, kPanel);
    const int64_t panels = shape.groups * packed->panels;
    Steps weights(static_cast<size_t>(panels * steps * kWords));
    packed->initial.resize(static_cast<size_t>(panels * kPanel));
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t within = o % shape.outputs, lane = within % kPanel;
        const int64_t panel = o / shape.outputs * packed->panels + within / kPanel;
        int64_t sum = 0;
        for (int64_t c = 0; c < shape.inputs; c++) {
            for (int64_t t = 0; t < taps; t++) {
                const int16_t value = integers[(o * shape.inputs + c) * taps + t];
                weights[(panel * steps + t * words + c / 4) * kWords + lane * 4 + c % 4] = value;
                sum += value;
            }
        }
        packed->initial[panel * kPanel + lane] = static_cast<int32_t>(-source.zero * sum);
    }
    if (from.repeats_first && shape.inputs == 3) use_repeated(&weights, largest_source);
    const Storage storage = choose_kernel(&weights, steps, largest_source, packed.get());
    packed->panel_bytes = steps * packed->step_bytes;
    packed->bytes.resize(static_cast<size_t>(panels * packed->panel_bytes));
    for (int64_t step = 0; step < panels * steps; step++) {
        for (int64_t i = 0; i < kWords; i++) {
            store_weight(storage, i / 4, i % 4, weights[step * kWords + i],
                         packed->bytes.data() + step * packed->step_bytes);
        }
    }
    return packed;
}

}  // namespace lowbit::runtime
