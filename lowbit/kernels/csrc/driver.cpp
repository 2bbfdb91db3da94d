// The loops over groups, images, panels of sixteen channels and strips of pixels.
#include "driver.h"

#include "finish.h"
#include "images.h"
#include "threads.h"
#include "weights.h"

namespace lowbit::conv {
namespace {

struct alignas(64) Starts {
    int32_t values[kPanel];
};

// What is the same for every strip of a part.
struct PartPlan {
    const Part* part;
    int64_t pixels;           // of an image
    std::vector<Sum> sums;    // one, or one per tap
    const int64_t* places;    // of the pixels of all images, in the packed ones
    const int64_t* targets;   // of the pixels of an image, in a plane of the result; null: one after the other
    std::vector<int64_t> wide_starts;  // of every sum, for the channels of all panels
    std::vector<Starts> starts;        // the same, then zeros for one sum
    Covers covers;                     // of AMX
};

// A strip of pixels of some panels.
struct Work {
    int64_t group, first_image, panel, panels, first_pixel, pixels;
};

class Run {
  public:
    Run(const Convolution& convolution, const Product& product)
        : convolution_(convolution),
          product_(product),
          layout_(convolution, *product.source, *product.weight),
          weights_(convolution, layout_, *product.weight, product.transposed),
          images_(convolution, layout_, product),
          tiles_(layout_.tiles) {
        plan_parts();
        find_places();
        choose_tiles();
    }

    void run() {
        for (int64_t group = 0; group < convolution_.groups; group++) {
            weights_.pack(group);
            for (PartPlan& plan : plans_) start_sums(plan);
            for (int64_t first = 0; first < convolution_.batch; first += images_.most()) {
                const int64_t count = std::min(images_.most(), convolution_.batch - first);
                images_.pack(group, first, count);
                run_images(group, first, count);
            }
        }
    }

  private:
    void plan_parts() {
        int64_t before = 0;
        for (const Part& part : convolution_.parts) {
            const int64_t taps = static_cast<int64_t>(part.taps.size());
            PartPlan plan{&part, part.rows * part.columns, {}, nullptr, nullptr, {}, {}, {}};
            for (int64_t t = 0; product_.by_tap && t < taps; t++) {
                plan.sums.push_back(sum_over(part, t, t + 1, before, layout_.row_bytes, layout_.pixel_bytes,
                                             layout_.limits));
            }
            if (!product_.by_tap) {
                plan.sums.push_back(sum_over(part, 0, taps, before, layout_.row_bytes, layout_.pixel_bytes,
                                             layout_.limits));
            }
            if (plan.pixels) plans_.push_back(std::move(plan));
            before += taps;
        }
    }

    void find_places() {
        thread_local Room places_room, targets_room;
        int64_t count = 0;
        for (const PartPlan& plan : plans_) count += images_.most() * plan.pixels + kSlack;
        int64_t* places = places_room.of<int64_t>(count);
        int64_t* targets = targets_room.of<int64_t>(convolution_.result.height * convolution_.result.width);
        for (PartPlan& plan : plans_) {
            const Part& part = *plan.part;
            plan.places = places;
            for (int64_t i = 0; i < images_.most(); i++) {
                for (int64_t row = 0; row < part.rows; row++) {
                    const int64_t first = i * images_.spots() + images_.spot(row * part.step_h, 0);
                    for (int64_t column = 0; column < part.columns; column++) {
                        *places++ = (first + column * part.step_w) * layout_.pixel_bytes;
                    }
                }
            }
            for (int64_t i = 0; i < kSlack; i++, places++) *places = places[-1];
            if (part.apart_h == 1 && part.apart_w == 1) continue;
            plan.targets = targets;
            for (int64_t row = 0; row < part.rows; row++) {
                const int64_t first = (part.first_row + row * part.apart_h) * convolution_.result.width;
                for (int64_t column = 0; column < part.columns; column++) {
                    *targets++ = first + part.first_column + column * part.apart_w;
                }
            }
        }
    }

    void choose_tiles() {
#if LOWBIT_AMX
        if (instruction_set() != InstructionSet::amx || layout_.packed != Packed::bytes) return;
        std::vector<Pattern> patterns;
        for (const PartPlan& plan : plans_) {
            const int64_t pixels = images_.most() * plan.pixels;
            Pattern pattern{plan.places, pixels, layout_.apart(*plan.part), layout_.panels, 0, {}};
            for (const Sum& sum : plan.sums) {
                for (const Span& span : sum.spans) {
                    pattern.sums++;
                    for (const Segment& segment : span.segments) pattern.steps.push_back(segment.steps);
                }
            }
            patterns.push_back(std::move(pattern));
        }
        tiles_ = choose_amx(tiles_, patterns);
        for (size_t i = 0; tiles_.amx && i < plans_.size(); i++) plans_[i].covers = cover(patterns[i], tiles_.pixels);
#endif
    }

    void start_sums(PartPlan& plan) {
        const size_t channels = static_cast<size_t>(layout_.panels * kPanel);
        plan.wide_starts.assign(plan.sums.size() * channels, 0);
        for (size_t i = 0; i < plan.sums.size(); i++) {
            const Sum& sum = plan.sums[i];
            for (int64_t t = sum.first_tap; t < sum.first_tap + sum.taps; t++) {
                const int64_t* corrections = weights_.corrections(t);
                for (size_t c = 0; c < channels; c++) plan.wide_starts[i * channels + c] += corrections[c];
            }
        }
        plan.starts.assign((plan.sums.size() + 1) * static_cast<size_t>(layout_.panels), {});
        for (size_t i = 0; i < plan.wide_starts.size(); i++) {
            plan.starts[i / kPanel].values[i % kPanel] = static_cast<int32_t>(plan.wide_starts[i]);
        }
    }

    // Panel after panel, so that its weights stay in the cache; and all parts of a place together, which write
    // to the same lines of memory.
    void run_images(int64_t group, int64_t first, int64_t count) {
        int64_t pixels = 0;
        for (const PartPlan& plan : plans_) pixels = std::max(pixels, count * plan.pixels);
        const int64_t length = tiles_.pixels, strips = up_to(pixels, length) / length, together = tiles_.panels;
        const int64_t bundles = up_to(layout_.panels, together) / together, threads = lowbit_threads();
        const int64_t wanted = threads > 1 ? up_to(threads * kItemsPerThread, bundles) / bundles : 1;
        const int64_t pieces = std::min(wanted, strips), most = up_to(strips, pieces) / pieces;
        parallel_for(bundles * pieces, [&](int64_t item) {
            const int64_t panel = item / pieces * together, begin = item % pieces * most;
            const int64_t panels = std::min(together, layout_.panels - panel);
            const Ready ready(tiles_);
            for (int64_t strip = begin; strip < std::min(strips, begin + most); strip++) {
                for (const PartPlan& plan : plans_) {
                    const int64_t p = strip * length, left = count * plan.pixels - p;
                    if (left <= 0) continue;
                    const Work work{group, first, panel, panels, p, std::min(length, left)};
                    product_.by_tap ? run_taps(plan, work) : run_strip(plan, work);
                }
            }
        });
    }

    void run_span(const PartPlan& plan, const Span& span, const Work& work, const int32_t* start, int32_t* sums) {
        Strip strip{images_.bytes(),
                    plan.places + work.first_pixel,
                    work.pixels,
                    span.segments.data(),
                    static_cast<int64_t>(span.segments.size()),
                    weights_.panel(work.panel) + span.first_step * 4 * kPanel,
                    layout_.panel_bytes,
                    start,
                    sums,
                    nullptr,
                    0,
                    layout_.apart(*plan.part),
                    tiles_.tail};
        if (tiles_.amx) {
            // A strip that is cut short since images are fewer has its tiles all the same: there is room for them.
            const int64_t* strips = plan.covers.strips.data() + work.first_pixel / tiles_.pixels;
            strip.covers = plan.covers.tiles.data() + strips[0];
            strip.tiles = strips[1] - strips[0];
        }
        (work.panels == 1 ? tiles_.run_one : tiles_.run)(strip);
    }

    // The sums of a strip: in int32 where they fit, else in `wide`, and true is returned.
    bool sum_up(const PartPlan& plan, size_t number, const Work& work, int32_t* sums, int64_t* wide) {
        const Sum& sum = plan.sums[number];
        const size_t first = number * static_cast<size_t>(layout_.panels * kPanel) + work.panel * kPanel;
        if (sum.spans.size() == 1) {
            run_span(plan, sum.spans[0], work, plan.starts[first / kPanel].values, sums);
            return false;
        }
        for (int64_t i = 0; i < work.panels * kPanelOfSums; i++) {
            wide[i] = plan.wide_starts[first + i / kPanelOfSums * kPanel + i % kPanel];
        }
        const int32_t* zeros = plan.starts[plan.wide_starts.size() / kPanel].values;
        for (const Span& span : sum.spans) {
            run_span(plan, span, work, zeros, sums);
            for (int64_t i = 0; i < work.panels * kPanelOfSums; i++) wide[i] += sums[i];
        }
        return true;
    }

    void run_strip(const PartPlan& plan, const Work& work) {
        alignas(64) int32_t sums[kMostPanels * kPanelOfSums];
        alignas(64) int64_t wide[kMostPanels * kPanelOfSums];
        if (sum_up(plan, 0, work, sums, wide)) {
            finish_strip(plan, wide, work);
        } else {
            finish_strip(plan, sums, work);
        }
    }

    // With a scale per pixel of the source: tap by tap, added up in fp32.
    void run_taps(const PartPlan& plan, const Work& work) {
        alignas(64) int32_t sums[kMostPanels * kPanelOfSums];
        alignas(64) int64_t wide[kMostPanels * kPanelOfSums];
        alignas(64) float totals[kMostPanels * kPanelOfSums] = {};
        int64_t spots[kStrip];
        float scale[kStrip];
        for (int64_t p = 0; p < work.pixels; p++) {
            spots[p] = plan.places[work.first_pixel + p] / layout_.pixel_bytes;
        }
        for (size_t t = 0; t < plan.sums.size(); t++) {
            const Tap& tap = plan.part->taps[t];
            const float* scales = images_.scales() + tap.row * convolution_.padded_width + tap.column;
            for (int64_t p = 0; p < work.pixels; p++) scale[p] = scales[spots[p]];
            const bool is_wide = sum_up(plan, t, work, sums, wide);
            for (int64_t at = 0; at < work.panels * kPanelOfSums; at += kPanelOfSums) {
                if (is_wide) {
                    add_scaled(wide + at, scale, work.pixels, totals + at);
                } else {
                    add_scaled(sums + at, scale, work.pixels, totals + at);
                }
            }
        }
        finish_strip(plan, totals, work);
    }

    // A strip's results to where they belong; a strip may go over the border between images.
    template <class Number>
    void finish_strip(const PartPlan& plan, const Number* sums, const Work& work) {
        for (int64_t done = 0; done < work.pixels;) {
            const int64_t pixel = work.first_pixel + done;
            const int64_t n = work.first_image + pixel / plan.pixels, at = pixel % plan.pixels;
            const int64_t count = std::min(work.pixels - done, plan.pixels - at);
            for (int64_t panel = 0; panel < work.panels; panel++) {
                const Number* from = sums + panel * kPanelOfSums + done * kPanel;
                finish_piece(plan, from, work.group, n, (work.panel + panel) * kPanel, at, count);
            }
            done += count;
        }
    }

    // Pixels of image n, from `at` on, for the sixteen channels from c on.
    template <class Number>
    void finish_piece(const PartPlan& plan, const Number* sums, int64_t group, int64_t n, int64_t c, int64_t at,
                      int64_t count) {
        const Image& result = convolution_.result;
        const int64_t plane = result.height * result.width;
        const int64_t channels = std::min(kPanel, result.channels - c);
        const int64_t first = ((n * convolution_.groups + group) * result.channels + c) * plane;
        const int64_t* targets = plan.targets ? plan.targets + at : nullptr;
        const int64_t start = targets ? first : first + at;
        if (product_.sums) {
            for (int64_t i = 0; i < channels * count; i++) {
                const int64_t p = i % count, channel = i / count;
                product_.sums[start + channel * plane + (targets ? targets[p] : p)] =
                    static_cast<int64_t>(sums[p * kPanel + channel]);
            }
            return;
        }
        float scale[kPanel] = {}, bias[kPanel] = {};
        const lowbit_operand &source = *product_.source, &weight = *product_.weight;
        const float of_source = product_.by_tap ? 1.0f : source.scale[n * source.of_n];
        for (int64_t i = 0; i < channels; i++) {
            scale[i] = of_source *
                       weight.scale[group * product_.scale_of_group + (c + i) * product_.scale_of_channel];
            if (product_.bias) bias[i] = product_.bias[group * result.channels + c + i];
        }
        finish(sums, Planes{product_.values + start, plane, targets, count, channels, scale,
                            product_.bias ? bias : nullptr});
    }

    const Convolution& convolution_;
    const Product& product_;
    const Layout layout_;
    Weights weights_;
    Images images_;
    Tiles tiles_;
    std::vector<PartPlan> plans_;
};

}  // namespace

void run(const Convolution& convolution, const Product& product) { Run(convolution, product).run(); }

}  // namespace lowbit::conv
