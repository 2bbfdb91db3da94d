// Rows of tiles from padded rows of bytes; see winograd_rows.h.
#include "winograd_rows.h"

#include "room.h"

#include <algorithm>
#include <cstring>

namespace lowbit::winograd {
namespace {

constexpr int64_t kRead = 64;  // bytes behind a row that can be read, since sixteen tiles are taken at a time

// Rows [first, first + count) of a channel with its padding; what no tile sees may be left out.
void pad(const Channel& channel, const uint8_t* image, int64_t first, int64_t count, uint8_t* to, int64_t row_bytes) {
    const size_t width = static_cast<size_t>(std::min(channel.width, row_bytes - channel.before));
    memset(to, 0, static_cast<size_t>(count * row_bytes));
    for (int64_t row = std::max(first, channel.above); row < first + count; row++) {
        const int64_t from = row - channel.above;
        if (from >= channel.height) return;
        memcpy(to + (row - first) * row_bytes + channel.before, image + from * channel.width, width);
    }
}

}  // namespace

void spread_rows(const Tiling& tiling, const Channel& channel, Spread spread, int64_t first, int64_t last,
                 int16_t* points, int64_t apart) {
    thread_local Room room;
    const int64_t row_bytes = 2 * tiling.columns + channel.reach + kRead;
    uint8_t* bytes = room.of<uint8_t>((2 * std::min(tiling.tile_rows, last - first) + channel.reach) * row_bytes);
    for (int64_t row = first; row < last;) {
        const int64_t n = row / tiling.tile_rows, at = row % tiling.tile_rows;
        const int64_t count = std::min(last - row, tiling.tile_rows - at);
        pad(channel, channel.first + n * channel.image, 2 * at, 2 * count + channel.reach - 2, bytes, row_bytes);
        for (int64_t i = 0; i < count; i++, points += tiling.columns) {
            spread(bytes + 2 * i * row_bytes, row_bytes, tiling.columns, points, apart);
        }
        row += count;
    }
}

}  // namespace lowbit::winograd
