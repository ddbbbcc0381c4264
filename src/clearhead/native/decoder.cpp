// A decoder writes: tokens of some texts are read, and those that follow are drawn from the logits.

#include "checks.h"
#include "continuations.h"
#include "sampling.h"
#include "stack.h"

constexpr int64_t PRIME = 2147483647;  // as in ngram_tables.py

// x (D,) += what the tables hold for a token and those before it, as ids + 1, of which the last is pointed to.
static void add_ngrams(const Tables& tables, const int64_t* last, int64_t D, number* x) {
    if (!tables.weight) return;
    int64_t start = 0;
    for (int64_t n = 2; n <= tables.longest; n++) {
        const int64_t size = tables.sizes[n - 2], factor = tables.factors[n - 2];
        int64_t row = last[1 - n];
        for (int64_t place = n - 2; place >= 0; place--) row = (row * factor + last[-place]) % PRIME;
        const number* found = tables.weight + (row % size + start) * D;
        for (int64_t i = 0; i < D; i++) x[i] += found[i];
        start += size;
    }
}

static int64_t* token_at(const Call& call, Place at) { return call.tokens + at.text * call.token_stride + at.column; }

static void embed(const Decoder& decoder, const Call& call, const Step& step, number* x) {
    const int64_t D = decoder.stack.d_model;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < step.rows(); row++) {
        const Place at = step.of(row);
        const int64_t* token = token_at(call, at);
        const number* embedding = decoder.embedding + std::max<int64_t>(*token - 1, 0) * D;  // padding is anything
        number* own = x + row * D;
        for (int64_t i = 0; i < D; i++) own[i] = embedding[i] * number(decoder.embedding_scale);
        add_ngrams(decoder.embedding_ngrams, token, D, own);
        if (call.added) {
            const number* added = call.added + at.text * call.added_stride + at.column * call.added_column;
            for (int64_t i = 0; i < D; i++) own[i] += added[i];
        }
        if (decoder.embedding_norm.weight) normalize_one(decoder.embedding_norm, own, own, D);
    }
}

// Logits from what the stack gave for the last tokens of each text.
static void predict(const Decoder& decoder, const Call& call, const Step& step, Room& room) {
    const int64_t D = decoder.stack.d_model, rows = call.texts * call.logits_to_keep;
    number *x = room.x.data(), *read = room.normed.data();
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = i / call.logits_to_keep * step.count + step.count - call.logits_to_keep + i % call.logits_to_keep;
        number* own = read + i * D;
        std::copy(x + row * D, x + (row + 1) * D, own);
        add_ngrams(decoder.logit_ngrams, token_at(call, step.of(row)), D, own);
    }
    if (decoder.dense.blocks) {
        const auto bend = [&](Lanes products, Lanes) { return activated(products, decoder.dense_activation); };
        linear(decoder.dense, read, rows, x, room.digits, bend);
        normalize(decoder.dense_norm, x, read, rows, D);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * D; i++) read[i] *= number(decoder.head_scale);
    linear(decoder.head, read, rows, call.logits, room.digits, STORE);
}

static void draw_tokens(const Decoder& decoder, const Call& call, const Step& step, std::vector<number>& logits,
                        std::vector<number>& odds) {
    const int64_t V = decoder.head.outputs;
#pragma omp for schedule(static)
    for (int64_t text = 0; text < call.texts; text++) {
        uint8_t* present = call.present ? call.present + text * V : nullptr;
        logits.assign(call.logits + text * V, call.logits + (text + 1) * V);
        const number uniform = call.uniforms[text * call.steps + step.first];
        const int64_t token = next_token(call.samplings[text], logits.data(), V, present, uniform, odds);
        token_at(call, {text, step.first + 1})[0] = token + 1;
        if (present) present[token] = 1;
    }
}

// All texts, by all threads of a team together.
static void write_texts(const Decoder& decoder, const Call& call, Room& room) {
    const int64_t columns = std::max(call.length + call.places(), call.memory_length);
    std::vector<number> scores(columns + LANES), logits, odds;
    for (int64_t i = 0; i < call.steps; i++) {
        const Step step(call, i);
        embed(decoder, call, step, room.x.data());
        run_stack(decoder.stack, call, step, room, scores.data());
        predict(decoder, call, step, room);
        if (call.samplings) draw_tokens(decoder, call, step, logits, odds);
    }
}

// Some of the texts of a call; none of a beam search, whose sentences all threads compute together.
struct Part : Call {
    std::vector<number*> moved;
    Part(const Decoder& decoder, const Call& call, int64_t first, int64_t count) : Call(call) {
        const StackWeights& stack = decoder.stack;
        texts = count;
        tokens += first * token_stride;
        logits += first * logits_to_keep * decoder.head.outputs;
        if (samplings) samplings += first, uniforms += first * steps;
        if (present) present += first * decoder.head.outputs;
        for (int64_t i = 0; i < 2 * stack.n_layers; i++)
            moved.push_back(call.caches[i] + (slots ? 0 : first * stack.n_kv_heads * capacity * stack.head_dim));
        caches = moved.data();
        if (slots) slots += first;
        if (lengths) lengths += first;
        if (counts) counts += first;
        if (added) added += first * added_stride;
        if (bias) bias += first * bias_stride;
        if (mask) mask += first * mask_stride;
        if (cosines) cosines += first * rotary_stride, sines += first * rotary_stride;
    }
};

// FINE, or what is wrong with the call; then nothing has been read of it or written.
extern "C" int64_t clearhead_write(const Decoder* decoder, const Call* input) {
    Call call = *input;
    std::vector<int64_t> tokens;
    if (const int64_t refusal = checked(*decoder, call, tokens)) return refusal;
    if (!call.apart) {
        Room room(decoder->stack, call.texts * call.n_tokens);
#pragma omp parallel num_threads(call.threads)
        write_texts(*decoder, call, room);
        return FINE;
    }
    const int64_t share = (call.texts + call.threads - 1) / call.threads, group = std::min(ROWS, share);
#pragma omp parallel for schedule(dynamic) num_threads(call.threads)
    for (int64_t first = 0; first < call.texts; first += group) {
        const Part part(*decoder, call, first, std::min(group, call.texts - first));
        Room room(decoder->stack, part.texts * part.n_tokens);
#pragma omp parallel num_threads(1)  // a team of one, so the loops inside run serially
        write_texts(*decoder, part, room);
    }
    return FINE;
}

// Sources go through the encoder; their states (B, T_src, D), and keys and values for each layer of the decoder, are
// written. FINE, or what is wrong with the call, as above.
extern "C" int64_t clearhead_encode(const Decoder* encoder, const Decoder* decoder, const Call* input, number* states) {
    Call call = *input;
    std::vector<int64_t> tokens;
    if (!call.both_ways || !call.memories) return SHAPE;
    if (const int64_t refusal = checked(*encoder, call, tokens)) return refusal;
    const StackWeights &from = encoder->stack, &to = decoder->stack;
    Room room(from, call.texts * call.n_tokens);
    std::vector<number> projected(call.texts * call.n_tokens * 2 * to.n_kv_heads * to.head_dim);
#pragma omp parallel num_threads(call.threads)
    {
        std::vector<number> scores(call.n_tokens + LANES);
        const Step step(call, 0);
        embed(*encoder, call, step, room.x.data());
        run_stack(from, call, step, room, scores.data());
        for (int64_t l = 0; l < to.n_layers; l++)
            project_memory(to, to.layers[l], call, room, projected.data(), call.memories + 2 * l);
    }
    std::copy(room.x.begin(), room.x.end(), states);
    return FINE;
}

// What structures.py holds against its own: LAYOUT is a digest of structures.h, which the command line gives.
extern "C" const int64_t clearhead_layout[] = {
    LAYOUT,        9,
    sizeof(Matrix), sizeof(Norm),    sizeof(Layer), sizeof(StackWeights),        sizeof(Tables),
    sizeof(Decoder), sizeof(SamplingParams), sizeof(Call),  sizeof(BeamCall)};

// In what blocks structures.py packs matrices.
extern "C" const int64_t clearhead_register = REGISTER;
