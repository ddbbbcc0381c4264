// Linear maps of some rows: each weight is read once for up to eight of them.

#pragma once

#include "numbers.h"

constexpr int64_t ROWS = 8;  // rows that meet a weight while it is in a register

struct Matrix {  // see layout.py, which fills it in
    const char* blocks;  // (N', K, BLOCK), N' being N / BLOCK rounded up
    const number* scales;  // (N', BLOCK), or none
    const number* bias;    // (N', BLOCK), or none
    int64_t outputs, inputs, bytes;  // N, K, and of a weight
};

// The products of COUNT rows with one block, (COUNT, BLOCK).
template <class Weight, int64_t COUNT>
static void multiply(const char* weights, const number* x, int64_t inputs, number* products) {
    Lanes sums[COUNT][2] = {};
    for (int64_t k = 0; k < inputs; k++, weights += BLOCK * sizeof(Weight)) {
        Lanes first, second;
        widen(weights, first, second, static_cast<const Weight*>(nullptr));
        for (int64_t row = 0; row < COUNT; row++) {
            sums[row][0] += first * x[row * inputs + k];
            sums[row][1] += second * x[row * inputs + k];
        }
    }
    std::memcpy(products, sums, sizeof sums);
}

template <class Weight>
static int64_t multiply_some(const char* weights, const number* x, int64_t rows, int64_t inputs, number* products) {
    if (rows >= 8) return multiply<Weight, 8>(weights, x, inputs, products), 8;
    if (rows >= 4) return multiply<Weight, 4>(weights, x, inputs, products), 4;
    if (rows >= 2) return multiply<Weight, 2>(weights, x, inputs, products), 2;
    return multiply<Weight, 1>(weights, x, inputs, products), 1;
}

// x (B, K) -> (B, N); `finish` is told where each register of products belongs, and how many of them are outputs.
template <class Finish>
static void linear(const Matrix& matrix, const number* x, int64_t rows, number* y, Finish finish) {
    const int64_t blocks = (matrix.outputs + BLOCK - 1) / BLOCK, size = matrix.inputs * BLOCK * matrix.bytes;
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        alignas(64) number products[ROWS * BLOCK];
        const char* weights = matrix.blocks + block * size;
        for (int64_t row = 0, count; row < rows; row += count) {
            const number* from = x + row * matrix.inputs;
            if (matrix.bytes == 1)
                count = multiply_some<int8_t>(weights, from, rows - row, matrix.inputs, products);
            else if (matrix.bytes == 2)
                count = multiply_some<uint16_t>(weights, from, rows - row, matrix.inputs, products);
            else
                count = multiply_some<number>(weights, from, rows - row, matrix.inputs, products);
            for (int64_t i = 0; i < 2 * count; i++) {
                const int64_t output = block * BLOCK + i % 2 * LANES;
                Lanes lanes = read(products + i * LANES);
                if (matrix.scales) lanes *= read(matrix.scales + output);
                if (matrix.bias) lanes += read(matrix.bias + output);
                number* place = y + (row + i / 2) * matrix.outputs + output;
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
