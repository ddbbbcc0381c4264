// Products with matrices of int8: in whole numbers where the processor has such products, else in the type's own.

#pragma once

#include <vector>

#include "structures.h"

constexpr int64_t GROUP = 4;  // inputs that lie together for each output: (N', K', BLOCK, GROUP), K' rounded up

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
constexpr bool WHOLE = sizeof(number) == 4;
#else
constexpr bool WHOLE = false;
#endif

// Rows x (B, K) as whole numbers: x = scale (65,536 c + 256 b + a), where a, b, c fit into int8. With 127 * 65,536 on
// either side of zero they are as near as a row's largest number is in float32.
struct Digits {
    static constexpr int64_t COUNT = 3, MOST = 127 * 65536;
    int64_t width;                 // of a digit's row, K rounded up
    std::vector<int8_t> digits;    // (B, COUNT, width)
    std::vector<int32_t> offsets;  // (B, COUNT): 128 times their sums
    std::vector<number> scales;    // (B,)

    Digits(const number* x, int64_t rows, int64_t inputs)
        : width((inputs + GROUP - 1) / GROUP * GROUP), digits(rows * COUNT * width), offsets(rows * COUNT),
          scales(rows) {
        for (int64_t row = 0; row < rows; row++) split(x + row * inputs, inputs, row);
    }

    void split(const number* x, int64_t inputs, int64_t row) {
        number largest = 0, broken = 0;
#pragma omp simd reduction(max : largest) reduction(+ : broken)
        for (int64_t k = 0; k < inputs; k++) {
            largest = std::max(largest, std::abs(x[k]));
            broken += 0 * x[k];  // no number, if one of them is none, or infinite
        }
        scales[row] = largest / MOST + broken;
        if (broken != 0) return;
        const number factor = largest > 0 ? MOST / largest : 0;
        int8_t* found = &digits[row * COUNT * width];
        int32_t sums[COUNT] = {};
#pragma omp simd
        for (int64_t k = 0; k < inputs; k++) {
            const int32_t whole = int32_t(x[k] * factor + (x[k] < 0 ? number(-0.5) : number(0.5)));
            const int32_t a = int8_t(whole), b = int8_t((whole - a) >> 8), c = (whole - a - b * 256) >> 16;
            found[k] = a;
            found[width + k] = b;
            found[2 * width + k] = c;
        }
        for (int64_t digit = 0; digit < COUNT; digit++) {
            for (int64_t k = 0; k < inputs; k++) sums[digit] += found[digit * width + k];
            offsets[row * COUNT + digit] = 128 * sums[digit];
        }
    }
};

// The products of COUNT rows, from `row` on, with one block, (COUNT, BLOCK).
template <int64_t COUNT>
static void multiply_whole(const char* weights, const Digits& x, int64_t row, number* products) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    __m512i sums[COUNT][Digits::COUNT][2];
    for (auto& of_row : sums)
        for (auto& of_digit : of_row) of_digit[0] = of_digit[1] = _mm512_setzero_si512();
    const __m512i sign = _mm512_set1_epi8(-128);  // one of the factors must not be negative: 128 is added to weights
    for (int64_t k = 0; k < x.width; k += GROUP, weights += BLOCK * GROUP) {
        const __m512i first = _mm512_xor_si512(_mm512_loadu_si512(weights), sign);
        const __m512i second = _mm512_xor_si512(_mm512_loadu_si512(weights + 64), sign);
        for (int64_t i = 0; i < COUNT; i++)
            for (int64_t digit = 0; digit < Digits::COUNT; digit++) {
                int32_t four;
                std::memcpy(&four, &x.digits[((row + i) * Digits::COUNT + digit) * x.width + k], GROUP);
                const __m512i digits = _mm512_set1_epi32(four);
                sums[i][digit][0] = _mm512_dpbusd_epi32(sums[i][digit][0], first, digits);
                sums[i][digit][1] = _mm512_dpbusd_epi32(sums[i][digit][1], second, digits);
            }
    }
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t half = 0; half < 2; half++) {
            __m512 all = _mm512_setzero_ps();
            for (int64_t digit = Digits::COUNT - 1; digit >= 0; digit--) {
                const __m512i offset = _mm512_set1_epi32(x.offsets[(row + i) * Digits::COUNT + digit]);
                const __m512i sum = _mm512_sub_epi32(sums[i][digit][half], offset);
                all = _mm512_fmadd_ps(all, _mm512_set1_ps(256), _mm512_cvtepi32_ps(sum));
            }
            const Lanes scaled = Lanes(all) * x.scales[row + i];
            write(products + (2 * i + half) * LANES, scaled);
        }
#endif
}

// The same of rows x (COUNT, K), by numbers.
template <int64_t COUNT>
static void multiply_bytes(const char* weights, const number* x, int64_t inputs, number* products) {
    typedef Vector<int32_t>::type Words;
    Lanes sums[COUNT][2] = {};
    for (int64_t k = 0; k < inputs; k += GROUP, weights += BLOCK * GROUP) {
        Words words[2];
        std::memcpy(words, weights, sizeof words);
        for (int64_t i = 0; i < GROUP; i++)
            for (int64_t half = 0; half < 2; half++) {
                const Lanes weight = __builtin_convertvector((words[half] << (24 - 8 * i)) >> 24, Lanes);
                const int64_t place = std::min(k + i, inputs - 1);  // behind the last one weights are 0
                for (int64_t row = 0; row < COUNT; row++) sums[row][half] += weight * x[row * inputs + place];
            }
    }
    std::memcpy(products, sums, sizeof sums);
}
