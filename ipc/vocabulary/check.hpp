#pragma once

#include <cstdio>
#include <cstdlib>

/// Prints the broken invariant and aborts. For bugs in kvd only: foreseeable failures (bad input, a
/// full pool, a dead peer) are Results, never checks.
#define KVD_CHECK(condition, message)                                                       \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      std::fprintf(stderr, "kvd: invariant broken at %s:%d: %s (%s)\n", __FILE__, __LINE__, \
                   message, #condition);                                                    \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
