#include "kernels/attention/workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvd::kernels {
namespace {

TEST(Workers, CoverEveryItemOnceWhateverTheirNumber) {
  for (const std::uint32_t threads : {1U, 2U, 5U}) {
    Workers workers(threads);
    for (std::size_t items = 0; items < 40; ++items) {
      for (const std::size_t grain : {0U, 1U, 7U, 100U}) {
        std::vector<int> seen(items);
        workers.run(items, grain, [&](std::size_t begin, std::size_t end) {
          for (std::size_t i = begin; i < end; ++i) ++seen[i];
        });
        EXPECT_THAT(seen, testing::Each(1)) << threads << " threads, grain " << grain;
      }
    }
  }
}

}  // namespace
}  // namespace kvd::kernels
