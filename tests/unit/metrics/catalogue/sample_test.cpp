#include "metrics/catalogue/sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::metrics {
namespace {
using testing::IsEmpty;
using testing::SizeIs;

using Labels = std::vector<std::string>;

const Family& of(const std::vector<Family>& all, std::string_view name) {
  for (const Family& family : all) {
    if (family.metric->name == name) return family;
  }
  static const Family kNone;
  return kNone;
}

double value_of(const Family& family, const Labels& labels) {
  for (const auto& series : family.series) {
    if (series.labels == labels) return series.value;
  }
  return -1;
}

TEST(Families, EveryRowIsThereWithoutSamples) {
  const auto sut = families({});
  ASSERT_THAT(sut, SizeIs(catalogue().size()));
  EXPECT_THAT(of(sut, "kvd_steps_total").series, SizeIs(1));
  EXPECT_EQ(value_of(of(sut, "kvd_steps_total"), {}), 0);
  EXPECT_THAT(of(sut, "kvd_slo_intervals_total").series, SizeIs(4));
  EXPECT_EQ(value_of(of(sut, "kvd_slo_intervals_total"), {"tbt", "met"}), 0);
}

TEST(Families, OpenLabelsHaveNoSeriesWithoutSamples) {
  EXPECT_THAT(of(families({}), "kvd_engine_up").series, IsEmpty());
  EXPECT_THAT(of(families({}), "kvd_engine_bytes").series, IsEmpty());
}

TEST(Families, SamplesReplaceZerosAndLeaveTheOthers) {
  const auto sut = families({{"kvd_copies_total", {"d2h"}, 7}});
  EXPECT_THAT(of(sut, "kvd_copies_total").series, SizeIs(2));
  EXPECT_EQ(value_of(of(sut, "kvd_copies_total"), {"d2h"}), 7);
  EXPECT_EQ(value_of(of(sut, "kvd_copies_total"), {"h2d"}), 0);
}

TEST(Families, OpenLabelsTakeAnyValue) {
  const auto sut =
      families({{"kvd_engine_up", {"b", "red"}, 1}, {"kvd_engine_up", {"a", "red"}, 0}});
  EXPECT_EQ(value_of(of(sut, "kvd_engine_up"), {"b", "red"}), 1);
  EXPECT_EQ(value_of(of(sut, "kvd_engine_up"), {"a", "red"}), 0);
}

TEST(FamiliesDeathTest, WrongSamplesAreBugs) {
  EXPECT_DEATH((void)families({{"kvd_nothing", {}, 1}}), "not in the catalogue");
  EXPECT_DEATH((void)families({{"kvd_copies_total", {}, 1}}), "other labels");
  EXPECT_DEATH((void)families({{"kvd_copies_total", {"up"}, 1}}), "does not know");
  EXPECT_DEATH((void)families({{"kvd_steps_total", {}, 1}, {"kvd_steps_total", {}, 2}}),
               "two samples");
}

}  // namespace
}  // namespace kvd::metrics
