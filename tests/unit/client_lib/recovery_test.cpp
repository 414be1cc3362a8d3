#include "client_lib/src/attach/recovery.hpp"

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

using Need = Recovery::Need;

TEST(RecoveryTest, NeedsToAttachAtFirst) {
  const Recovery recovery;
  EXPECT_EQ(recovery.need_for_memory_call(), Need::kAttach);
  EXPECT_EQ(recovery.need_for_request_call(), Need::kAttach);
}

TEST(RecoveryTest, AttachesSilentlyWithoutRequests) {
  Recovery recovery;
  recovery.on_attached();
  recovery.on_lost();
  EXPECT_EQ(recovery.need_for_request_call(), Need::kAttach);
}

TEST(RecoveryTest, ARankHearsOfALossWhoeverSubmitted) {
  Recovery recovery(true);
  recovery.on_attached();
  recovery.on_lost();
  EXPECT_EQ(recovery.need_for_request_call(), Need::kReportLoss);
  recovery.on_loss_told();
  EXPECT_EQ(recovery.need_for_request_call(), Need::kAttach);
}

TEST(RecoveryTest, ReportsALossOnceToRequestCallsOnly) {
  Recovery recovery;
  recovery.on_attached();
  recovery.on_submitted(RequestId(1));
  recovery.on_lost();
  EXPECT_EQ(recovery.need_for_memory_call(), Need::kAttach);
  EXPECT_EQ(recovery.need_for_request_call(), Need::kReportLoss);
  recovery.on_attached();
  EXPECT_EQ(recovery.need_for_memory_call(), Need::kNothing);
  EXPECT_EQ(recovery.need_for_request_call(), Need::kReportLoss) << "attaching tells nobody";
  recovery.on_loss_told();
  EXPECT_EQ(recovery.need_for_request_call(), Need::kNothing);
}

TEST(RecoveryTest, CountsOnlyRequestsStillOpen) {
  Recovery recovery;
  recovery.on_attached();
  recovery.on_submitted(RequestId(1));
  recovery.on_ended(RequestId(1));
  recovery.on_lost();
  EXPECT_EQ(recovery.need_for_request_call(), Need::kAttach);
}

TEST(RecoveryTest, RemembersAnUntoldLossOverASecondOne) {
  Recovery recovery;
  recovery.on_attached();
  recovery.on_submitted(RequestId(1));
  recovery.on_lost();
  recovery.on_attached();
  recovery.on_lost();
  EXPECT_EQ(recovery.need_for_request_call(), Need::kReportLoss);
}

}  // namespace
}  // namespace kvd::client
