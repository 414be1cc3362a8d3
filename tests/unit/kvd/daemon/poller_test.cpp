#include "kvd/daemon/base/poller.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

namespace kvd::daemon {
namespace {

using Source = Poller::Source;
constexpr std::chrono::milliseconds kNow{0};

TEST(Poller, SaysWhatAReadableDescriptorStandsFor) {
  Poller sut = Poller::create().value();
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_TRUE(sut.watch(Source::kPeer, 0xfffffff0u, bell.get()).ok());
  const auto ready = sut.wait(kNow);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].source, Source::kPeer);
  EXPECT_EQ(ready[0].id, 0xfffffff0u);
}

TEST(Poller, LooksAtADescriptorOnlyWhileItIsTo) {
  Poller sut = Poller::create().value();
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_TRUE(sut.watch(Source::kListener, 0, bell.get()).ok());
  sut.look_at(Source::kListener, bell.get(), false);
  EXPECT_TRUE(sut.wait(kNow).empty());
  sut.look_at(Source::kListener, bell.get(), true);
  EXPECT_EQ(sut.wait(kNow).size(), 1u);
  sut.forget(bell.get());
  EXPECT_TRUE(sut.wait(kNow).empty());
}

TEST(Poller, TellsOfAnEdgeOnce) {
  Poller sut = Poller::create().value();
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_TRUE(sut.watch(Source::kBell, 3, bell.get(), EPOLLIN | EPOLLET).ok());
  EXPECT_EQ(sut.wait(kNow).size(), 1u);
  EXPECT_TRUE(sut.wait(kNow).empty());
}

TEST(Poller, ATickStaysUntilItIsTaken) {
  Poller sut = Poller::create().value();
  ASSERT_TRUE(sut.tick_every(std::chrono::hours(1)).ok());
  EXPECT_TRUE(sut.wait(kNow).empty());
  Poller quick = Poller::create().value();
  ASSERT_TRUE(quick.tick_every(std::chrono::milliseconds(1)).ok());
  ASSERT_EQ(quick.wait(std::chrono::seconds(10)).size(), 1u);
  EXPECT_EQ(quick.wait(kNow)[0].source, Source::kTimer);
  quick.take_tick();
}

TEST(Poller, AClosedDescriptorIsRefusedWithARemedy) {
  Poller sut = Poller::create().value();
  const Status refused = sut.watch(Source::kPeer, 1, -1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("close sessions"), std::string::npos);
}

}  // namespace
}  // namespace kvd::daemon
