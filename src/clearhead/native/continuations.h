// The likeliest ways to go on with the sentences of a beam search, of the logits that follow its hypotheses.

#pragma once

#include "checks.h"

constexpr int64_t CHUNK = 8 * LANES;  // logits whose greatest is found at once

// The greatest of (N,); one that is infinite or none leaves no number in `broken`.
static number greatest(const number* numbers, int64_t N, Lanes& broken) {
    Lanes most = Lanes{} + NONE;
    int64_t i = 0;
    for (; i + LANES <= N; i += LANES) {
        const Lanes some = read(numbers + i);
        most = some > most ? some : most;
        broken += some * 0;
    }
    for (; i < N; i++) {
        most[0] = std::max(number(most[0]), numbers[i]);
        broken[0] += numbers[i] * 0;
    }
    number top = most[0];
    for (int64_t lane = 1; lane < LANES; lane++) top = std::max(top, number(most[lane]));
    return top;
}

// log(sum(e^x)) of (V,); no number where one of them is infinite or none. `tops` are the greatest of each chunk.
static number log_total(const number* logits, int64_t V, number* tops) {
    number most = NONE;
    Lanes broken = {};
    for (int64_t start = 0; start < V; start += CHUNK) {
        const number top = tops[start / CHUNK] = greatest(logits + start, std::min(CHUNK, V - start), broken);
        most = std::max(most, top);
    }
    Lanes sums = {}, rest = Lanes{} + NONE;
    for (int64_t v = 0; v + LANES <= V; v += LANES) sums += exponential(read(logits + v) - most);
    const int64_t left = V % LANES;
    std::memcpy(&rest, logits + V - left, left * sizeof(number));
    rest = exponential(rest - most);
    for (int64_t i = 0; i < left; i++) sums[i] += rest[i];
    return most + std::log(total(sums)) + total(broken);
}

// One sentence at a time; whether its logits are finite. Chunks whose maximum cannot reach the n best are skipped.
static bool continue_one(const BeamCall& call, int64_t sentence, std::vector<number>& tops) {
    const int64_t V = call.vocab_size, n = call.n_best;
    number* scores = call.scores + sentence * n;
    int64_t *parents = call.parents + sentence * n, *tokens = call.tokens + sentence * n;
    std::fill(scores, scores + n, NONE);
    std::fill(parents, parents + n, 0);
    std::fill(tokens, tokens + n, std::max<int64_t>(call.padding, 0));
    bool is_finite = true;
    for (int64_t hypothesis = 0; hypothesis < call.hypotheses; hypothesis++) {
        const int64_t row = sentence * call.hypotheses + hypothesis;
        const number *logits = call.logits + row * V;
        const number before = call.before[row], all = log_total(logits, V, tops.data());
        is_finite &= std::isfinite(all);
        for (int64_t start = 0; start < V; start += CHUNK) {
            if (!(tops[start / CHUNK] - all + before > scores[n - 1])) continue;
            for (int64_t v = start; v < std::min(start + CHUNK, V); v++) {
                const number score = logits[v] - all + before;
                if (!(score > scores[n - 1]) || v == call.padding) continue;
                int64_t place = n - 1;
                for (; place > 0 && scores[place - 1] < score; place--) {
                    scores[place] = scores[place - 1];
                    parents[place] = parents[place - 1];
                    tokens[place] = tokens[place - 1];
                }
                scores[place] = score;
                parents[place] = hypothesis;
                tokens[place] = v;
            }
        }
    }
    return is_finite;
}

extern "C" int64_t clearhead_continue(const BeamCall* call) {
    if (call->sentences < 0 || call->hypotheses < 1 || call->vocab_size < 1 || call->n_best < 1) return SHAPE;
    if (call->threads < 1 || call->threads > MOST_THREADS) return SHAPE;
    bool is_finite = true;
#pragma omp parallel num_threads(call->threads) reduction(&& : is_finite)
    {
        std::vector<number> tops((call->vocab_size + CHUNK - 1) / CHUNK);
#pragma omp for schedule(static)
        for (int64_t sentence = 0; sentence < call->sentences; sentence++) is_finite &= continue_one(*call, sentence, tops);
    }
    return is_finite ? FINE : NOT_FINITE;
}
