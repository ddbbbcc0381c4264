// A decoder writes: the next tokens of some rows, read, and drawn from the logits that follow.

#include "drawing.h"
#include "stack.h"

constexpr int64_t PRIME = 2147483647;  // as in ngram_tables.py

// x (D,) += what the tables hold for a token and those before it.
static void add_ngrams(const Tables& tables, const int64_t* history, int64_t held, int64_t token, int64_t D,
                       number* x) {
    if (!tables.weight) return;
    const auto back = [&](int64_t place) { return place ? history[held - place] : token + 1; };
    int64_t start = 0;
    for (int64_t n = 2; n <= tables.longest; n++) {
        const int64_t size = tables.sizes[n - 2], factor = tables.factors[n - 2];
        int64_t row = back(n - 1);
        for (int64_t place = n - 2; place >= 0; place--) row = (row * factor + back(place)) % PRIME;
        const number* found = tables.weight + (row % size + start) * D;
        for (int64_t i = 0; i < D; i++) x[i] += found[i];
        start += size;
    }
}

static void embed(const Decoder& decoder, const Call& call, int64_t step, number* x) {
    const int64_t D = decoder.stack.d_model;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < call.rows; row++) {
        const int64_t token = call.tokens[row * (call.steps + 1) + step];
        const number* embedding = decoder.embedding + token * D;
        number* own = x + row * D;
        for (int64_t i = 0; i < D; i++) own[i] = embedding[i] * number(decoder.embedding_scale);
        add_ngrams(decoder.embedding_ngrams, call.history + row * decoder.history, decoder.history, token, D, own);
        if (call.added) {
            const number* added = call.added + row * call.added_row + step * D;
            for (int64_t i = 0; i < D; i++) own[i] += added[i];
        }
        if (decoder.embedding_norm.weight) normalise_one(decoder.embedding_norm, own, own, D);
    }
}

// Logits from what the stack gave; the tokens that were read become history.
static void predict(const Decoder& decoder, const Call& call, int64_t step, Room& room) {
    const int64_t D = decoder.stack.d_model, held = decoder.history;
    number *x = room.x.data(), *normed = room.normed.data();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < call.rows; row++) {
        const int64_t token = call.tokens[row * (call.steps + 1) + step];
        int64_t* history = call.history + row * held;
        add_ngrams(decoder.logit_ngrams, history, held, token, D, x + row * D);
        if (held) {
            std::copy(history + 1, history + held, history);
            history[held - 1] = token + 1;
        }
    }
    if (decoder.dense.blocks) {
        const auto bend = [&](Lanes products, Lanes) { return activated(products, decoder.dense_activation); };
        linear(decoder.dense, x, call.rows, normed, bend);
        normalise(decoder.dense_norm, normed, x, call.rows, D);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < call.rows * D; i++) x[i] *= number(decoder.head_scale);
    linear(decoder.head, x, call.rows, call.logits, STORE);
}

static void draw_tokens(const Decoder& decoder, const Call& call, int64_t step, std::vector<number>& logits,
                        std::vector<number>& odds) {
    const int64_t V = decoder.head.outputs;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < call.rows; row++) {
        uint8_t* present = call.present ? call.present + row * V : nullptr;
        logits.assign(call.logits + row * V, call.logits + (row + 1) * V);
        const number uniform = call.uniforms[row * call.steps + step];
        const int64_t token = next_token(call.drawings[row], logits.data(), V, present, uniform, odds);
        call.tokens[row * (call.steps + 1) + step + 1] = token;
        if (present) present[token] = 1;
    }
}

// All rows, by all threads of a team together.
static void write_rows(const Decoder& decoder, const Call& call, Room& room) {
    std::vector<number> scores(call.length + call.steps + LANES), logits, odds;
    for (int64_t step = 0; step < call.steps; step++) {
        embed(decoder, call, step, room.x.data());
        through_the_stack(decoder.stack, call, step, room, scores.data());
        predict(decoder, call, step, room);
        if (call.drawings) draw_tokens(decoder, call, step, logits, odds);
    }
}

// Some of the rows of a call.
struct Part : Call {
    std::vector<number*> moved;
    Part(const Decoder& decoder, const Call& call, int64_t first, int64_t count) : Call(call) {
        const Stack& stack = decoder.stack;
        rows = count;
        tokens += first * (steps + 1);
        history += first * decoder.history;
        logits += first * decoder.head.outputs;
        if (drawings) drawings += first, uniforms += first * steps;
        if (present) present += first * decoder.head.outputs;
        for (int64_t i = 0; i < 2 * stack.n_layers; i++)
            moved.push_back(call.caches[i] + first * stack.n_kv_heads * capacity * stack.head_width);
        caches = moved.data();
        if (added) added += first * added_row;
        if (mask) mask += first * mask_row;
        if (bias) bias += first * bias_row;
        if (cosines) cosines += first * turn_row, sines += first * turn_row;
    }
};

extern "C" void clearhead_write(const Decoder* decoder, const Call* call) {
    if (!call->apart) {
        Room room(decoder->stack, call->rows);
#pragma omp parallel num_threads(call->threads)
        write_rows(*decoder, *call, room);
        return;
    }
    const int64_t share = (call->rows + call->threads - 1) / call->threads, group = std::min(ROWS, share);
#pragma omp parallel for schedule(dynamic) num_threads(call->threads)
    for (int64_t first = 0; first < call->rows; first += group) {
        const Part part(*decoder, *call, first, std::min(group, call->rows - first));
        Room room(decoder->stack, part.rows);
#pragma omp parallel num_threads(1)  // what is shared out below is shared out among one
        write_rows(*decoder, part, room);
    }
}
