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
//
// One of the factors of these products must not be negative, so 128 is added to the digits, which are then the bytes of
// a whole number; what that adds to the products is taken away at their start.
struct Digits {
    static constexpr int64_t COUNT = 3, MOST = 127 * 65536, ADDED = 128 * (65536 + 256 + 1);
    int64_t width;                // from one row to the next: K rounded up to a register
    std::vector<int32_t> digits;  // (B, width), of GROUP numbers first all a, then all b, then all c
    std::vector<number> scales;   // (B,)

    // Room for so many rows of at most so many numbers.
    Digits(int64_t rows, int64_t most) : width((most + 15) / 16 * 16), digits(rows * width), scales(rows) {}

    // Rows x (B, K), taken apart by all threads together.
    void split(const number* x, int64_t rows, int64_t inputs) {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) split_one(x + row * inputs, inputs, row);
    }

    void split_one(const number* x, int64_t inputs, int64_t row) {
        number largest = 0, broken = 0;
#pragma omp simd reduction(max : largest) reduction(+ : broken)
        for (int64_t k = 0; k < inputs; k++) {
            largest = std::max(largest, std::abs(x[k]));
            broken += 0 * x[k];  // no number, if one of them is none, or infinite
        }
        scales[row] = largest / MOST + broken;
        if (broken != 0) return;
        const number factor = largest > 0 ? MOST / largest : 0;
        int32_t* found = &digits[row * width];
#pragma omp simd
        for (int64_t k = 0; k < inputs; k++)
            found[k] = int32_t(x[k] * factor + (x[k] < 0 ? number(-0.5) : number(0.5))) + int32_t(ADDED);
        transpose(found, inputs);
    }

    // Bytes of four numbers, behind the last of which is anything: there weights are 0.
    static void transpose(int32_t* numbers, int64_t inputs) {
#ifdef __AVX512VNNI__
        const __m512i places = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
        for (int64_t k = 0; k < inputs; k += 16)
            _mm512_storeu_si512(numbers + k, _mm512_shuffle_epi8(_mm512_loadu_si512(numbers + k), places));
#endif
    }
};

// The products of COUNT rows, from `row` on, with one block, (COUNT, BLOCK), whose sums begin at `offsets` (BLOCK,).
template <int64_t COUNT>
static void multiply_whole(const char* weights, const int32_t* offsets, const Digits& x, int64_t row, int64_t inputs,
                           number* products) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    __m512i sums[COUNT][Digits::COUNT][2];
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t digit = 0; digit < Digits::COUNT; digit++)
            for (int64_t half = 0; half < 2; half++)
                sums[i][digit][half] = _mm512_loadu_si512(offsets + half * LANES);
    const int32_t* digits = &x.digits[row * x.width];
    for (int64_t k = 0; k < inputs; k += GROUP, weights += BLOCK * GROUP) {
        const __m512i first = _mm512_loadu_si512(weights), second = _mm512_loadu_si512(weights + 64);
        for (int64_t i = 0; i < COUNT; i++)
            for (int64_t digit = 0; digit < Digits::COUNT; digit++) {
                const __m512i four = _mm512_set1_epi32(digits[i * x.width + k + digit]);
                sums[i][digit][0] = _mm512_dpbusd_epi32(sums[i][digit][0], four, first);
                sums[i][digit][1] = _mm512_dpbusd_epi32(sums[i][digit][1], four, second);
            }
    }
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t half = 0; half < 2; half++) {
            __m512 all = _mm512_setzero_ps();
            for (int64_t digit = Digits::COUNT - 1; digit >= 0; digit--)
                all = _mm512_fmadd_ps(all, _mm512_set1_ps(256), _mm512_cvtepi32_ps(sums[i][digit][half]));
            write(products + (2 * i + half) * LANES, Lanes(all) * x.scales[row + i]);
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
