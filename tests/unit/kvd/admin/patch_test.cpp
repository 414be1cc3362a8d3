#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/admin/documents.hpp"

namespace kvd::admin {
namespace {
using core::Tuning;
using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

/// A change as kvd-admin reads it and kvd makes it.
std::optional<Refusal> patch(link::Part part, std::string_view text, Tuning& tuning) {
  auto read = read_patch(part, text);
  if (auto* refusal = std::get_if<Refusal>(&read)) return *refusal;
  link::Change change;
  change.part = part;
  auto changed = link::changed(tuning, change, std::get<std::vector<link::Assignment>>(read));
  if (!changed.ok()) return refusal_of(changed.error());
  tuning = *std::move(changed);
  return std::nullopt;
}
std::optional<Refusal> patch_policy(std::string_view text, Tuning& tuning) {
  return patch(link::Part::kPolicy, text, tuning);
}
std::optional<Refusal> patch_slo(std::string_view text, Tuning& tuning) {
  return patch(link::Part::kSlo, text, tuning);
}

Refusal policy_refusal(std::string_view text) {
  Tuning tuning;
  const auto refusal = patch_policy(text, tuning);
  EXPECT_EQ(policy_document(tuning), policy_document(Tuning{})) << "changed by " << text;
  return refusal.value_or(Refusal{ErrorCode::kOk, "", "accepted"});
}

Refusal slo_refusal(std::string_view text) {
  Tuning tuning;
  const auto refusal = patch_slo(text, tuning);
  EXPECT_EQ(slo_document(tuning), slo_document(Tuning{})) << "changed by " << text;
  return refusal.value_or(Refusal{ErrorCode::kOk, "", "accepted"});
}

// What the link cuts off would otherwise be another name, which may be a known one.
TEST(PatchPolicy, ANameIsTakenWholeOrNotAtAll) {
  for (const char* name : {"lvf\\u0000", "lvf\\u0000x", "lvf\\n", "\\u007f"}) {
    const Refusal refusal =
        policy_refusal(R"({"rotation": {"policy": ")" + std::string(name) + R"("}})");
    EXPECT_EQ(refusal.path, "/rotation/policy") << name;
    EXPECT_THAT(refusal.message, HasSubstr("printable")) << name;
  }
  EXPECT_EQ(policy_refusal(R"({"load": {"policy": ")" + std::string(64, 'x') + R"("}})").path,
            "/load/policy");
}

TEST(PatchPolicy, ChangesWhatItNamesAndNothingElse) {
  Tuning sut;
  sut.admission.beta = 7;
  ASSERT_FALSE(patch_policy(R"({"rotation": {"policy": "fcfs", "alpha": 2, "b_xfer": 4096,
                                             "eager": false, "overload": "ttft",
                                             "pacing": "client"},
                                "placement": {"policy": "orbitflow"}})",
                            sut));
  EXPECT_EQ(sut.rotation.policy, "fcfs");
  EXPECT_EQ(sut.rotation.alpha, 2);
  EXPECT_EQ(sut.rotation.b_xfer, Bytes(4096));
  EXPECT_FALSE(sut.rotation.eager);
  EXPECT_EQ(sut.rotation.overload, "ttft");
  EXPECT_EQ(sut.rotation.pacing, "client");
  EXPECT_EQ(sut.placement.policy, "orbitflow");
  EXPECT_EQ(sut.rotation.beta_f, 0.5);
  EXPECT_EQ(sut.admission.beta, 7);
}

TEST(PatchPolicy, AutoLiftsTheTransferBudget) {
  Tuning sut;
  sut.rotation.b_xfer = kMiB;
  ASSERT_FALSE(patch_policy(R"({"rotation": {"b_xfer": "auto"}})", sut));
  EXPECT_EQ(sut.rotation.b_xfer, std::nullopt);
}

TEST(PatchPolicy, ItsOwnDocumentIsAPatchThatChangesNothing) {
  Tuning sut;
  sut.rotation.beta_b = -0.25;
  const std::string document = policy_document(sut);
  ASSERT_FALSE(patch_policy(document, sut));
  EXPECT_EQ(policy_document(sut), document);
  ASSERT_FALSE(patch_policy("{}", sut));
  EXPECT_EQ(policy_document(sut), document);
}

struct BadPatch {
  const char* patch;
  const char* path;
  const char* message;
};

TEST(PatchPolicy, RefusesWithThePathOfTheKey) {
  const BadPatch rows[] = {
      {"", "", "not JSON"},
      {"{\"rotation\":", "", "not JSON"},
      {R"({"rotation": {"alpha": NaN}})", "", "NaN"},
      {R"({"rotation": {"alpha": 1e999}})", "", "beyond a double"},
      {"3", "", "must be an object with keys rotation, placement, admission, load"},
      {"null", "", "must be an object"},
      {R"({"rotaton": {}})", "/rotaton", "known are rotation, placement"},
      {R"({"a/b~c": 1})", "/a~1b~0c", "no such key"},
      {R"({"rotation": 3})", "/rotation", "must be an object"},
      {R"({"rotation": null})", "/rotation", "give a value"},
      {R"({"rotation": {"gamma": 1}})", "/rotation/gamma", "known are policy, alpha"},
      {R"({"rotation": {"alpha": "2"}})", "/rotation/alpha", "must be a number"},
      {R"({"rotation": {"alpha": null}})", "/rotation/alpha", "give a value"},
      {R"({"rotation": {"alpha": true}})", "/rotation/alpha", "must be a number"},
      {R"({"rotation": {"alpha": -1}})", "/rotation/alpha", "from 0 to 1e+06, is -1"},
      {R"({"rotation": {"policy": 1}})", "/rotation/policy", "must be a string"},
      {R"({"rotation": {"policy": "sjf_oracle"}})", "/rotation/policy", "available: unified lvf"},
      {R"({"placement": {"policy": "layerkv"}})", "/placement/policy", "available: none orbitflow"},
      {R"({"load": {"policy": "sometimes"}})", "/load/policy", "measured_crossover always never"},
      {R"({"rotation": {"b_xfer": "much"}})", "/rotation/b_xfer", "\"auto\" or a whole number"},
      {R"({"rotation": {"eager": 1}})", "/rotation/eager", "true or false"},
      {R"({"rotation": {"overload": "both"}})", "/rotation/overload", "ttft or goodput"},
      {R"({"rotation": {"b_xfer": 0}})", "/rotation/b_xfer", "from 1 byte"},
      {R"({"rotation": {"b_xfer": 1e300}})", "/rotation/b_xfer", "whole number of bytes"},
      {R"({"rotation": {"alpha": 5}, "load": {"x": 1}})", "/load/x", "no such key"},
  };
  for (const BadPatch& row : rows) {
    SCOPED_TRACE(row.patch);
    const Refusal sut = policy_refusal(row.patch);
    EXPECT_EQ(sut.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(sut.path, row.path);
    EXPECT_THAT(sut.message, HasSubstr(row.message));
  }
}

TEST(PatchPolicy, DeepNestingIsRefusedWithoutHarm) {
  std::string deep;
  for (int i = 0; i < 12'000; ++i) deep += "{\"a\":";
  EXPECT_THAT(policy_refusal(deep).message, HasSubstr("not JSON"));
  deep += "1" + std::string(12'000, '}');
  EXPECT_EQ(policy_refusal(deep).path, "/a");
  EXPECT_THAT(policy_refusal(std::string(60'000, '[')).message, HasSubstr("not JSON"));
}

TEST(PatchSlo, ChangesAddsAndRemovesClasses) {
  Tuning sut;
  ASSERT_FALSE(
      patch_slo(R"({"classes": {"default": {"tbt_s": 0.05}, "batch": {"ttft_s": 60}}})", sut));
  EXPECT_EQ(sut.slo.at("default").tbt, 50ms);
  EXPECT_EQ(sut.slo.at("default").ttft, 5s);
  EXPECT_EQ(sut.slo.at("batch").ttft, 60s);
  EXPECT_EQ(sut.slo.at("batch").tpot, 200ms);
  ASSERT_FALSE(patch_slo(R"({"classes": {"batch": null, "never_there": null}})", sut));
  EXPECT_FALSE(sut.slo.contains("batch"));
  EXPECT_EQ(sut.slo.at("default").longest_gap(), 1s);
  ASSERT_FALSE(patch_slo(R"({"classes": {"default": {"gap_s": 0.4}}})", sut));
  EXPECT_EQ(sut.slo.at("default").longest_gap(), 400ms);
  ASSERT_FALSE(patch_slo(R"({"classes": {"default": {"gap_s": "auto", "tbt_s": 0.3}}})", sut));
  EXPECT_EQ(sut.slo.at("default").longest_gap(), 3s);
}

TEST(PatchSlo, RefusesWithThePathOfTheKey) {
  const BadPatch rows[] = {
      {R"({"default": {"tbt_s": 1}})", "/default", "known are classes"},
      {R"({"classes": null})", "/classes", "give a value"},
      {R"({"classes": 1})", "/classes", "object of classes"},
      {R"({"classes": {"default": null}})", "/classes/default", "must exist"},
      {R"({"classes": {"default": 1}})", "/classes/default", "must be an object"},
      {R"({"classes": {"default": {"tbt": 1}}})", "/classes/default/tbt",
       "ttft_s, tbt_s, tpot_s, gap_s"},
      {R"({"classes": {"default": {"tbt_s": 0}}})", "/classes/default/tbt_s", "seconds, is 0"},
      {R"({"classes": {"default": {"tbt_s": -1}}})", "/classes/default/tbt_s", "seconds, is -1"},
      {R"({"classes": {"default": {"tbt_s": 1e300}}})", "/classes/default/tbt_s", "too many"},
      {R"({"classes": {"default": {"tbt_s": "1"}}})", "/classes/default/tbt_s", "number of"},
      {R"({"classes": {"a/b": {"tbt_s": 1}}})", "/classes", "a class name has"},
  };
  for (const BadPatch& row : rows) {
    SCOPED_TRACE(row.patch);
    const Refusal sut = slo_refusal(row.patch);
    EXPECT_EQ(sut.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(sut.path, row.path);
    EXPECT_THAT(sut.message, HasSubstr(row.message));
  }
}

}  // namespace
}  // namespace kvd::admin
