// Sizes that stand for others: products of a number and of the op's symbols.
#pragma once

#include "manifest.h"

namespace ortkit {

// A symbol whose size no input has told yet.
inline constexpr int64_t kUnknown = -1;

// The size, or kUnknown if a symbol is, or if it exceeds 63 bits: tensors without elements may have
// dims of any size. A factor of 0 decides, whatever the others are.
inline int64_t SizeOf(const OrtkitExtent& extent, const int64_t* symbols) {
  int64_t size = extent.factor;
  bool is_empty = size == 0;
  bool is_known = true;
  for (int32_t i = 0; i < extent.symbol_count; ++i) {
    const int64_t symbol = symbols[extent.symbols[i]];
    is_empty = is_empty || symbol == 0;
    is_known = is_known && symbol != kUnknown && !__builtin_mul_overflow(size, symbol, &size);
  }
  if (is_empty) return 0;
  return is_known ? size : kUnknown;
}

// Tells a symbol from a size it is a part of, if it is the only one that is not known yet and stands
// there once. A remainder is not looked at: whoever compares the size finds it. Returns whether all
// symbols of `extent` are known now.
inline bool Solve(const OrtkitExtent& extent, int64_t size, int64_t* symbols) {
  int64_t known = extent.factor;
  int32_t unknown = -1;
  for (int32_t i = 0; i < extent.symbol_count; ++i) {
    const int32_t symbol = extent.symbols[i];
    if (symbols[symbol] == kUnknown) {
      if (unknown >= 0) return false;
      unknown = symbol;
    } else if (__builtin_mul_overflow(known, symbols[symbol], &known)) {
      return false;
    }
  }
  if (unknown < 0) return true;
  if (known == 0) return false;
  symbols[unknown] = size / known;
  return true;
}

}  // namespace ortkit
