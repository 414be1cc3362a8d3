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

TEST(MergePatch, AKeyIsValueOrParentAndGivenOnce) {
  EXPECT_FALSE(merge_patch({"a=1", "a.b=2"}).ok());
  EXPECT_FALSE(merge_patch({"a.b=2", "a=1"}).ok());
  EXPECT_FALSE(merge_patch({"a=1", "a=2"}).ok());
}

}  // namespace
}  // namespace kvd::ctl
