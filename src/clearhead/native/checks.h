// Whatever a caller can choose is looked at before any of it is an index.

#pragma once

#include <vector>

#include "attention.h"

enum Refusal : int64_t { FINE, SHAPE, TOKEN, NOT_FINITE };  // as in boundary.py

constexpr int64_t MOST_THREADS = 4096;

// Whether the numbers of a call fit together; they are so bounded that none of their sums overflows.
static bool fits(const Decoder& decoder, const Call& call) {
    constexpr int64_t MOST = int64_t(1) << 40;
    for (int64_t number : {call.texts, call.n_tokens - 1, call.steps - 1, call.logits_to_keep, call.threads - 1, call.history,
                           call.token_stride, call.cached, call.length, call.capacity, call.memory_length, call.rotary_half, call.window})
        if (number < 0 || number > MOST) return false;
    const int64_t longest = std::max(decoder.embedding_ngrams.longest, decoder.logit_ngrams.longest);
    return (call.n_tokens == 1 || call.steps == 1) && call.logits_to_keep <= call.n_tokens && call.threads <= MOST_THREADS &&
           call.history >= longest - 1 && call.token_stride >= call.history + call.places() + 1 &&
           call.length + call.places() <= call.capacity && 2 * call.rotary_half <= decoder.stack.head_dim &&
           (!call.samplings || call.logits_to_keep == 1) && (call.samplings || call.steps == 1) &&
           (!decoder.stack.layers->cross_query.blocks || call.memories) && !(call.apart && call.memories);
}

// Whether each text has a row of the caches, and room in it for what is read.
static bool has_room(const Call& call) {
    const int64_t T = call.length + call.places();
    for (int64_t text = 0; text < call.texts; text++) {
        const int64_t row = call.slots ? call.slots[text] : text, length = call.lengths ? call.lengths[text] : call.length;
        const int64_t count = call.counts ? call.counts[text] : call.places();
        if (row < 0 || row >= call.cached || length < 0 || count < 0 || count > call.places()) return false;
        if (length > T - count) return false;
    }
    return true;
}

// Whether what is read is in the vocabulary, padding as well, and so is what tables see before it.
static bool known(const Decoder& decoder, const Call& call) {
    const int64_t V = decoder.head.outputs;
    for (int64_t i = 0; i < call.texts * call.n_tokens; i++)
        if (call.ids[i] < 0 || call.ids[i] >= V) return false;
    for (int64_t text = 0; text < call.texts; text++)
        for (int64_t i = -call.history; i < call.n_tokens; i++) {
            const int64_t token = call.tokens[text * call.token_stride + i];
            if (token < 0 || token > V) return false;
        }
    return true;
}

// What is wrong with a call; its `tokens` are written down on the way, where it has none.
static int64_t checked(const Decoder& decoder, Call& call, std::vector<int64_t>& tokens) {
    if (!call.tokens) call.token_stride = call.n_tokens + 1;
    if (!fits(decoder, call) || !has_room(call)) return SHAPE;
    if (!call.tokens) {
        if (call.history || call.samplings) return SHAPE;
        tokens.resize(call.texts * call.token_stride);
        for (int64_t i = 0; i < call.texts * call.n_tokens; i++)
            tokens[i / call.n_tokens * call.token_stride + i % call.n_tokens] = int64_t(uint64_t(call.ids[i]) + 1);
        call.tokens = tokens.data();
    }
    for (int64_t text = 0; call.samplings && text < call.texts; text++)
        if (call.samplings[text].top_k < 1 || call.samplings[text].top_k > decoder.head.outputs) return SHAPE;
    return known(decoder, call) ? FINE : TOKEN;
}
