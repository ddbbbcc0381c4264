// Which tokens of a call are read at once, and where each of them stands.

#pragma once

#include "structures.h"

// Where a token stands: in which text, and where in what the call reads of it.
struct Place {
    int64_t text, column;

    bool is_padding(const Call& call) const { return call.counts && column >= call.counts[text]; }
    int64_t row(const Call& call) const { return call.slots ? call.slots[text] : text; }  // of the caches
    int64_t cached(const Call& call) const { return (call.lengths ? call.lengths[text] : call.length) + column; }  // its column there
};

// Some tokens of each text, read at once: a row of numbers for each, those of a text one below the other.
struct Step {
    int64_t texts, count, first;  // how many of each text, and where the first of them is

    Step(const Call& call, int64_t step) : texts(call.texts), count(call.n_tokens), first(step) {}
    int64_t rows() const { return texts * count; }
    Place of(int64_t row) const { return {row / count, first + row % count}; }
};
