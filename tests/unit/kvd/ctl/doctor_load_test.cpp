#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/admin/advice/load.hpp"
#include "kvd/ctl/doctor/load.hpp"

namespace kvd::ctl::doctor {
namespace {
using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

core::EngineStatus engine(std::uint32_t id, const char* name, const char* domain, Bytes hbm) {
  core::EngineStatus e;
  e.id = EngineId(id);
  e.name = name;
  e.domain = domain;
  e.hbm = hbm;
  return e;
}

core::RequestStatus waiting(std::uint32_t engine, std::uint64_t id, WaitReason reason,
                            double late_s) {
  core::RequestStatus r;
  r.key = {EngineId(engine), RequestId(id)};
  r.goals.late_s = late_s;
  r.waits_for = reason;
  return r;
}

/// Chat waits for the memory that batch has.
core::ControllerStatus noisy_neighbour() {
  core::ControllerStatus s;
  s.tiers[0].capacity = 64 * kMiB;
  s.tiers[0].free = 2 * kMiB;
  s.engines = {engine(1, "chat", "alice", 2 * kMiB), engine(2, "batch", "bob", 60 * kMiB)};
  s.requests = {waiting(1, 1, WaitReason::kMemory, 7.5), waiting(1, 2, WaitReason::kMemory, 2),
                waiting(1, 3, WaitReason::kCopy, 1), waiting(1, 4, WaitReason::kSeats, -3),
                waiting(2, 5, WaitReason::kNone, 4)};
  return s;
}

std::vector<Finding> findings(const core::ControllerStatus& status) {
  const auto found = findings_of_load(admin::load_document(status));
  EXPECT_TRUE(found.ok());
  return found.ok() ? *found : std::vector<Finding>();
}

TEST(DoctorOfLoad, NamesTheEngineTheNumberAndTheSetting) {
  const auto sut = findings(noisy_neighbour());
  ASSERT_THAT(sut, SizeIs(1)) << "batch's late request runs";
  EXPECT_EQ(sut[0].severity, Severity::kWarning);
  EXPECT_THAT(sut[0].text,
              AllOf(HasSubstr("engine 1 (chat, domain alice): 3 requests wait past their goal, "
                              "up to 7.5 s; most because HBM has no room for it (2)"),
                    HasSubstr("engine 2 (batch, domain bob) holds the most HBM, 60 MiB of 64 MiB, "
                              "and 2 MiB are available")));
  EXPECT_THAT(sut[0].remedy, AllOf(HasSubstr("kvdctl quota set alice.hbm.guarantee_bytes"),
                                   HasSubstr("bob.hbm.maximum_bytes")));
}

TEST(DoctorOfLoad, AsksForNoQuotaWithinADomain) {
  core::ControllerStatus status = noisy_neighbour();
  status.engines[0].hbm = 61 * kMiB;
  EXPECT_THAT(findings(status).at(0).text, HasSubstr("it holds the most HBM itself, 61 MiB"));
  EXPECT_THAT(findings(status).at(0).remedy, HasSubstr("pool.hbm"));
}

TEST(DoctorOfLoad, KnowsWhatToTurnForWhatIsWaitedFor) {
  core::ControllerStatus status = noisy_neighbour();
  status.requests = {waiting(2, 1, WaitReason::kHeldBack, 1)};
  EXPECT_THAT(findings(status).at(0).remedy, HasSubstr("admission.policy=none"));
}

TEST(DoctorOfLoad, FindsNothingWhereNobodyIsLate) {
  core::ControllerStatus status = noisy_neighbour();
  status.requests = {waiting(1, 1, WaitReason::kMemory, -1)};
  ASSERT_THAT(findings(status), SizeIs(1));
  EXPECT_EQ(findings(status)[0].severity, Severity::kOk);
  EXPECT_FALSE(findings_of_load("{}").ok());
}

}  // namespace
}  // namespace kvd::ctl::doctor
