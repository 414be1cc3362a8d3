#include "metrics/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvd::metrics {
namespace {

TEST(Catalogue, IsSortedWithoutDoubles) {
  const auto rows = catalogue();
  const auto not_less = [](const Metric& a, const Metric& b) { return a.name >= b.name; };
  const auto broken = std::adjacent_find(rows.begin(), rows.end(), not_less);
  EXPECT_TRUE(broken == rows.end()) << broken->name;
}

TEST(Catalogue, FindsEveryRowAndNothingElse) {
  for (const Metric& metric : catalogue()) EXPECT_EQ(find(metric.name), &metric);
  EXPECT_EQ(find(""), nullptr);
  EXPECT_EQ(find("kvd_nothing"), nullptr);
  EXPECT_EQ(find("zzz"), nullptr);
}

TEST(Catalogue, NamesFollowTheRules) {
  for (const Metric& metric : catalogue()) {
    SCOPED_TRACE(metric.name);
    EXPECT_TRUE(metric.name.starts_with("kvd_"));
    EXPECT_EQ(metric.name.ends_with("_total"), metric.type == MetricType::kCounter);
    EXPECT_EQ(metric.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos);
    EXPECT_NE(metric.name.find(metric.unit), std::string_view::npos);
    EXPECT_FALSE(metric.help.empty());
    EXPECT_TRUE(metric.help.ends_with('.'));
    EXPECT_FALSE(metric.panel.empty());
  }
}

TEST(Catalogue, NoLabelNamesARequest) {
  for (const Metric& metric : catalogue()) {
    for (const Label& label : metric.labels()) EXPECT_NE(label.name, "request") << metric.name;
  }
}

}  // namespace
}  // namespace kvd::metrics
