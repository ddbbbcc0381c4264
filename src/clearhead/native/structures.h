// What Python fills in. structures.py reads the fields from this file, which is the only list of them; a line declares
// fields of one type, of 8 bytes each: int64_t, double, a pointer, or a structure from above.
//
// Shapes are as in the Python that this mirrors: B texts, P places of tokens that a call reads, D d_model, H heads, K head
// width, V vocabulary, T columns of a cache.

#pragma once

#include "numbers.h"

struct Matrix {
    const char* blocks;      // (N', K, BLOCK), N' being N / BLOCK rounded up; of int8 see bytes.h
    const number* scales;    // (N', BLOCK), or none
    const int32_t* offsets;  // (N', BLOCK), -128 times the sums of bytes, or none
    const number* bias;      // (N', BLOCK), or none
    int64_t outputs, inputs, bytes;  // N, K, and of a weight
};
struct Norm {  // none where it has no weight
    const number* weight;
    const number* bias;  // LayerNorm's, which subtracts the mean; an RMSNorm has none
    double epsilon;
};
struct Layer {
    Matrix heads;                   // to the queries, keys and values of all heads
    Matrix output, up, gate, down;  // no gate where it has no blocks
    Norm attention_norm, query_norm, key_norm, feedforward_norm;
    Matrix cross_query, cross_output;  // of cross-attention, if there is any
    Matrix cross_memory;               // from the memory to the keys and values of all heads
    Norm cross_norm, cross_query_norm, cross_key_norm;
};
struct StackWeights {
    const Layer* layers;
    int64_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff;
    double scale;
    int64_t activation, post, parallel;
    Norm norm;
};
struct Tables {  // of n-grams; none where they have no weight
    const number* weight;
    const int64_t* sizes;    // rows for the n-grams of 2, 3, ... tokens
    const int64_t* factors;  // of their polynomials
    int64_t longest;
};
struct Decoder {
    const number* embedding;  // (V, D)
    double embedding_scale;
    Tables embedding_ngrams, logit_ngrams;
    Norm embedding_norm;
    StackWeights stack;
    Matrix dense;  // what the head reads goes through it first, if there is one
    int64_t dense_activation;
    Norm dense_norm;
    double head_scale;
    Matrix head;
};
struct SamplingParams {  // how a text's tokens are sampled from logits
    int64_t greedy, top_k;  // as many as there are tokens, where all are kept
    double penalty, temperature, top_p, min_p;
};
struct Call {
    int64_t texts, n_tokens, steps;  // a step reads so many tokens of each text: one, where there are several steps
    int64_t logits_to_keep;          // after the last tokens that were read
    int64_t threads, apart;          // apart: each thread computes texts of its own
    int64_t* tokens;                      // (B, P + 1), ids + 1: those read, then those sampled; n-gram history is before;
                                          // or none, where there is neither history nor sampling
    int64_t token_stride, history;        // from one text to the next; how many tokens of history there are
    const int64_t* ids;                   // (B, n_tokens), what is read, as the caller has it
    number* logits;                       // (B, logits_to_keep, V)
    const SamplingParams* samplings;      // (B,), or none: then no token is sampled, and there is one step
    const number* uniforms;               // (B, S)
    uint8_t* present;                     // (B, V), or none: whether a token is in the text
    number* const* caches;                // keys and values of each layer in turn: (R, H_kv, capacity, K)
    int64_t cached, length, capacity;     // R, at least B; columns in use before the first place, and all
    const int64_t* slots;                 // (B,), or none: the row of the caches that each text has, instead of its own
    const int64_t* lengths;               // (B,), or none: columns in use before the first place, of each text
    const int64_t* counts;                // (B,), or none: how many of the places each text has; the others are padding
    int64_t both_ways;                    // whether tokens see those after them: an encoder's do
    number* const* memories;              // the memory's keys and values of each layer in turn: (B, H_kv, T_src, K)
    int64_t memory_length;                // T_src
    const uint8_t* memory_mask;           // (B, T_src), or none
    const number* added;                  // (B or 1, P, D), or none: what is added to embeddings
    int64_t added_stride, added_column;    // from one text to the next, and from one place
    int64_t window;            // columns that a token sees, the last one its own; 0: all
    const uint8_t* mask;       // (B or 1, P, length + P), or none: what it sees of these
    int64_t mask_stride;
    const number* bias;  // (B or 1, H, P, length + P), or none
    int64_t bias_stride;
    const number* cosines;  // (B or 1, P, R), or none
    const number* sines;
    int64_t rotary_half, rotary_stride;  // R / 2, and from one text to the next

    int64_t places() const { return n_tokens + steps - 1; }
};
struct BeamCall {  // of the sentences of a beam search, see continuations.h
    int64_t sentences, hypotheses, vocab_size, n_best, threads;  // S, b, V, n
    int64_t padding;                                             // a token that is no word, or -1
    const number* logits;                                        // (S, b, V)
    const number* before;                                        // (S, b), log-probabilities
    number* scores;                                              // (S, n), the greatest first
    int64_t* parents;                                            // (S, n), hypotheses
    int64_t* tokens;                                             // (S, n), what follows them
};
