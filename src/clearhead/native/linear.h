// Linear maps of some rows: each weight is read once for up to eight of them.

#pragma once

#include <algorithm>

#include "bytes.h"

constexpr int64_t MOST_WHOLE = 65536;  // inputs whose products with bytes have a sum that fits into 32 bits
// Rows that meet a weight while it is in a register: their sums fit into the registers, of which there are 16 or 32.
constexpr int64_t ROWS = REGISTER == 32 ? 6 : 8;

// The products of COUNT rows with BLOCKS blocks, (BLOCKS, COUNT, BLOCK); each sum runs over k in its order.
template <class Weight, int64_t COUNT, int64_t BLOCKS>
static void multiply(const char* weights, const number* x, int64_t inputs, number* products) {
    Lanes sums[BLOCKS][COUNT][2] = {};
    const int64_t size = inputs * BLOCK * sizeof(Weight);
    for (int64_t k = 0; k < inputs; k++, weights += BLOCK * sizeof(Weight))
        for (int64_t block = 0; block < BLOCKS; block++) {
            Lanes first, second;
            widen(weights + block * size, first, second, static_cast<const Weight*>(nullptr));
            for (int64_t row = 0; row < COUNT; row++) {
                sums[block][row][0] += first * x[row * inputs + k];
                sums[block][row][1] += second * x[row * inputs + k];
            }
        }
    std::memcpy(products, sums, sizeof sums);
}

// The products of as many rows as are multiplied at once: their number. One row alone may meet some blocks.
template <class Weight, int64_t COUNT = ROWS>
static int64_t multiply_some(const char* weights, const number* x, int64_t rows, int64_t blocks, int64_t inputs,
                             number* products) {
    if (blocks == 4) return multiply<Weight, 1, 4>(weights, x, inputs, products), 1;
    if constexpr (COUNT > 1)
        if (rows < COUNT) return multiply_some<Weight, COUNT - 1>(weights, x, rows, blocks, inputs, products);
    return multiply<Weight, COUNT, 1>(weights, x, inputs, products), COUNT;
}

// The same, with bytes: of digits, where there are some.
static int64_t multiply_some_bytes(const char* weights, const int32_t* offsets, const Digits* digits, const number* x,
                                   int64_t row, int64_t rows, int64_t inputs, number* products) {
    if (digits && rows >= 2) return multiply_whole<2>(weights, offsets, *digits, row, inputs, products), 2;
    if (digits) return multiply_whole<1>(weights, offsets, *digits, row, inputs, products), 1;
    if (rows >= 4) return multiply_bytes<4>(weights, x, inputs, products), 4;
    return multiply_bytes<1>(weights, x, inputs, products), 1;
}

// x (B, K) -> (B, N); `finish` is told where each register of products belongs, and how many of them are outputs.
template <class Finish>
static void linear(const Matrix& matrix, const number* x, int64_t rows, number* y, Digits& digits, Finish finish) {
    const int64_t K = matrix.inputs, all = (matrix.outputs + BLOCK - 1) / BLOCK;
    const int64_t group = rows == 1 && matrix.bytes > 1 ? 4 : 1;
    const int64_t size = (matrix.bytes > 1 ? K : (K + GROUP - 1) / GROUP * GROUP) * BLOCK * matrix.bytes;
    const bool whole_numbers = WHOLE && matrix.bytes == 1 && K <= MOST_WHOLE;
    if (whole_numbers) digits.split(x, rows, K);
#pragma omp for schedule(static)
    for (int64_t start = 0; start < all; start += group) {
        alignas(64) number products[ROWS * BLOCK];
        const int64_t whole = start + group <= all ? group : 1, end = std::min(start + group, all);
        for (int64_t block = start; block < end; block += whole)
            for (int64_t row = 0, count; row < rows; row += count) {
                const char* weights = matrix.blocks + block * size;
                const number* from = x + row * K;
                if (matrix.bytes == 1)
                    count = multiply_some_bytes(weights, matrix.offsets + block * BLOCK,
                                                whole_numbers ? &digits : nullptr, from, row, rows - row, K, products);
                else if (matrix.bytes == 2)
                    count = multiply_some<uint16_t>(weights, from, rows - row, whole, K, products);
                else
                    count = multiply_some<number>(weights, from, rows - row, whole, K, products);
                for (int64_t i = 0; i < 2 * count * whole; i++) {
                    const int64_t output = block * BLOCK + (i / 2 / count * 2 + i % 2) * LANES;
                    Lanes lanes = read(products + i * LANES);
                    if (matrix.scales) lanes *= read(matrix.scales + output);
                    if (matrix.bias) lanes += read(matrix.bias + output);
                    number* place = y + (row + i / 2 % count) * matrix.outputs + output;
                    const int64_t left = matrix.outputs - output;
                    if (left >= LANES) {
                        write(place, finish(lanes, read(place)));
                    } else if (left > 0) {
                        Lanes old = {};
                        std::memcpy(&old, place, left * sizeof(number));
                        lanes = finish(lanes, old);
                        std::memcpy(place, &lanes, left * sizeof(number));
                    }
                }
            }
    }
}

static const auto STORE = [](Lanes products, Lanes) { return products; };
static const auto ADD = [](Lanes products, Lanes old) { return old + products; };
