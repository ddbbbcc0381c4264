// Numbers, as many at once as a register holds: read, written, summed, bent, widened.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

using number = NUMBER;  // float; double where the laws hold it against the model's own call

typedef std::conditional_t<sizeof(number) == 4, int32_t, int64_t> Integer;  // as wide

// Bytes of a register. Wider vectors are correct too, but g++ moves every number of them through memory.
#if defined(__AVX512F__)
constexpr int64_t REGISTER = 64;
#elif defined(__AVX__)
constexpr int64_t REGISTER = 32;
#else
constexpr int64_t REGISTER = 16;
#endif
constexpr int64_t LANES = REGISTER / sizeof(number);  // numbers that are computed at once
constexpr int64_t BLOCK = 2 * LANES;            // outputs of a matrix that lie together

template <class Type, int64_t COUNT = LANES>
struct Vector {
    typedef Type type __attribute__((vector_size(sizeof(Type) * COUNT)));
};
typedef Vector<number>::type Lanes;

static inline Lanes read(const number* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

static inline void write(number* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }

template <class To, class From>
static inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Neighboring groups of WIDTH lanes, added: those of a and of b, in turn. With the widths 1, 2, 4, ... one after the
// other, as many registers as one has lanes become the register of their totals, in their order.
template <int64_t WIDTH, size_t... LANE>
static inline Lanes folded(Lanes a, Lanes b, std::index_sequence<LANE...>) {
    constexpr auto place = [](int64_t lane) {
        const int64_t group = lane / WIDTH;
        return group % 2 * LANES + group / 2 * 2 * WIDTH + lane % WIDTH;
    };
#ifdef __clang__
    return __builtin_shufflevector(a, b, place(LANE)...) + __builtin_shufflevector(a, b, place(LANE) + WIDTH...);
#else
    typedef Vector<Integer>::type Places;
    return __builtin_shuffle(a, b, Places{place(LANE)...}) + __builtin_shuffle(a, b, Places{place(LANE) + WIDTH...});
#endif
}

template <int64_t WIDTH = 1>
static inline Lanes totals(const Lanes* sums) {
    if constexpr (WIDTH == LANES)
        return *sums;
    else {
        Lanes fewer[LANES / 2 / WIDTH];
        for (int64_t i = 0; i < LANES / 2 / WIDTH; i++)
            fewer[i] = folded<WIDTH>(sums[2 * i], sums[2 * i + 1], std::make_index_sequence<LANES>());
        return totals<2 * WIDTH>(fewer);
    }
}

static inline number total(Lanes lanes) {
    Lanes all[LANES];
    for (auto& each : all) each = lanes;
    return totals(all)[0];
}

// e^x, by e^(n ln 2 + r) = 2^n (1 + r + r^2 / 2! + ...), |r| <= ln 2 / 2; rounded as the type's own numbers are.
static inline Lanes exponential(Lanes x) {
    constexpr bool SHORT = sizeof(number) == 4;
    constexpr number LEAST = SHORT ? -87 : -708, MOST = SHORT ? 88 : 709;
    constexpr number HIGH = number(0.693359375), LOW = number(-2.12194440054690583e-4);  // their sum is ln 2
    x = x < LEAST ? Lanes{} + LEAST : x;
    x = x > MOST ? Lanes{} + MOST : x;
    const Lanes scaled = x * number(1.4426950408889634074) + (x < 0 ? Lanes{} - number(0.5) : Lanes{} + number(0.5));
    const auto n = __builtin_convertvector(scaled, Vector<Integer>::type);  // towards zero: the nearest
    const Lanes whole = __builtin_convertvector(n, Lanes), r = (x - whole * HIGH) - whole * LOW;
    Lanes sum = Lanes{} + 1;
    for (int term = SHORT ? 7 : 14; term; term--) sum = sum * r * (number(1) / term) + 1;
    return sum * same_bits<Lanes>((n + (SHORT ? 127 : 1023)) << (SHORT ? 23 : 52));
}

static inline Lanes activated(Lanes x, int64_t activation) {  // as in packing.py
    if (activation == 0) return x > 0 ? x : Lanes{};                                  // relu
    if (activation == 1) return x > 0 ? x * x : Lanes{};                              // relu squared
    if (activation == 2) return x / (1 + exponential(-x));                            // silu
    if (activation == 3) {                                                            // gelu by tanh
        const Lanes inner = number(0.79788456080286535588) * (x + number(0.044715) * x * x * x);
        return x / (1 + exponential(-2 * inner));
    }
    for (int64_t i = 0; i < LANES; i++) x[i] *= number(0.5) * (1 + std::erf(x[i] * number(0.70710678118654752440)));
    return x;  // gelu
}

// Two registers of weights as numbers, from full ones and from bfloat16 (even and odd lanes of one register).
static inline void widen(const char* from, Lanes& first, Lanes& second, const number*) {
    first = read(reinterpret_cast<const number*>(from));
    second = read(reinterpret_cast<const number*>(from) + LANES);
}

static inline void widen(const char* from, Lanes& first, Lanes& second, const uint16_t*) {
    Vector<uint32_t>::type pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    typedef Vector<float>::type Floats;
    first = __builtin_convertvector(same_bits<Floats>(pairs << 16), Lanes);
    second = __builtin_convertvector(same_bits<Floats>(pairs & 0xffff0000u), Lanes);
}
