#include "client_lib/llama/plugin/engine_version.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::llama {
namespace {

using ::testing::HasSubstr;

TEST(EngineVersion, InTheTestedRangeIsServed) {
  EXPECT_EQ(refuse_version(kOldestGgml), std::nullopt);
  EXPECT_EQ(refuse_version(kNewestGgml), std::nullopt);
  EXPECT_EQ(refuse_version(std::string(kNewestGgml) + "-dev"), std::nullopt);
}

TEST(EngineVersion, OutsideItIsRefusedWithBothNames) {
  for (const char* version : {"0.9.7", "0.17.9", "0.27.1", "0.28.0", "1.0.0"}) {
    const auto refusal = refuse_version(version);
    ASSERT_TRUE(refusal.has_value()) << version;
    EXPECT_THAT(*refusal, HasSubstr(version));
    EXPECT_THAT(*refusal, HasSubstr(kNewestGgml));
  }
}

TEST(EngineVersion, ThatIsNoneIsRefused) {
  for (const char* version : {"", "unknown", "0.25", "v0.25.1"}) {
    EXPECT_TRUE(refuse_version(version).has_value()) << version;
  }
}

}  // namespace
}  // namespace kvd::llama
