// The watcher of keeper words.
#include "kvd/daemon/sessions/liveness.hpp"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

class LivenessTest : public testing::Test {
 protected:
  LivenessTest() : sut_([this](EngineId engine) { died_ = engine.value; }) {
    auto page = shm::ServedClientPage::create();
    KVD_CHECK(page.ok(), "a page");
    page_ = std::make_shared<shm::ServedClientPage>(std::move(*page));
  }
  std::atomic_ref<std::uint32_t> word() { return std::atomic_ref(*page_->keeper().address()); }

  std::atomic<std::uint32_t> died_ = 0;
  daemon::Liveness sut_;
  std::shared_ptr<shm::ServedClientPage> page_;
};

TEST_F(LivenessTest, TellsOfAnOwnersDeath) {
  word() = 1;  // as if thread 1 held it
  ASSERT_TRUE(sut_.watch(EngineId(7), page_).ok());
  ASSERT_TRUE(poll_until([&] { return (word() & FUTEX_WAITERS) != 0; })) << "never armed";
  word() = FUTEX_OWNER_DIED;
  const std::uint32_t* address = page_->keeper().address();
  ::syscall(SYS_futex, address, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  EXPECT_TRUE(poll_until([&] { return died_ == 7; }));
}

TEST_F(LivenessTest, IsSilentAboutAForgottenPage) {
  word() = 1;
  ASSERT_TRUE(sut_.watch(EngineId(7), page_).ok());
  ASSERT_TRUE(poll_until([&] { return (word() & FUTEX_WAITERS) != 0; }));
  sut_.forget(EngineId(7));
  const std::weak_ptr<shm::ServedClientPage> left = page_;
  page_.reset();
  EXPECT_TRUE(poll_until([&] { return left.expired(); })) << "the page is still held";
  EXPECT_EQ(died_, 0u);
}

TEST_F(LivenessTest, GivesUpAWordThatChangesAllTheTime) {
  word() = 1;
  ASSERT_TRUE(sut_.watch(EngineId(7), page_).ok());
  const std::weak_ptr<shm::ServedClientPage> watched = page_;
  std::uint32_t value = 1;
  // One owner takes it here and one in the watcher, until the watcher has seen enough.
  EXPECT_TRUE(poll_until([&] {
    value = value % 1000 + 1;
    word() = value;
    ::syscall(SYS_futex, page_->keeper().address(), FUTEX_WAKE, 1, nullptr, nullptr, 0);
    return watched.use_count() == 1;
  }));
  EXPECT_EQ(died_, 0u);
}

TEST_F(LivenessTest, GivesUpAWordWhoseOwnerOnlyWakes) {
  word() = 1;
  ASSERT_TRUE(sut_.watch(EngineId(7), page_).ok());
  const std::weak_ptr<shm::ServedClientPage> watched = page_;
  EXPECT_TRUE(poll_until([&] {
    ::syscall(SYS_futex, page_->keeper().address(), FUTEX_WAKE, 1, nullptr, nullptr, 0);
    return watched.use_count() == 1;
  }));
  EXPECT_EQ(died_, 0u);
}

}  // namespace
}  // namespace kvd::test
