// What one query finds at the keys and values of a cache.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "places.h"

constexpr number NONE = -std::numeric_limits<number>::infinity();  // the score of what may not be attended to

// Dot products of a query (K,) with LANES keys (K,); past the end, the last key is repeated. Prefetches the values.
static inline Lanes products(const number* query, const number* keys, const number* values, int64_t left,
                             int64_t width) {
    Lanes sums[LANES];
    for (int64_t t = 0; t < LANES; t++) {
        const int64_t place = std::min(t, left - 1) * width;
        Lanes sum = {};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            __builtin_prefetch(values + place + i);
            sum += read(query + i) * read(keys + place + i);
        }
        for (; i < width; i++) sum[0] += query[i] * keys[place + i];
        sums[t] = sum;
    }
    return totals(sums);
}

// Values (T, K) in these shares (T,), COUNT registers of each: -> (COUNT * LANES,); the `next` keys are sent for.
template <int64_t COUNT>
static inline void mix(const number* shares, const number* values, const number* next, int64_t length, int64_t width,
                       number* out) {
    constexpr int64_t TURNS = 8 / COUNT;  // sums that do not wait for each other
    Lanes sums[TURNS][COUNT] = {};
    const auto add = [&](int64_t t, int64_t turn) {
        for (int64_t i = 0; i < COUNT; i++) {
            const int64_t place = t * width + i * LANES;
            __builtin_prefetch(next + place);
            sums[turn][i] += shares[t] * read(values + place);
        }
    };
    int64_t t = 0;
    for (; t + TURNS <= length; t += TURNS)
        for (int64_t turn = 0; turn < TURNS; turn++) add(t + turn, turn);
    for (int64_t turn = 0; t + turn < length; turn++) add(t + turn, turn);
    for (int64_t i = 0; i < COUNT; i++) {
        for (int64_t turn = 1; turn < TURNS; turn++) sums[0][i] += sums[turn][i];
        write(out + i * LANES, sums[0][i]);
    }
}

// Shares that sum to 1, of scores (T,); room behind them, up to the end of a register, is used.
static void softmax(number* scores, int64_t length) {
    std::fill(scores + length, scores + (length + LANES - 1) / LANES * LANES, NONE);
    Lanes most = Lanes{} + NONE, sums = {};
    for (int64_t t = 0; t < length; t += LANES) {
        const Lanes score = read(scores + t);
        most = score > most ? score : most;
    }
    number largest = NONE;
    for (int64_t i = 0; i < LANES; i++) largest = std::max(largest, number(most[i]));
    for (int64_t t = 0; t < length; t += LANES) {
        const Lanes score = read(scores + t), share = score == NONE ? Lanes{} : exponential(score - largest);
        write(scores + t, share);
        sums += share;
    }
    const number all = total(sums), part = all > 0 ? 1 / all : 0;  // nothing to attend to yields zeros
    for (int64_t t = 0; t < length; t += LANES) write(scores + t, read(scores + t) * part);
}

struct KeyRange {  // what one head of one token attends to
    const number *keys, *values;  // (T, K)
    int64_t length, capacity;     // T, and columns up to the keys of the next head
    const number* bias = nullptr;   // (T,), or none
    const uint8_t* mask = nullptr;  // (T,), or none
};

// The attention of a query (K,): (K,). `scores` has room for T of them in registers.
static void attend(const KeyRange& range, const number* query, int64_t K, number scale, number* scores, number* out) {
    for (int64_t t = 0; t < range.length; t += LANES)
        write(scores + t, products(query, range.keys + t * K, range.values + t * K, range.length - t, K) * scale);
    if (range.bias)
        for (int64_t t = 0; t < range.length; t++) scores[t] += range.bias[t];
    if (range.mask)
        for (int64_t t = 0; t < range.length; t++) scores[t] = range.mask[t] ? scores[t] : NONE;
    softmax(scores, range.length);
    const number *values = range.values, *next = range.keys + range.capacity * K;  // of the head that comes after this one
    int64_t i = 0;
    for (; i + 4 * LANES <= K; i += 4 * LANES) mix<4>(scores, values + i, next + i, range.length, K, out + i);
    for (; i + 2 * LANES <= K; i += 2 * LANES) mix<2>(scores, values + i, next + i, range.length, K, out + i);
    for (; i + LANES <= K; i += LANES) mix<1>(scores, values + i, next + i, range.length, K, out + i);
    for (; i < K; i++) {
        out[i] = 0;
        for (int64_t t = 0; t < range.length; t++) out[i] += scores[t] * values[t * K + i];
    }
}
