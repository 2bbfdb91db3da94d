// Resize of images, by the nearest pixel or linearly; see operators.h.
#include "runtime/operators.h"

#include <algorithm>
#include <cmath>

namespace lowbit::runtime {
namespace {

void infer_resize(const Node& node, const Arguments& in, Arguments& out) {
    const Argument& x = need(in, 0, node);
    need_type(x, Type::float32, node);
    check(x.dims.rank == 4 && x.dims.count() > 0, node.describe() + " takes images [N, C, H, W]");
    const std::string mode = node.s("mode", "nearest");
    check(mode == "nearest" || mode == "linear", node.describe() + ": mode " + mode + " is not supported");
    check(!node.has("axes") && node.i("antialias", 0) == 0 &&
              node.s("keep_aspect_ratio_policy", "stretch") == "stretch",
          node.describe() + ": axes, antialias and keep_aspect_ratio_policy are not supported");
    const std::string place = node.s("coordinate_transformation_mode", "half_pixel");
    check(place == "half_pixel" || place == "asymmetric" || place == "align_corners" ||
              place == "pytorch_half_pixel",
          node.describe() + ": coordinates " + place + " are not supported");
    out[0].type = x.type, out[0].dims = x.dims;
    if (present(in, 3)) {
        const std::vector<int64_t> sizes = constant_ints(in, 3, node);
        check(sizes.size() == 4, node.describe() + ": it needs four sizes");
        for (int axis = 0; axis < 4; axis++) out[0].dims[axis] = sizes[static_cast<size_t>(axis)];
    } else {
        const Tensor* scales = need(in, 2, node).constant;
        check(scales && scales->type == Type::float32 && scales->count() == 4,
              node.describe() + ": it needs four scales");
        for (int axis = 0; axis < 4; axis++) {
            const float size = std::floor(static_cast<float>(x.dims[axis]) * scales->as<float>()[axis]);
            check(size >= 1 && size <= static_cast<float>(kMaxElements),
                  node.describe() + ": a scale is impossible");
            out[0].dims[axis] = static_cast<int64_t>(size);
        }
    }
    check_dims(out[0].dims, node.describe());
    check(out[0].dims[0] == x.dims[0] && out[0].dims[1] == x.dims[1] && out[0].dims.count() > 0,
          node.describe() + " may change the size of images only");
}

// The input coordinate of an output pixel, in fp64.
double coordinate(const std::string& mode, int64_t at, int64_t out, int64_t in, double scale) {
    if (mode == "asymmetric") return static_cast<double>(at) / scale;
    if (mode == "align_corners")
        return out == 1 ? 0 : static_cast<double>(at * (in - 1)) / static_cast<double>(out - 1);
    if (mode == "pytorch_half_pixel" && out == 1) return 0;
    return (static_cast<double>(at) + 0.5) / scale - 0.5;
}

int64_t nearest(const std::string& mode, double x) {
    if (mode == "floor") return static_cast<int64_t>(std::floor(x));
    if (mode == "ceil") return static_cast<int64_t>(std::ceil(x));
    if (mode == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5));
    return static_cast<int64_t>(std::ceil(x - 0.5));
}

struct Sample {
    int64_t first, second;
    float weight;  // of the second
};

Sample sample(const Node& node, int64_t at, int64_t out, int64_t in, double scale) {
    const double x = coordinate(node.s("coordinate_transformation_mode", "half_pixel"), at, out, in, scale);
    const auto inside = [in](int64_t place) { return std::clamp<int64_t>(place, 0, in - 1); };
    if (node.s("mode", "nearest") == "nearest") {
        const int64_t place = inside(nearest(node.s("nearest_mode", "round_prefer_floor"), x));
        return {place, place, 0};
    }
    const double below = std::floor(x);
    const int64_t first = static_cast<int64_t>(below);
    return {inside(first), inside(first + 1), static_cast<float>(x - below)};
}

void run_resize(const Node& node, const Views& in, const Views& out, ThreadPool& pool) {
    const Dims &x = in[0].dims, &y = out[0].dims;
    double scale[2];
    for (int axis = 0; axis < 2; axis++) {
        const bool by_sizes = present(in, 3);
        scale[axis] = by_sizes ? static_cast<double>(y[2 + axis]) / static_cast<double>(x[2 + axis])
                               : static_cast<double>(in[2].as<float>()[2 + axis]);
    }
    std::vector<Sample> columns;
    for (int64_t w = 0; w < y[3]; w++) columns.push_back(sample(node, w, y[3], x[3], scale[1]));
    pool.parallel_for(y[0] * y[1], [&](int64_t plane) {
        const float* image = in[0].as<float>() + plane * x[2] * x[3];
        float* to = out[0].as<float>() + plane * y[2] * y[3];
        for (int64_t h = 0; h < y[2]; h++) {
            const Sample rows = sample(node, h, y[2], x[2], scale[0]);
            const float *upper = image + rows.first * x[3], *lower = image + rows.second * x[3];
            for (const Sample& column : columns) {
                const float above =
                    upper[column.first] * (1 - column.weight) + upper[column.second] * column.weight;
                const float below =
                    lower[column.first] * (1 - column.weight) + lower[column.second] * column.weight;
                *to++ = above * (1 - rows.weight) + below * rows.weight;
            }
        }
    });
}

}  // namespace

void add_resize(Table& table) { table["Resize"] = {infer_resize, run_resize}; }

}  // namespace lowbit::runtime
