#include "kernels/attention/workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvd::kernels {
namespace {

/// How often each item was worked on.
std::vector<int> counts_of(Workers& workers, std::size_t items, std::size_t grain) {
  std::vector<int> seen(items);
  workers.run(items, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) ++seen[i];
  });
  return seen;
}

TEST(Workers, CoverEveryItemOnceWhateverTheirNumber) {
  for (const std::uint32_t threads : {1U, 2U, 5U}) {
    Workers workers(threads);
    for (std::size_t items = 0; items < 40; ++items) {
      for (const std::size_t grain : {0U, 1U, 7U, 100U}) {
        EXPECT_THAT(counts_of(workers, items, grain), testing::Each(1))
            << threads << " threads, grain " << grain;
      }
    }
  }
}

}  // namespace
}  // namespace kvd::kernels
