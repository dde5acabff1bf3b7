// What the shim's tests expect: what is not so is printed and counted.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

inline std::atomic<int> mistakes{0};

#define EXPECT(condition)                                                        \
  do {                                                                           \
    if (!(condition)) {                                                          \
      ++mistakes;                                                                \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);             \
    }                                                                            \
  } while (0)

#define EXPECT_TEXT(found, wanted)                                               \
  do {                                                                           \
    const std::string found_ = (found);                                          \
    if (found_ != (wanted)) {                                                    \
      ++mistakes;                                                                \
      printf("%s:%d: '%s' instead of '%s'\n", __FILE__, __LINE__, found_.c_str(), wanted); \
    }                                                                            \
  } while (0)
