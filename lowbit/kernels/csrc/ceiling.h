// How fast the arithmetic itself can be: the instructions of the products, on registers alone.
#pragma once
#include "kernels.h"

// Runs `turns` of the loop for operands of so many bits (4, 8; 32 is fp32) in the instruction set in use, and
// returns how many multiply-adds a turn is; 0 where there is no such loop (the portable one).
LOWBIT_PUBLIC int64_t lowbit_ceiling(int32_t bits, int64_t turns);
