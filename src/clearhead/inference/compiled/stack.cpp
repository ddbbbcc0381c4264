// One step of a decoder's stack: a vector for each row of a batch goes in and comes out, and each layer's cache takes up
// the row's key and value. What a row gets does not depend, in any bit, on the other rows or on the number of threads:
// every sum runs over its terms in one order.
//
// Shapes are as in the Python that this mirrors: B rows, D d_model, H heads, K head width, T columns of a cache.

#include <algorithm>
#include <limits>
#include <vector>

#include "linear.h"

constexpr number NONE = -std::numeric_limits<number>::infinity();  // the score of what may not be attended to

// What Python fills in, field by field; every field has 8 bytes (see layout.py).
struct Norm {  // none where it has no weight
    const number* weight;
    const number* bias;  // LayerNorm's, which subtracts the mean; an RMSNorm has none
    double epsilon;
};
struct Layer {
    Matrix query, key, value, output, up, gate, down;  // no gate where it has no blocks
    Norm attention_norm, query_norm, key_norm, feedforward_norm;
};
struct Stack {
    const Layer* layers;
    int64_t n_layers, d_model, n_heads, n_kv_heads, head_width, d_ff;
    double scale;
    int64_t activation, post, parallel;
    Norm norm;
};
struct Call {
    const number* x;  // (B, D)
    number* out;      // (B, D)
    int64_t rows, threads;
    number* const* caches;  // keys and values of each layer in turn: (B, H_kv, capacity, K)
    int64_t length, capacity;  // columns in use before this step, and all
    const uint8_t* mask;       // (B or 1, T), or none
    int64_t mask_row;          // from one row to the next
    const number* bias;        // (B or 1, H, T), or none
    int64_t bias_row;
    const number* cosines;  // (B or 1, R), or none
    const number* sines;
    int64_t half, turn_row;  // R / 2, and from one row to the next
};

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
static void place_one(const Stack& stack, const Call& call, const Norm& norm, int64_t row, number* x) {
    if (norm.weight) normalise_one(norm, x, x, stack.head_width);
    if (!call.cosines) return;
    const number *c = call.cosines + row * call.turn_row, *s = call.sines + row * call.turn_row;
    for (int64_t i = 0, j = call.half; i < call.half; i++, j++) {
        const number first = x[i], second = x[j];
        x[i] = first * c[i] + second * s[i];
        x[j] = second * c[j] + first * s[j];
    }
}

// What a query (K,) finds at LANES keys (K,), the last of which may come more than once; their values are sent for.
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
    for (int64_t t = 0; t < length; t += TURNS)
        for (int64_t turn = 0; turn < std::min(TURNS, length - t); turn++)
            for (int64_t i = 0; i < COUNT; i++) {
                const int64_t place = (t + turn) * width + i * LANES;
                __builtin_prefetch(next + place);
                sums[turn][i] += shares[t + turn] * read(values + place);
            }
    for (int64_t i = 0; i < COUNT; i++) {
        for (int64_t turn = 1; turn < TURNS; turn++) sums[0][i] += sums[turn][i];
        write(out + i * LANES, sums[0][i]);
    }
}

// Shares that sum to 1, of scores (T,); what is behind them is none.
static void softmax(std::vector<number>& scores, int64_t length) {
    std::fill(scores.begin() + length, scores.end(), NONE);
    Lanes most = Lanes{} + NONE, sums = {};
    for (size_t t = 0; t < scores.size(); t += LANES) {
        const Lanes score = read(&scores[t]);
        most = score > most ? score : most;
    }
    number largest = NONE;
    for (int64_t i = 0; i < LANES; i++) largest = std::max(largest, number(most[i]));
    for (size_t t = 0; t < scores.size(); t += LANES) {
        const Lanes score = read(&scores[t]), share = score == NONE ? Lanes{} : exponential(score - largest);
        write(&scores[t], share);
        sums += share;
    }
    const number all = total(sums), part = all > 0 ? 1 / all : 0;  // nothing to attend to yields zeros
    for (size_t t = 0; t < scores.size(); t += LANES) write(&scores[t], read(&scores[t]) * part);
}

// What one head of one row finds: (K,), of keys and values (T, K).
static void attend(const number* query, const number* keys, const number* values, const Call& call, int64_t row,
                   int64_t head, const Stack& stack, std::vector<number>& scores, number* out) {
    const int64_t length = call.length + 1, K = stack.head_width;
    for (int64_t t = 0; t < length; t += LANES)
        write(&scores[t], products(query, keys + t * K, values + t * K, length - t, K) * number(stack.scale));
    if (call.bias) {
        const number* bias = call.bias + row * call.bias_row + head * length;
        for (int64_t t = 0; t < length; t++) scores[t] += bias[t];
    }
    if (call.mask) {
        const uint8_t* mask = call.mask + row * call.mask_row;
        for (int64_t t = 0; t < length; t++) scores[t] = mask[t] ? scores[t] : NONE;
    }
    softmax(scores, length);
    const number* next = keys + call.capacity * K;  // of the head that comes after this one
    int64_t i = 0;
    for (; i + 4 * LANES <= K; i += 4 * LANES) mix<4>(scores.data(), values + i, next + i, length, K, out + i);
    for (; i + 2 * LANES <= K; i += 2 * LANES) mix<2>(scores.data(), values + i, next + i, length, K, out + i);
    for (; i + LANES <= K; i += LANES) mix<1>(scores.data(), values + i, next + i, length, K, out + i);
    for (; i < K; i++) {
        out[i] = 0;
        for (int64_t t = 0; t < length; t++) out[i] += scores[t] * values[t * K + i];
    }
}

struct Room {  // what a step writes down on its way
    std::vector<number> normed, other, query, key, value, mixed, hidden;
    explicit Room(const Stack& s, int64_t B)
        : normed(B * s.d_model), other(s.parallel ? B * s.d_model : 0), query(B * s.n_heads * s.head_width),
          key(B * s.n_kv_heads * s.head_width), value(key.size()), mixed(query.size()), hidden(B * s.d_ff) {}
};

static const auto STORE = [](Lanes products, Lanes) { return products; };
static const auto ADD = [](Lanes products, Lanes old) { return old + products; };

// x += attention(in)
static void attention(const Stack& stack, const Layer& layer, const Call& call, Room& room, const number* in,
                      number* const* cache) {
    const int64_t K = stack.head_width, H = stack.n_heads, H_kv = stack.n_kv_heads, length = call.length + 1;
    linear(layer.query, in, call.rows, room.query.data(), STORE);
    linear(layer.key, in, call.rows, room.key.data(), STORE);
    linear(layer.value, in, call.rows, room.value.data(), STORE);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < call.rows * H_kv; i++) {
        const int64_t last = (i * call.capacity + call.length) * K;
        place_one(stack, call, layer.key_norm, i / H_kv, &room.key[i * K]);
        std::memcpy(cache[0] + last, &room.key[i * K], K * sizeof(number));
        std::memcpy(cache[1] + last, &room.value[i * K], K * sizeof(number));
    }
    std::vector<number> scores((length + LANES - 1) / LANES * LANES);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < call.rows * H; i++) {
        const int64_t row = i / H, head = i % H, first = (row * H_kv + head / (H / H_kv)) * call.capacity * K;
        number* query = &room.query[i * K];
        place_one(stack, call, layer.query_norm, row, query);
        attend(query, cache[0] + first, cache[1] + first, call, row, head, stack, scores, &room.mixed[i * K]);
    }
    linear(layer.output, room.mixed.data(), call.rows, call.out, ADD);
}

// x += feedforward(in)
static void feedforward(const Stack& stack, const Layer& layer, const Call& call, Room& room, const number* in) {
    const auto bend = [&](Lanes products, Lanes) { return activated(products, stack.activation); };
    const auto gate = [](Lanes products, Lanes old) { return old * products; };
    linear(layer.gate.blocks ? layer.gate : layer.up, in, call.rows, room.hidden.data(), bend);
    if (layer.gate.blocks) linear(layer.up, in, call.rows, room.hidden.data(), gate);
    linear(layer.down, room.hidden.data(), call.rows, call.out, ADD);
}

static void step(const Stack& stack, const Call& call, Room& room) {
    const int64_t B = call.rows, D = stack.d_model;
    number *x = call.out, *normed = room.normed.data(), *other = room.other.data();
    for (int64_t l = 0; l < stack.n_layers; l++) {
        const Layer& layer = stack.layers[l];
        if (!stack.post) normalise(layer.attention_norm, x, normed, B, D);
        if (stack.parallel) normalise(layer.feedforward_norm, x, other, B, D);
        attention(stack, layer, call, room, stack.post ? x : normed, call.caches + 2 * l);
        if (stack.post) normalise(layer.attention_norm, x, x, B, D);
        if (!stack.post && !stack.parallel) normalise(layer.feedforward_norm, x, normed, B, D);
        feedforward(stack, layer, call, room, stack.post ? x : stack.parallel ? other : normed);
        if (stack.post) normalise(layer.feedforward_norm, x, x, B, D);
    }
    if (stack.norm.weight) normalise(stack.norm, x, x, B, D);
}

extern "C" {

void clearhead_step(const Stack* stack, const Call* call) {
    Room room(*stack, call->rows);
    std::memcpy(call->out, call->x, call->rows * stack->d_model * sizeof(number));
#pragma omp parallel num_threads(call->threads)
    step(*stack, *call, room);
}

void clearhead_linear(const Matrix* matrix, const number* x, number* y, int64_t rows, int64_t threads) {
#pragma omp parallel num_threads(threads)
    linear(*matrix, x, rows, y, STORE);
}
}
