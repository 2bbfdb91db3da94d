// Exact sums of the products of points: rows of one operand times sixteen columns of the other.
//
// A step multiplies a word, two int16 that are summed, of every row with the words of sixteen columns. Steps
// come in runs of eight: a panel of sixteen channels, or eight pairs of tiles.
#pragma once
#include "common/cpu.h"

namespace lowbit::winograd {

constexpr int64_t kRun = 8;  // steps of a run

// Sums of steps, modulo 2^32, [rows][16 columns].
struct PointProduct {
    const int16_t* rows_from;
    int64_t run;  // int16 elements from one run to the next
    int64_t rows, steps;
    const int16_t* columns_from;  // [step][16 columns][2]
    int32_t* sums;
};

// How the words of a run lie in memory: [row][step], as points of tiles with their channels next to each
// other; or [step][row], as panels of channels.
struct PointProducts {
    void (*by_row)(const PointProduct& of);
    void (*by_step)(const PointProduct& of);
};

const PointProducts& point_products();

}  // namespace lowbit::winograd
