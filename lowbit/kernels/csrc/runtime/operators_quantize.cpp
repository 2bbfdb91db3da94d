// Changes of type: Cast, and QuantizeLinear and DequantizeLinear by themselves; see operators.h.
#include "runtime/operators.h"

#include <cmath>

namespace lowbit::runtime {
namespace {

void infer_cast(const Node& node, const Arguments& in, Arguments& out) {
    const Type to = static_cast<Type>(node.i("to", 0));
    const Type from = need(in, 0, node).type;
    const auto known = [](Type type) {
        return type == Type::float32 || type == Type::int64 || type == Type::int32;
    };
    check(known(to) && known(from), node.describe() + " between these types is not supported");
    out[0].type = to, out[0].dims = in[0].dims;
}

template <class From, class To>
void cast_as(const View& in, const View& out) {
    for (int64_t i = 0; i < in.count(); i++) {
        const From x = in.as<From>()[i];
        if constexpr (std::is_same_v<From, float> && !std::is_same_v<To, float>) {
            const bool fits = x > -9e18f && x < 9e18f;
            out.as<To>()[i] = static_cast<To>(fits ? static_cast<int64_t>(x) : 0);
        } else {
            out.as<To>()[i] = static_cast<To>(x);
        }
    }
}

template <class From>
void cast_from(const View& in, const View& out) {
    if (out.type == Type::float32) return cast_as<From, float>(in, out);
    if (out.type == Type::int32) return cast_as<From, int32_t>(in, out);
    cast_as<From, int64_t>(in, out);
}

void run_cast(const Node&, const Views& in, const Views& out, ThreadPool&) {
    if (in[0].type == Type::float32) return cast_from<float>(in[0], out[0]);
    if (in[0].type == Type::int32) return cast_from<int32_t>(in[0], out[0]);
    cast_from<int64_t>(in[0], out[0]);
}

// ---- QuantizeLinear and DequantizeLinear by themselves, with a scale per tensor or along an axis.

int64_t quantized_axis(const Node& node, const Dims& x, const Dims& scale) {
    if (scale.count() == 1) return kMaxRank;
    check(scale.rank == 1, node.describe() + ": scales of blocks are not supported");
    const int axis = resolve_axis(node.i("axis", 1), x.rank, node.describe());
    check(x[axis] == scale[0], node.describe() + ": it has " + std::to_string(scale[0]) + " scales for " +
                                   std::to_string(x[axis]) + " channels");
    return axis;
}

bool is_byte(Type type) {
    return type == Type::uint8 || type == Type::int8 || type == Type::uint4 || type == Type::int4;
}

void infer_quantize(const Node& node, const Arguments& in, Arguments& out) {
    need_type(need(in, 0, node), Type::float32, node);
    need_type(need(in, 1, node), Type::float32, node);
    out[0].type = present(in, 2) ? in[2].type : Type::uint8;
    out[0].dims = in[0].dims;
    check(is_byte(out[0].type), node.describe() + " to " + type_name(out[0].type) + " is not supported");
    check(!present(in, 2) || in[2].dims.count() == in[1].dims.count(),
          node.describe() + ": zero points do not fit");
    quantized_axis(node, in[0].dims, in[1].dims);
}

void infer_dequantize(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    need_type(need(in, 1, node), Type::float32, node);
    check(is_byte(x.type) || x.type == Type::int32,
          node.describe() + " of " + type_name(x.type) + " is not supported");
    check(!present(in, 2) || (in[2].dims.count() == in[1].dims.count() && in[2].type == x.type),
          node.describe() + ": zero points do not fit");
    out[0].type = Type::float32, out[0].dims = x.dims;
    quantized_axis(node, x.dims, in[1].dims);
}

int64_t integer_at(const View& view, int64_t i) {
    switch (view.type) {
        case Type::uint8:
        case Type::uint4:
            return view.as<uint8_t>()[i];
        case Type::int32:
            return view.as<int32_t>()[i];
        default:
            return view.as<int8_t>()[i];
    }
}

// body(element, channel) for all elements.
template <class Body>
void each_channel(const Node& node, const View& x, const View& scale, const Body& body) {
    const int64_t axis = quantized_axis(node, x.dims, scale.dims);
    const int64_t inner =
        axis == kMaxRank ? x.count() : x.dims.product(static_cast<int>(axis) + 1, x.dims.rank);
    const int64_t channels = scale.count();
    for (int64_t i = 0, count = x.count(); i < count; i++) body(i, i / inner % channels);
}

void run_quantize(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    const bool is_signed = out[0].type == Type::int8 || out[0].type == Type::int4;
    const bool halves = out[0].type == Type::int4 || out[0].type == Type::uint4;
    const float lowest = is_signed ? (halves ? -8.0f : -128.0f) : 0.0f;
    const float highest = lowest + (halves ? 15.0f : 255.0f);
    each_channel(node, in[0], in[1], [&](int64_t i, int64_t c) {
        const float zero = present(in, 2) ? static_cast<float>(integer_at(in[2], c)) : 0.0f;
        float steps = in[0].as<float>()[i] / in[1].as<float>()[c];
        steps = steps > lowest - zero ? steps : lowest - zero;
        steps = steps < highest - zero ? steps : highest - zero;
        const int value = static_cast<int>(std::nearbyintf(steps)) + static_cast<int>(zero);
        out[0].as<uint8_t>()[i] = static_cast<uint8_t>(value);
    });
}

void run_dequantize(const Node& node, const Views& in, const Views& out, ThreadPool&) {
    each_channel(node, in[0], in[1], [&](int64_t i, int64_t c) {
        const int64_t zero = present(in, 2) ? integer_at(in[2], c) : 0;
        out[0].as<float>()[i] = static_cast<float>(integer_at(in[0], i) - zero) * in[1].as<float>()[c];
    });
}

}  // namespace

void add_quantization(Table& table) {
    table["Cast"] = {infer_cast, run_cast};
    table["QuantizeLinear"] = {infer_quantize, run_quantize};
    table["DequantizeLinear"] = {infer_dequantize, run_dequantize};
}

}  // namespace lowbit::runtime
