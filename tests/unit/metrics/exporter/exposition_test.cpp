#include "metrics/exporter/exposition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "metrics/catalogue/catalogue.hpp"

namespace kvd::metrics {
namespace {
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Exposition, HasFamiliesWithHelpTypeAndValues) {
  const std::string sut = exposition(
      {{"kvd_copy_bytes_total", {"h2d"}, 4096}, {"kvd_engine_up", {"llama \"1\"", "red"}, 1}});
  EXPECT_THAT(sut, AllOf(HasSubstr("# TYPE kvd_copy_bytes_total counter"),
                         HasSubstr("# HELP kvd_copy_bytes_total Bytes moved"),
                         HasSubstr("kvd_copy_bytes_total{direction=\"h2d\"} 4096\n"),
                         HasSubstr("kvd_copy_bytes_total{direction=\"d2h\"} 0\n")));
  EXPECT_THAT(sut, HasSubstr("kvd_engine_up{engine=\"llama \\\"1\\\"\",domain=\"red\"} 1\n"));
  for (const Metric& metric : catalogue()) {
    EXPECT_THAT(sut, HasSubstr("# TYPE " + std::string(metric.name) + " "));
  }
}

TEST(Exposition, SeriesEndWithWhatTheySpeakOf) {
  EXPECT_THAT(exposition({{"kvd_engine_up", {"gone", "red"}, 1}}), HasSubstr("engine=\"gone\""));
  EXPECT_THAT(exposition({}),
              AllOf(HasSubstr("# TYPE kvd_engine_up gauge"), Not(HasSubstr("engine=\"gone\""))));
}

TEST(Exposition, AHistogramIsCumulativeAndEndsInInfinity) {
  const std::string sut =
      exposition({{"kvd_vlt_seconds", {}, 12.5, {3, 0, 0, 0, 2, 0, 0, 0, 0, 1}}});
  EXPECT_THAT(sut,
              AllOf(HasSubstr("# TYPE kvd_vlt_seconds histogram"),
                    HasSubstr("kvd_vlt_seconds_bucket{le=\"0\"} 3\n"),
                    HasSubstr("kvd_vlt_seconds_bucket{le=\"0.5\"} 5\n"),
                    HasSubstr("kvd_vlt_seconds_bucket{le=\"+Inf\"} 6\n"),
                    HasSubstr("kvd_vlt_seconds_sum 12.5\n"), HasSubstr("kvd_vlt_seconds_count 6\n"),
                    HasSubstr("kvd_deposit_tokens_count 0\n")));
}

}  // namespace
}  // namespace kvd::metrics
