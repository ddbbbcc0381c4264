// From a row's logits to its next token, in the order of sampling.py: penalty, temperature, top-k, top-p, min-p, draw.

#pragma once

#include <functional>
#include <numeric>

#include "attention.h"

constexpr double ROUNDING = 1e-6;  // as in sampling.py
constexpr int64_t FEW = 256;       // tokens that mostly hold the probability that is asked for

// Exactly the k likeliest; of equally likely ones, those with the lowest ids.
static void keep_top_k(number* logits, int64_t V, int64_t k, std::vector<number>& sorted) {
    sorted.assign(logits, logits + V);
    std::nth_element(sorted.begin(), sorted.begin() + k - 1, sorted.end(), std::greater<number>());
    const number least = sorted[k - 1];
    int64_t room = k - std::count_if(logits, logits + V, [&](number logit) { return logit > least; });
    for (int64_t v = 0; v < V; v++)
        if (logits[v] < least || (logits[v] == least && room-- <= 0)) logits[v] = NONE;
}

// The fewest likeliest that hold probability p together.
static void keep_top_p(number* logits, int64_t V, double p, number* odds) {
    std::copy(logits, logits + V, odds);
    softmax(odds, V);
    const auto likelier = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    std::vector<int64_t> order(V);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t kept = std::min(FEW, V);; kept = std::min(8 * kept, V)) {  // mostly few hold p, and these are sorted
        if (kept < V) std::nth_element(order.begin(), order.begin() + kept, order.end(), likelier);
        std::sort(order.begin(), order.begin() + kept, likelier);
        double before = 0;  // what the likelier tokens hold
        int64_t place = 0;
        for (; place < kept && (!place || before < p - ROUNDING); place++) before += odds[order[place]];
        if (place == kept && kept < V) continue;
        for (; place < V; place++) logits[order[place]] = NONE;
        return;
    }
}

// The token at which the cumulative probability passes a number from [0, 1). `odds` (V,) has room in registers.
static int64_t draw(const number* logits, int64_t V, number uniform, number* odds) {
    std::copy(logits, logits + V, odds);
    softmax(odds, V);
    double all = 0, reached = 0;
    for (int64_t v = 0; v < V; v++) all += odds[v];
    for (int64_t v = 0; v < V; v++) {
        reached += odds[v];
        if (odds[v] > 0 && number(reached) > uniform * number(all)) return v;
    }
    return 0;
}

// `logits` (V,) are overwritten. Of a model that is broken, and gives no numbers, it is any token.
static int64_t next_token(const SamplingParams& how, number* logits, int64_t V, const uint8_t* present, number uniform,
                          std::vector<number>& odds) {
    if (std::any_of(logits, logits + V, [](number logit) { return std::isnan(logit); })) return 0;
    const number penalty = number(how.penalty);
    if (present)
        for (int64_t v = 0; v < V; v++)
            if (present[v]) logits[v] = logits[v] > 0 ? logits[v] / penalty : logits[v] * penalty;
    if (how.greedy) return std::max_element(logits, logits + V) - logits;  // the first of equals
    for (int64_t v = 0; v < V; v++) logits[v] /= number(how.temperature);
    if (how.top_k < V) keep_top_k(logits, V, how.top_k, odds);
    odds.resize(V + LANES);
    if (how.top_p < 1) keep_top_p(logits, V, how.top_p, odds.data());
    if (how.min_p > 0) {
        const number least = *std::max_element(logits, logits + V) + number(std::log(how.min_p) - ROUNDING);
        for (int64_t v = 0; v < V; v++) logits[v] = logits[v] < least ? NONE : logits[v];
    }
    return draw(logits, V, uniform, odds.data());
}
