#include "kvd/daemon/memory/slab_renewer.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "kernels/device/host/host_backend.hpp"
#include "tests/support/faulty/faulty_backend.hpp"
#include "tests/support/patience.hpp"

namespace kvd::daemon {
namespace {

constexpr Bytes kSize = 2 * kMiB;

/// One slab, filled with ones and shared with a peer that maps it and will not let go.
class SlabRenewerTest : public testing::Test {
 protected:
  explicit SlabRenewerTest(std::set<std::uint64_t> failing_creates = {}) {
    kernels::FaultScript script;
    script.fail_creates = std::move(failing_creates);
    kernels::HostConfig config;
    config.pages = kernels::PagePreference::kSmall;
    auto host = kernels::HostBackend::create(config, clock_);
    backend_ = kernels::FaultyBackend::create(std::move(*host), std::move(script)).value();
    old_ = backend_->create_slab(Tier::kHbm, kSize).value();
    std::memset(reinterpret_cast<void*>(old_.address), 1, kSize.size());
    const UniqueFd fd = backend_->export_slab(old_.handle).value();
    peer_ = static_cast<char*>(
        ::mmap(nullptr, kSize.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  }
  ~SlabRenewerTest() override { ::munmap(peer_, kSize.size()); }

  kernels::Slab renewed() {
    SlabRenewer::Answers answers;
    answers.renewed = [this](const SlabRenewer::Job&, const kernels::Slab& slab) {
      made_.set_value(slab);
    };
    answers.failed = [this](const SlabRenewer::Job&, const Error&) { ++failures_; };
    SlabRenewer sut(std::move(answers), std::chrono::milliseconds(1));
    sut.renew({backend_.get(), SlabIndex(3), old_.handle, Tier::kHbm, kSize});
    auto slab = made_.get_future();
    EXPECT_EQ(slab.wait_for(test::kPatience), std::future_status::ready);
    return slab.get();
  }

  SteadyClock clock_;
  std::unique_ptr<kernels::FaultyBackend> backend_;
  kernels::Slab old_;
  char* peer_ = nullptr;
  std::promise<kernels::Slab> made_;
  std::atomic<int> failures_ = 0;
};

TEST_F(SlabRenewerTest, TheNewMemoryIsNotWhatThePeerMaps) {
  const kernels::Slab slab = renewed();
  EXPECT_EQ(slab.size, kSize);
  auto* bytes = reinterpret_cast<char*>(slab.address);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(peer_[0], 0) << "the old is emptied";
  std::memset(bytes, 5, kSize.size());
  std::memset(peer_, 7, kSize.size());
  EXPECT_EQ(bytes[kSize.size() - 1], 5);
  EXPECT_EQ(backend_->counters().live[0], kSize);
  EXPECT_EQ(failures_, 0);
}

class WithoutMemory : public SlabRenewerTest {
 protected:
  WithoutMemory() : SlabRenewerTest({2, 3, 4}) {}
};

TEST_F(WithoutMemory, ItTriesAgainUntilThereIsSomeAndTellsOnce) {
  EXPECT_EQ(renewed().size, kSize);
  EXPECT_EQ(failures_, 1);
  EXPECT_EQ(backend_->faults().failed_creates, 3u);
}

/// Two devices, the first of which has no memory for a while.
class WithoutMemoryAtFirst : public testing::Test {
 protected:
  std::unique_ptr<kernels::FaultyBackend> device(std::set<std::uint64_t> failing_creates) {
    kernels::FaultScript script;
    script.fail_creates = std::move(failing_creates);
    kernels::HostConfig config;
    config.pages = kernels::PagePreference::kSmall;
    auto host = kernels::HostBackend::create(config, clock_);
    return kernels::FaultyBackend::create(std::move(*host), std::move(script)).value();
  }

  SteadyClock clock_;
};

TEST_F(WithoutMemoryAtFirst, ASlabThatHasNoneYetIsMadeAndNobodyElseWaits) {
  std::set<std::uint64_t> many;
  for (std::uint64_t i = 1; i <= 1000; ++i) many.insert(i);
  const auto full = device(std::move(many)), other = device({});
  std::promise<std::uint32_t> first;
  std::atomic<int> failures = 0;
  SlabRenewer::Answers answers;
  answers.renewed = [&](const SlabRenewer::Job& job, const kernels::Slab&) {
    first.set_value(job.slab.value);
  };
  answers.failed = [&](const SlabRenewer::Job&, const Error&) { ++failures; };
  SlabRenewer sut(std::move(answers), std::chrono::hours(1));
  sut.renew({full.get(), SlabIndex(1), {}, Tier::kHbm, kSize, true});
  sut.renew({full.get(), SlabIndex(2), {}, Tier::kHbm, kSize, true});
  sut.renew({other.get(), SlabIndex(3), {}, Tier::kHbm, kSize, true});
  auto slab = first.get_future();
  ASSERT_EQ(slab.wait_for(test::kPatience), std::future_status::ready);
  EXPECT_EQ(slab.get(), 3u);
  EXPECT_LE(full->faults().failed_creates, 1u) << "one try says it of all";
  EXPECT_EQ(failures, 0) << "it was told before";
}

}  // namespace
}  // namespace kvd::daemon
