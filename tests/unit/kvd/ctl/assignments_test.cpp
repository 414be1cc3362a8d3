#include "kvd/ctl/assignments.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::ctl {
namespace {
using testing::HasSubstr;

TEST(MergePatch, NestsDottedKeysAndReadsValues) {
  const auto sut = merge_patch({"rotation.policy=fcfs", "rotation.alpha=2", "rotation.b_xfer=auto",
                                "placement.window.min=8"});
  ASSERT_TRUE(sut.ok());
  EXPECT_EQ(*sut, R"({"rotation":{"policy":"fcfs","alpha":2,"b_xfer":"auto"},)"
                  R"("placement":{"window":{"min":8}}})");
}

TEST(MergePatch, RootGoesAround) {
  EXPECT_EQ(*merge_patch({"default.tbt_s=0.05", "batch=null"}, "classes"),
            R"({"classes":{"default":{"tbt_s":0.05},"batch":null}})");
}

TEST(MergePatch, TakesWhatTheConfigurationsFileTakes) {
  EXPECT_EQ(
      *merge_patch({"default.tbt=50ms", "default.ttft_s=2s", "batch.tpot=200ms", "batch.gap=2s"},
                   "classes"),
      R"({"classes":{"default":{"tbt_s":0.05,"ttft_s":2.0},"batch":{"tpot_s":0.2,"gap_s":2.0}}})");
  EXPECT_EQ(*merge_patch({"default.hbm.maximum_bytes=1.5GiB"}, "domains"),
            R"({"domains":{"default":{"hbm":{"maximum_bytes":1610612736}}}})");
  EXPECT_EQ(*merge_patch({"rotation.b_xfer=4MiB", "rotation.policy=5furlongs"}),
            R"({"rotation":{"b_xfer":4194304,"policy":"5furlongs"}})");
}

TEST(MergePatch, ValuesMayHoldAnything) {
  EXPECT_EQ(*merge_patch({"a=b=c"}), R"({"a":"b=c"})");
  EXPECT_EQ(*merge_patch({"a="}), R"({"a":""})");
  EXPECT_EQ(*merge_patch({"a=NaN"}), R"({"a":"NaN"})");
}

TEST(MergePatch, MalformedOnesAreNamed) {
  for (const char* bad : {"", "alpha", "=2", ".=2", "a..b=1", ".a=1"}) {
    const auto sut = merge_patch({bad});
    ASSERT_FALSE(sut.ok()) << bad;
    EXPECT_EQ(sut.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(sut.error().message, HasSubstr("\"" + std::string(bad) + "\" is not KEY=VALUE"));
  }
}

TEST(MergePatch, ATimeAsTheFileCallsItNeedsAUnit) {
  for (const char* goal : {"default.tbt=50", "batch.ttft=0.5", "batch.gap=1e3", "a.tpot=0"}) {
    const auto sut = merge_patch({goal}, "classes");
    ASSERT_FALSE(sut.ok()) << goal;
    EXPECT_EQ(sut.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(sut.error().message, HasSubstr("has no unit: write " + std::string(goal) + "ms"));
  }
  EXPECT_THAT(merge_patch({"default.tbt=50"}, "classes").error().message,
              HasSubstr("default.tbt_s=50 for seconds"));
  EXPECT_EQ(*merge_patch({"batch.gap=null"}, "classes"), R"({"classes":{"batch":{"gap_s":null}}})");
}

TEST(MergePatch, AKeyIsValueOrParentAndGivenOnce) {
  for (const char* again : {"a=1", "a=null", "a.b=2"}) {
    EXPECT_THAT(merge_patch({"a=null", again}).error().message, HasSubstr("sets again"));
  }
  EXPECT_FALSE(merge_patch({"a.b=null", "a=1"}).ok());
  EXPECT_TRUE(merge_patch({"a.b=1", "a.bc=2", "ab=3"}).ok());
  EXPECT_FALSE(merge_patch({"a=1", "a.b=2"}).ok());
  EXPECT_FALSE(merge_patch({"a.b=2", "a=1"}).ok());
  EXPECT_THAT(merge_patch({"a=1", "a=2"}).error().message, HasSubstr("\"a=2\" sets again"));
}

}  // namespace
}  // namespace kvd::ctl
