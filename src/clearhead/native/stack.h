// A decoder's stack: a row of numbers for each token goes in and comes out, and each layer's cache takes up its key and
// value. What a row gets does not depend, in any bit, on the other rows or on the number of threads: every sum runs over
// its terms in one order, and those of attention begin at the first column that it sees.

#pragma once

#include "attention.h"
#include "linear.h"

static inline void normalize_one(const Norm& norm, const number* x, number* y, int64_t width) {
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

static void normalize(const Norm& norm, const number* x, number* y, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) normalize_one(norm, x + row * width, y + row * width, width);
}

// A head's query or key, normalized and turned where it stands.
static void place_one(const StackWeights& stack, const Call& call, const Norm& norm, Place at, number* x) {
    if (norm.weight) normalize_one(norm, x, x, stack.head_dim);
    if (!call.cosines) return;
    const int64_t angles = at.text * call.rotary_stride + at.column * 2 * call.rotary_half;
    const number *c = call.cosines + angles, *s = call.sines + angles;
    for (int64_t i = 0, j = call.rotary_half; i < call.rotary_half; i++, j++) {
        const number first = x[i], second = x[j];
        x[i] = first * c[i] + second * s[i];
        x[j] = second * c[j] + first * s[j];
    }
}

struct Room {  // what a step writes down on its way
    std::vector<number> x, normed, other, heads, mixed, hidden;
    Digits digits;
    Room(const StackWeights& s, int64_t rows)
        : x(rows * s.d_model), normed(x.size()), other(s.parallel ? x.size() : 0),
          heads(rows * (s.n_heads + 2 * s.n_kv_heads) * s.head_dim), mixed(rows * s.n_heads * s.head_dim),
          hidden(rows * s.d_ff),
          digits(s.layers->heads.bytes == 1 ? rows : 0, std::max({s.d_model, s.n_heads * s.head_dim, s.d_ff})) {}
};

// All heads of all rows, and whose keys they meet; those that meet the same ones come one after the other.
template <class Meet>
static void each_head(const StackWeights& stack, const Step& step, Meet meet) {
    const int64_t H = stack.n_heads, group = H / stack.n_kv_heads;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < step.rows() * H; i++) {
        const int64_t head = i / step.count % H, row = i / step.count / H * step.count + i % step.count;
        meet(row, head, head / group);
    }
}

// x += attention(in)
static void attention(const StackWeights& stack, const Layer& layer, const Call& call, const Step& step, Room& room,
                      const number* in, number* const* cache, number* scores) {
    const int64_t K = stack.head_dim, H = stack.n_heads, H_kv = stack.n_kv_heads, rows = step.rows();
    const int64_t width = (H + 2 * H_kv) * K;
    linear(layer.heads, in, rows, room.heads.data(), room.digits, STORE);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * H_kv; i++) {
        const int64_t row = i / H_kv, head = i % H_kv;
        const Place at = step.of(row);
        if (at.is_padding(call)) continue;
        number *key = &room.heads[row * width + (H + head) * K], *value = key + H_kv * K;
        const int64_t last = ((at.row(call) * H_kv + head) * call.capacity + at.cached(call)) * K;
        place_one(stack, call, layer.key_norm, at, key);
        std::memcpy(cache[0] + last, key, K * sizeof(number));
        std::memcpy(cache[1] + last, value, K * sizeof(number));
    }
    each_head(stack, step, [&](int64_t row, int64_t head, int64_t kv_head) {
        const Place at = step.of(row);
        number* mixed = &room.mixed[(row * H + head) * K];
        if (at.is_padding(call)) return void(std::fill(mixed, mixed + K, number(0)));
        const int64_t P = call.places(), T = call.length + P, first = (at.row(call) * H_kv + kv_head) * call.capacity * K;
        const int64_t end = call.both_ways ? T : at.cached(call) + 1;
        const int64_t start = call.window ? std::max<int64_t>(0, end - call.window) : 0;
        KeyRange range{cache[0] + first + start * K, cache[1] + first + start * K, end - start, call.capacity};
        if (call.bias) range.bias = call.bias + at.text * call.bias_stride + (head * P + at.column) * T + start;
        if (call.mask) range.mask = call.mask + at.text * call.mask_stride + at.column * T + start;
        number* query = &room.heads[row * width + head * K];
        place_one(stack, call, layer.query_norm, at, query);
        attend(range, query, K, number(stack.scale), scores, mixed);
    });
    linear(layer.output, room.mixed.data(), rows, room.x.data(), room.digits, ADD);
}

// The memory's keys and values, (B, H_kv, T_src, K) each, of the encoder's states (B, T_src, D).
static void project_memory(const StackWeights& stack, const Layer& layer, const Call& call, Room& room, number* projected,
                           number* const* memory) {
    const int64_t K = stack.head_dim, H_kv = stack.n_kv_heads, T = call.n_tokens, rows = call.texts * T;
    linear(layer.cross_memory, room.x.data(), rows, projected, room.digits, STORE);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * H_kv; i++) {
        const int64_t row = i / H_kv, head = i % H_kv, to = ((row / T * H_kv + head) * T + row % T) * K;
        number *key = projected + (row * 2 * H_kv + head) * K, *value = key + H_kv * K;
        if (layer.cross_key_norm.weight) normalize_one(layer.cross_key_norm, key, key, K);
        std::memcpy(memory[0] + to, key, K * sizeof(number));
        std::memcpy(memory[1] + to, value, K * sizeof(number));
    }
}

// x += attention(in, memory)
static void cross_attention(const StackWeights& stack, const Layer& layer, const Call& call, const Step& step, Room& room,
                            const number* in, number* const* memory, number* scores) {
    const int64_t K = stack.head_dim, H_kv = stack.n_kv_heads, rows = step.rows(), T = call.memory_length;
    linear(layer.cross_query, in, rows, room.heads.data(), room.digits, STORE);
    each_head(stack, step, [&](int64_t row, int64_t head, int64_t kv_head) {
        const int64_t text = step.of(row).text, first = (text * H_kv + kv_head) * T * K;
        const uint8_t* mask = call.memory_mask ? call.memory_mask + text * T : nullptr;
        const int64_t place = (row * stack.n_heads + head) * K;
        number* query = &room.heads[place];
        if (layer.cross_query_norm.weight) normalize_one(layer.cross_query_norm, query, query, K);
        attend({memory[0] + first, memory[1] + first, T, T, nullptr, mask}, query, K, number(stack.scale), scores,
               &room.mixed[place]);
    });
    linear(layer.cross_output, room.mixed.data(), rows, room.x.data(), room.digits, ADD);
}

// x += feedforward(in)
static void feedforward(const StackWeights& stack, const Layer& layer, int64_t rows, Room& room, const number* in) {
    const auto bend = [&](Lanes products, Lanes) { return activated(products, stack.activation); };
    const auto gate = [](Lanes products, Lanes old) { return old * products; };
    linear(layer.gate.blocks ? layer.gate : layer.up, in, rows, room.hidden.data(), room.digits, bend);
    if (layer.gate.blocks) linear(layer.up, in, rows, room.hidden.data(), room.digits, gate);
    linear(layer.down, room.hidden.data(), rows, room.x.data(), room.digits, ADD);
}

// x, through all layers; `scores` has room for as many columns as there are, in registers.
static void run_stack(const StackWeights& stack, const Call& call, const Step& step, Room& room, number* scores) {
    const int64_t rows = step.rows(), D = stack.d_model;
    number *x = room.x.data(), *normed = room.normed.data(), *other = room.other.data();
    for (int64_t l = 0; l < stack.n_layers; l++) {
        const Layer& layer = stack.layers[l];
        if (!stack.post) normalize(layer.attention_norm, x, normed, rows, D);
        if (stack.parallel) normalize(layer.feedforward_norm, x, other, rows, D);
        attention(stack, layer, call, step, room, stack.post ? x : normed, call.caches + 2 * l, scores);
        if (stack.post) normalize(layer.attention_norm, x, x, rows, D);
        if (layer.cross_query.blocks) {
            if (!stack.post) normalize(layer.cross_norm, x, normed, rows, D);
            cross_attention(stack, layer, call, step, room, stack.post ? x : normed, call.memories + 2 * l, scores);
            if (stack.post) normalize(layer.cross_norm, x, x, rows, D);
        }
        if (!stack.post && !stack.parallel) normalize(layer.feedforward_norm, x, normed, rows, D);
        feedforward(stack, layer, rows, room, stack.post ? x : stack.parallel ? other : normed);
        if (stack.post) normalize(layer.feedforward_norm, x, x, rows, D);
    }
    if (stack.norm.weight) normalize(stack.norm, x, x, rows, D);
}
