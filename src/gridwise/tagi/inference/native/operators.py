"""The operators that a step may use, as C++ expressions.

`{0}`, `{1}` are the operands, cast to the type `T` of the result, except in comparisons and choices. NaN behaves as in
torch: it passes through clamps, minima and thresholds.
"""

from __future__ import annotations

ELEMENTWISE = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "std::abs({0})",
    "reciprocal": "T(1) / {0}",
    "sqrt": "std::sqrt({0})",
    "rsqrt": "T(1) / std::sqrt({0})",
    "exp": "std::exp({0})",
    "expm1": "std::expm1({0})",
    "log": "std::log({0})",
    "log1p": "std::log1p({0})",
    "tanh": "std::tanh({0})",
    "sigmoid": "T(1) / (T(1) + std::exp(-{0}))",
    "erf": "std::erf({0})",
    "erfc": "std::erfc({0})",
    "relu": "at_least({0}, T(0))",
    "clamp_min": "at_least({0}, {1})",
    "clamp_max": "at_most({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "maximum": "larger({0}, {1})",
    "threshold": "above({0}, {1}, {2})",
    "addcmul": "{0} + {1} * {2}",
    "_to_copy": "{0}",
    "copy": "{1}",
    "clone": "{0}",
    "sign": "T(({0} > 0) - ({0} < 0))",
}

COMPARISONS = {
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_not": "!{0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "logical_not": "!{0}",
    "isnan": "{0} != {0}",
}

PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
template <class T> static inline T at_least(T x, T low) { return x < low ? low : x; }
template <class T> static inline T at_most(T x, T high) { return x > high ? high : x; }
template <class T> static inline T above(T x, T limit, T other) { return x <= limit ? other : x; }
template <class T> static inline T smaller(T a, T b) { return a != a || a < b ? a : b; }
template <class T> static inline T larger(T a, T b) { return a != a || a > b ? a : b; }
"""

EPOCH = """\
extern "C" int64_t tagi_epoch(char* w, char** t, int64_t batches, int64_t rows, const int64_t* order, int64_t given,
                         char* const* whole, const int64_t* width, int64_t outputs, const int64_t* size) {
  for (int64_t b = 0; b < batches; ++b, order += rows) {
    for (int64_t k = 0; k < given; ++k)
      for (int64_t r = 0; r < (width[k] ? rows : 0); ++r)
        std::memcpy(t[k] + r * width[k], whole[k] + order[r] * width[k], width[k]);
    if (!tagi_step(w, t)) return b;
    for (int64_t k = 0; k < outputs; ++k) t[size[k]] += size[outputs + k];
  }
  return batches;
}
"""
"""Many steps: the rows `order` of the data `whole`, of `width` bytes each, are copied to where `step` reads a batch.

`size` has the places of the outputs among the tensors, then their bytes.
"""
