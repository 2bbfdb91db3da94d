// The loops over groups, images, panels of sixteen channels and strips of pixels.
#include "driver.h"

#include "finish.h"
#include "room.h"
#include "steps.h"

#include <cstring>

namespace lowbit::conv {
namespace {

constexpr int64_t kWaveBytes = 256 * 1024;  // packed images that are used while they are in the cache

struct Rooms {
    Room images, weights, rows, starts, corrections, pixels, places, targets, scales;
};
thread_local Rooms rooms;

int64_t up_to(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

class Run {
  public:
    Run(const Convolution& convolution, const Product& product)
        : convolution_(convolution), product_(product) {
        const lowbit_operand &source = *product.source, &weight = *product.weight;
        offset_ = source.lowest < 0 ? -source.lowest : 0;
        const int64_t largest_source = std::max(source.highest, 0) + offset_;
        const int64_t largest_weight = std::max(std::abs(weight.lowest), std::abs(weight.highest));
        choice_ = choose_tiles(largest_source, largest_weight, weight.highest < 128);
        if (choice_.packed == Packed::words) offset_ = 0;
        const int64_t size = size_of(choice_.packed);
        channels_ = up_to(convolution.source.channels, 4);
        pixel_bytes_ = channels_ * size;
        row_bytes_ = convolution.padded_width * pixel_bytes_;
        image_bytes_ = convolution.padded_height * row_bytes_;
        panels_ = up_to(convolution.result.channels, kPanel) / kPanel;
        panel_bytes_ = convolution.kernel * pixel_bytes_ * kPanel;
        limits_ = {choice_.tiles.steps_in_int16, steps_in_int32(largest_source, largest_weight, 4 / size)};
        const int64_t waves = up_to(convolution.batch, std::max<int64_t>(1, kWaveBytes / image_bytes_)) /
                              std::max<int64_t>(1, kWaveBytes / image_bytes_);
        wave_ = up_to(convolution.batch, waves) / waves;
        find_pixels();
        list_taps();
    }

    void run() {
        uint8_t* images = rooms.images.of<uint8_t>(wave_ * image_bytes_);
        // The padding, for all: packing writes only between it.
        memset(images, offset_, static_cast<size_t>(wave_ * image_bytes_));
        for (int64_t group = 0; group < convolution_.groups; group++) {
            pack_weights(group);
            for (int64_t first = 0; first < convolution_.batch; first += wave_) {
                const int64_t count = std::min(wave_, convolution_.batch - first);
                for (int64_t i = 0; i < count; i++) pack_image(group, first + i, images + i * image_bytes_);
                if (by_tap()) spread_scales(first, count);
                int64_t tap = 0;
                for (const Part& part : convolution_.parts) {
                    run_part(part, tap, group, first, count);
                    tap += static_cast<int64_t>(part.taps.size());
                }
            }
        }
    }

  private:
    bool by_tap() const { return product_.by_tap && !product_.sums; }

    // Where a pixel of the source is packed.
    void find_pixels() {
        const Image& source = convolution_.source;
        int64_t* pixels = rooms.pixels.of<int64_t>(source.height * source.width);
        for (int64_t row = 0; row < source.height; row++) {
            for (int64_t column = 0; column < source.width; column++) {
                *pixels++ = spot(row, column) * channels_;
            }
        }
    }

    // The number of a source pixel among those of the padded image.
    int64_t spot(int64_t row, int64_t column) const {
        return (row + convolution_.above) * convolution_.padded_width + column + convolution_.before;
    }

    // In which order the taps lie in a panel.
    void list_taps() {
        order_.resize(static_cast<size_t>(convolution_.kernel));
        int64_t place = 0;
        for (const Part& part : convolution_.parts) {
            for (const Tap& tap : part.taps) order_[static_cast<size_t>(tap.kernel)] = place++;
        }
    }

    void pack_weights(int64_t group) {
        const int64_t taps = convolution_.kernel, size = size_of(choice_.packed);
        const int64_t in = convolution_.source.channels, out = convolution_.result.channels;
        const int64_t row = taps * channels_;  // elements
        const uint8_t* first = static_cast<const uint8_t*>(product_.weight->integers) + group * in * out * taps;
        const uint8_t* end = first + (convolution_.groups - group) * in * out * taps;
        const bool is_signed = product_.weight->lowest < 0;
        uint8_t* weights = rooms.weights.of<uint8_t>(panels_ * panel_bytes_);
        uint8_t* rows = rooms.rows.of<uint8_t>(kPanel * row * size);
        int64_t* corrections = rooms.corrections.of<int64_t>(taps * panels_ * kPanel);
        places_.resize(static_cast<size_t>(kPanel * taps));
        for (int64_t i = 0; i < kPanel * taps; i++) {
            places_[i] = i / taps * row + order_[static_cast<size_t>(i % taps)] * channels_;
        }
        for (int64_t panel = 0; panel < panels_; panel++) {
            const int64_t c = panel * kPanel, count = std::min(kPanel, out - c);
            if (count < kPanel) memset(rows, 0, static_cast<size_t>(kPanel * row * size));
            if (product_.transposed) {
                pack_planes({first + c * taps, end, is_signed}, in, out * taps, count * taps, places_.data(), 0,
                            choice_.packed, rows);
            } else {
                for (int64_t i = 0; i < count; i++) {
                    pack_planes({first + (c + i) * in * taps, end, is_signed}, in, taps, taps, places_.data(), 0,
                                choice_.packed, rows + i * row * size);
                }
            }
            interleave_rows(reinterpret_cast<const uint32_t*>(rows), row * size / 4,
                            reinterpret_cast<uint32_t*>(weights + panel * panel_bytes_));
            for (int64_t i = 0; i < kPanel * taps; i++) {
                corrections[(i % taps * panels_ + panel) * kPanel + i / taps] =
                    offset_ ? correction(reinterpret_cast<const int8_t*>(rows) + i * channels_) : 0;
            }
        }
    }

    // What the offset of the source adds to the sum over a tap, taken back.
    int64_t correction(const int8_t* weights) const {
        int64_t sum = 0;
        for (int64_t c = 0; c < channels_; c++) sum += weights[c];
        return -offset_ * sum;
    }

    void pack_image(int64_t group, int64_t n, uint8_t* target) {
        const Image& source = convolution_.source;
        const int64_t plane = source.height * source.width, image = source.channels * plane;
        const uint8_t* all = static_cast<const uint8_t*>(product_.source->integers);
        const uint8_t* end = all + convolution_.batch * convolution_.groups * image;
        const Integers integers{all + (n * convolution_.groups + group) * image, end, product_.source->lowest < 0};
        pack_planes(integers, source.channels, plane, plane, rooms.pixels.of<int64_t>(plane), offset_,
                    choice_.packed, target);
    }

    // The scales of the source's pixels, laid out like the padded images.
    void spread_scales(int64_t first, int64_t count) {
        const Image& source = convolution_.source;
        const lowbit_operand& from = *product_.source;
        const int64_t spots = convolution_.padded_height * convolution_.padded_width;
        float* scales = rooms.scales.of<float>(wave_ * spots);
        memset(scales, 0, static_cast<size_t>(wave_ * spots) * sizeof(float));
        for (int64_t i = 0; i < count; i++) {
            for (int64_t row = 0; row < source.height; row++) {
                for (int64_t column = 0; column < source.width; column++) {
                    scales[i * spots + spot(row, column)] =
                        from.scale[(first + i) * from.of_n + (row * source.width + column) * from.of_pixel];
                }
            }
        }
    }

    void run_part(const Part& part, int64_t tap, int64_t group, int64_t first, int64_t count) {
        const int64_t pixels = part.rows * part.columns, taps = static_cast<int64_t>(part.taps.size());
        if (!pixels) return;
        find_places(part, count);
        std::vector<Sum> sums;
        if (by_tap()) {
            for (int64_t t = 0; t < taps; t++) sums.push_back(sum_of(part, t, t + 1, tap));
        } else {
            sums.push_back(sum_of(part, 0, taps, tap));
        }
        start_sums(sums);
        for (int64_t panel = 0; panel < panels_;) {
            const int64_t together = panel + choice_.tiles.panels <= panels_ ? choice_.tiles.panels : 1;
            for (int64_t p = 0; p < count * pixels; p += kStrip) {
                const Work work{group, first, panel, together, p, std::min(kStrip, count * pixels - p), pixels};
                if (by_tap()) {
                    run_taps(part, sums, work);
                } else {
                    run_strip(sums[0], work);
                }
            }
            panel += together;
        }
    }

    struct Work {
        int64_t group, first_image, panel, together, first_pixel, pixels, pixels_of_image;
    };

    Sum sum_of(const Part& part, int64_t first, int64_t last, int64_t before) const {
        return sum_over(part, first, last, before, row_bytes_, pixel_bytes_, limits_);
    }

    // Of every pixel of a part, in all images of a wave: where it is in the packed images and in the result.
    void find_places(const Part& part, int64_t count) {
        const int64_t pixels = part.rows * part.columns;
        int64_t* places = rooms.places.of<int64_t>(count * pixels + kSlack);
        for (int64_t i = 0; i < count; i++) {
            for (int64_t row = 0; row < part.rows; row++) {
                int64_t place = i * image_bytes_ + spot(row * part.step_h, 0) * pixel_bytes_;
                for (int64_t column = 0; column < part.columns; column++, place += part.step_w * pixel_bytes_) {
                    *places++ = place;
                }
            }
        }
        for (int64_t i = 0; i < kSlack; i++, places++) *places = places[-1];
        contiguous_ = part.apart_h == 1 && part.apart_w == 1;
        if (contiguous_) return;
        int64_t* targets = rooms.targets.of<int64_t>(pixels);
        for (int64_t row = 0; row < part.rows; row++) {
            for (int64_t column = 0; column < part.columns; column++) {
                *targets++ = (part.first_row + row * part.apart_h) * convolution_.result.width +
                             part.first_column + column * part.apart_w;
            }
        }
    }

    // Per sum, for all panels: the corrections of its taps together, as int32 and as int64.
    void start_sums(const std::vector<Sum>& sums) {
        const int64_t channels = panels_ * kPanel;
        const int64_t* corrections = rooms.corrections.of<int64_t>(convolution_.kernel * channels);
        wide_starts_.assign(sums.size() * static_cast<size_t>(channels), 0);
        int64_t* start = wide_starts_.data();
        for (const Sum& sum : sums) {
            for (int64_t t = sum.first_tap; t < sum.first_tap + sum.taps; t++) {
                for (int64_t c = 0; c < channels; c++) start[c] += corrections[t * channels + c];
            }
            start += channels;
        }
        starts_.resize(wide_starts_.size() + static_cast<size_t>(channels));
        for (size_t i = 0; i < wide_starts_.size(); i++) starts_[i] = static_cast<int32_t>(wide_starts_[i]);
        for (size_t i = wide_starts_.size(); i < starts_.size(); i++) starts_[i] = 0;
    }

    void run_span(const Span& span, const Work& work, const int32_t* start, int32_t* sums) {
        const int64_t waves = wave_ * image_bytes_;
        const Strip strip{rooms.images.of<uint8_t>(waves),
                          rooms.places.of<int64_t>(0) + work.first_pixel,
                          work.pixels,
                          span.segments.data(),
                          static_cast<int64_t>(span.segments.size()),
                          rooms.weights.of<uint8_t>(panels_ * panel_bytes_) + work.panel * panel_bytes_ +
                              span.first_step * 4 * kPanel,
                          panel_bytes_,
                          start,
                          sums};
        (work.together == 1 ? choice_.tiles.run_one : choice_.tiles.run)(strip);
    }

    // The sums of a strip: in int32 where they fit, else in `wide`, and true is returned.
    bool sum_up(const Sum& sum, size_t number, const Work& work, int32_t* sums, int64_t* wide) {
        const int64_t channels = panels_ * kPanel, first = static_cast<int64_t>(number) * channels;
        const int64_t c = work.panel * kPanel;
        if (sum.spans.size() == 1) {
            run_span(sum.spans[0], work, starts_.data() + first + c, sums);
            return false;
        }
        for (int64_t panel = 0; panel < work.together; panel++) {
            for (int64_t i = 0; i < kPanelOfSums; i++) {
                wide[panel * kPanelOfSums + i] = wide_starts_[first + c + panel * kPanel + i % kPanel];
            }
        }
        for (const Span& span : sum.spans) {
            run_span(span, work, starts_.data() + wide_starts_.size(), sums);
            for (int64_t i = 0; i < work.together * kPanelOfSums; i++) wide[i] += sums[i];
        }
        return true;
    }

    void run_strip(const Sum& sum, const Work& work) {
        alignas(64) int32_t sums[kMostPanels * kPanelOfSums];
        alignas(64) int64_t wide[kMostPanels * kPanelOfSums];
        if (sum_up(sum, 0, work, sums, wide)) {
            finish_strip(wide, work, false);
        } else {
            finish_strip(sums, work, false);
        }
    }

    // With a scale per pixel of the source: tap by tap, added up in fp32.
    void run_taps(const Part& part, const std::vector<Sum>& sums_of_taps, const Work& work) {
        alignas(64) int32_t sums[kMostPanels * kPanelOfSums];
        alignas(64) int64_t wide[kMostPanels * kPanelOfSums];
        alignas(64) float totals[kMostPanels * kPanelOfSums] = {};
        float scale[kStrip];
        const int64_t* places = rooms.places.of<int64_t>(0) + work.first_pixel;
        const float* scales = rooms.scales.of<float>(0);
        for (size_t t = 0; t < sums_of_taps.size(); t++) {
            const int64_t beside = part.taps[t].row * convolution_.padded_width + part.taps[t].column;
            for (int64_t p = 0; p < work.pixels; p++) scale[p] = scales[places[p] / pixel_bytes_ + beside];
            const bool is_wide = sum_up(sums_of_taps[t], t, work, sums, wide);
            for (int64_t panel = 0; panel < work.together * kPanelOfSums; panel += kPanelOfSums) {
                if (is_wide) {
                    add_scaled(wide + panel, scale, work.pixels, totals + panel);
                } else {
                    add_scaled(sums + panel, scale, work.pixels, totals + panel);
                }
            }
        }
        finish_strip(totals, work, true);
    }

    // A strip's results to where they belong; a strip may go over the border between images.
    template <class Number>
    void finish_strip(const Number* sums, const Work& work, bool scaled) {
        for (int64_t done = 0; done < work.pixels;) {
            const int64_t pixel = work.first_pixel + done;
            const int64_t n = work.first_image + pixel / work.pixels_of_image, at = pixel % work.pixels_of_image;
            const int64_t count = std::min(work.pixels - done, work.pixels_of_image - at);
            for (int64_t panel = 0; panel < work.together; panel++) {
                finish_piece(sums + panel * kPanelOfSums + done * kPanel, work.group, n, work.panel + panel, at,
                             count, scaled);
            }
            done += count;
        }
    }

    template <class Number>
    void finish_piece(const Number* sums, int64_t group, int64_t n, int64_t panel, int64_t at, int64_t count,
                      bool scaled) {
        const Image& result = convolution_.result;
        const int64_t plane = result.height * result.width, c = panel * kPanel;
        const int64_t channels = std::min(kPanel, result.channels - c);
        const int64_t first = ((n * convolution_.groups + group) * result.channels + c) * plane;
        const int64_t* targets = contiguous_ ? nullptr : rooms.targets.of<int64_t>(0) + at;
        const int64_t start = contiguous_ ? first + at : first;
        if (product_.sums) {
            for (int64_t i = 0; i < channels * count; i++) {
                const int64_t p = i % count, channel = i / count;
                product_.sums[start + channel * plane + (targets ? targets[p] : p)] =
                    static_cast<int64_t>(sums[p * kPanel + channel]);
            }
            return;
        }
        float scale[kPanel] = {}, bias[kPanel] = {};
        const float of_source = scaled ? 1.0f : product_.source->scale[n * product_.source->of_n];
        for (int64_t i = 0; i < channels; i++) {
            scale[i] = of_source * product_.weight->scale[group * product_.scale_of_group +
                                                          (c + i) * product_.scale_of_channel];
            if (product_.bias) bias[i] = product_.bias[group * result.channels + c + i];
        }
        finish(sums, Planes{product_.values + start, plane, targets, count, channels, scale,
                            product_.bias ? bias : nullptr});
    }

    const Convolution& convolution_;
    const Product& product_;
    Choice choice_;
    Limits limits_;
    int offset_;
    int64_t channels_, pixel_bytes_, row_bytes_, image_bytes_, panels_, panel_bytes_, wave_;
    bool contiguous_ = true;
    std::vector<int64_t> order_, places_, wide_starts_;
    std::vector<int32_t> starts_;
};

}  // namespace

void run(const Convolution& convolution, const Product& product) { Run(convolution, product).run(); }

}  // namespace lowbit::conv
