// A decoder's stack: a vector for each row of a batch goes in and comes out, and each layer's cache takes up the row's
// key and value. What a row gets does not depend, in any bit, on the other rows or on the number of threads: every sum
// runs over its terms in one order.

#pragma once

#include "attention.h"
#include "linear.h"

static inline void normalise_one(const Norm& norm, const number* x, number* y, int64_t width) {
    number mean = 0, square = 0;
    if (norm.bias) {
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < width; i++) mean += x[i];
        mean /= width;
    }
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    const number factor = 1 / std::sqrt(square / width + number(norm.epsilon));
    if (norm.bias)
        for (int64_t i = 0; i < width; i++) y[i] = (x[i] - mean) * factor * norm.weight[i] + norm.bias[i];
    else
        for (int64_t i = 0; i < width; i++) y[i] = x[i] * factor * norm.weight[i];
}

static void normalise(const Norm& norm, const number* x, number* y, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) normalise_one(norm, x + row * width, y + row * width, width);
}

// A head's query or key, normalised and turned where it stands.
static void place_one(const Stack& stack, const Call& call, const Norm& norm, int64_t row, int64_t step, number* x) {
    if (norm.weight) normalise_one(norm, x, x, stack.head_width);
    if (!call.cosines) return;
    const int64_t angles = row * call.turn_row + step * 2 * call.half;
    const number *c = call.cosines + angles, *s = call.sines + angles;
    for (int64_t i = 0, j = call.half; i < call.half; i++, j++) {
        const number first = x[i], second = x[j];
        x[i] = first * c[i] + second * s[i];
        x[j] = second * c[j] + first * s[j];
    }
}

struct Room {  // what a step writes down on its way
    std::vector<number> x, normed, other, query, key, value, mixed, hidden;
    explicit Room(const Stack& s, int64_t B)
        : x(B * s.d_model), normed(x.size()), other(s.parallel ? x.size() : 0),
          query(B * s.n_heads * s.head_width), key(B * s.n_kv_heads * s.head_width), value(key.size()),
          mixed(query.size()), hidden(B * s.d_ff) {}
};

// x += attention(in)
static void attention(const Stack& stack, const Layer& layer, const Call& call, int64_t step, Room& room,
                      const number* in, number* const* cache, number* scores) {
    const int64_t K = stack.head_width, H = stack.n_heads, H_kv = stack.n_kv_heads;
    linear(layer.query, in, call.rows, room.query.data(), STORE);
    linear(layer.key, in, call.rows, room.key.data(), STORE);
    linear(layer.value, in, call.rows, room.value.data(), STORE);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < call.rows * H_kv; i++) {
        const int64_t last = (i * call.capacity + call.length + step) * K;
        place_one(stack, call, layer.key_norm, i / H_kv, step, &room.key[i * K]);
        std::memcpy(cache[0] + last, &room.key[i * K], K * sizeof(number));
        std::memcpy(cache[1] + last, &room.value[i * K], K * sizeof(number));
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < call.rows * H; i++) {
        const int64_t row = i / H, head = i % H, first = (row * H_kv + head / (H / H_kv)) * call.capacity * K;
        number* query = &room.query[i * K];
        place_one(stack, call, layer.query_norm, row, step, query);
        attend(stack, call, row, head, step, query, cache[0] + first, cache[1] + first, scores, &room.mixed[i * K]);
    }
    linear(layer.output, room.mixed.data(), call.rows, room.x.data(), ADD);
}

// x += feedforward(in)
static void feedforward(const Stack& stack, const Layer& layer, const Call& call, Room& room, const number* in) {
    const auto bend = [&](Lanes products, Lanes) { return activated(products, stack.activation); };
    const auto gate = [](Lanes products, Lanes old) { return old * products; };
    linear(layer.gate.blocks ? layer.gate : layer.up, in, call.rows, room.hidden.data(), bend);
    if (layer.gate.blocks) linear(layer.up, in, call.rows, room.hidden.data(), gate);
    linear(layer.down, room.hidden.data(), call.rows, room.x.data(), ADD);
}

// x, through all layers; `scores` has room for as many columns as there are, in registers.
static void through_the_stack(const Stack& stack, const Call& call, int64_t step, Room& room, number* scores) {
    const int64_t B = call.rows, D = stack.d_model;
    number *x = room.x.data(), *normed = room.normed.data(), *other = room.other.data();
    for (int64_t l = 0; l < stack.n_layers; l++) {
        const Layer& layer = stack.layers[l];
        if (!stack.post) normalise(layer.attention_norm, x, normed, B, D);
        if (stack.parallel) normalise(layer.feedforward_norm, x, other, B, D);
        attention(stack, layer, call, step, room, stack.post ? x : normed, call.caches + 2 * l, scores);
        if (stack.post) normalise(layer.attention_norm, x, x, B, D);
        if (!stack.post && !stack.parallel) normalise(layer.feedforward_norm, x, normed, B, D);
        feedforward(stack, layer, call, room, stack.post ? x : stack.parallel ? other : normed);
        if (stack.post) normalise(layer.feedforward_norm, x, x, B, D);
    }
    if (stack.norm.weight) normalise(stack.norm, x, x, B, D);
}
