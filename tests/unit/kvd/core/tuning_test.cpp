#include "kvd/core/door/tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace kvd::core {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Tuning, DefaultsHaveNoFault) { EXPECT_THAT(Tuning{}.faults(), IsEmpty()); }

struct BadValue {
  const char* path;
  std::function<void(Tuning&)> spoil;
};

const std::vector<BadValue> kBadValues = {
    BadValue{"rotation.policy", [](Tuning& t) { t.rotation.policy = "magic"; }},
    BadValue{"rotation.alpha", [](Tuning& t) { t.rotation.alpha = kNan; }},
    BadValue{"rotation.alpha", [](Tuning& t) { t.rotation.alpha = -0.1; }},
    BadValue{"rotation.alpha", [](Tuning& t) { t.rotation.alpha = kInf; }},
    BadValue{"rotation.beta_b", [](Tuning& t) { t.rotation.beta_b = -kInf; }},
    BadValue{"rotation.beta_b", [](Tuning& t) { t.rotation.beta_b = kNan; }},
    BadValue{"rotation.beta_f", [](Tuning& t) { t.rotation.beta_f = 101; }},
    BadValue{"rotation.b_xfer", [](Tuning& t) { t.rotation.b_xfer = Bytes(0); }},
    BadValue{"rotation.b_xfer", [](Tuning& t) { t.rotation.b_xfer = Bytes(-5); }},
    BadValue{"rotation.pacing", [](Tuning& t) { t.rotation.pacing = "vllm"; }},
    BadValue{"slo.default.gap_s", [](Tuning& t) { t.slo["default"].gap = Nanoseconds(0); }},
    BadValue{"placement.policy", [](Tuning& t) { t.placement.policy = "orbitflow?"; }},
    BadValue{"placement.alpha", [](Tuning& t) { t.placement.alpha = kNan; }},
    BadValue{"placement.window.min", [](Tuning& t) { t.placement.window_min = 0; }},
    BadValue{"placement.window.max", [](Tuning& t) { t.placement.window_max = 31; }},
    BadValue{"admission.policy", [](Tuning& t) { t.admission.policy = ""; }},
    BadValue{"admission.alpha", [](Tuning& t) { t.admission.alpha = -1; }},
    BadValue{"admission.beta", [](Tuning& t) { t.admission.beta = kNan; }},
    BadValue{"load.policy", [](Tuning& t) { t.load.policy = "sometimes"; }},
    BadValue{"slo.default.ttft_s", [](Tuning& t) { t.slo["default"].ttft = Nanoseconds(0); }},
    BadValue{"slo.default.tbt_s", [](Tuning& t) { t.slo["default"].tbt = Nanoseconds(-1); }},
    BadValue{"slo.batch.tpot_s", [](Tuning& t) { t.slo["batch"].tpot = std::chrono::hours(25); }},
    BadValue{"slo.default",
             [](Tuning& t) {
               t.slo = {{"other", Slo{}}};
             }},
    BadValue{"slo", [](Tuning& t) { t.slo["a.b"] = Slo{}; }},
    BadValue{"slo", [](Tuning& t) { t.slo[""] = Slo{}; }}};

TEST(Tuning, EveryBadValueIsReportedOnceAndByPath) {
  for (std::size_t i = 0; i < kBadValues.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    Tuning sut;
    kBadValues[i].spoil(sut);
    EXPECT_THAT(sut.faults(), ElementsAre(StartsWith(std::string(kBadValues[i].path) + ": ")));
  }
}

TEST(Tuning, EdgesOfTheRangesAreAllowed) {
  Tuning sut;
  sut.rotation.alpha = 0;
  sut.rotation.beta_b = -100;
  sut.rotation.b_xfer = Bytes(1);
  sut.placement.window_min = sut.placement.window_max = 1;
  sut.slo["default"].tbt = Nanoseconds(1'000);
  EXPECT_THAT(sut.faults(), IsEmpty());
}

TEST(Tuning, AllFaultsComeAtOnce) {
  Tuning sut;
  sut.rotation.alpha = -1;
  sut.admission.beta = -1;
  sut.load.policy = "sometimes";
  EXPECT_EQ(sut.faults().size(), 3u);
}

TEST(Tuning, UnknownPolicyNamesTheAvailableOnes) {
  Tuning sut;
  sut.rotation.policy = "magic";
  EXPECT_THAT(sut.faults().at(0), AllOf(HasSubstr("magic"), HasSubstr("lvf"), HasSubstr("fcfs")));
}

TEST(Tuning, AtMostSixtyFourClasses) {
  Tuning sut;
  for (int i = 0; i < 64; ++i) sut.slo["class" + std::to_string(i)] = Slo{};
  EXPECT_THAT(sut.faults(), ElementsAre(HasSubstr("at most 64 classes")));
}

}  // namespace
}  // namespace kvd::core
