// Copies of two domains over one slow link: nobody waits for what another has ordered.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using kvd_client::TicketState;
using SteadyTime = std::chrono::steady_clock;

/// A user id that no system gives away; it need not exist.
constexpr unsigned kGroup = 60'001;
constexpr std::uint64_t kBlock = 64 << 10;

/// An engine with a cache over a region, of which one block is stored.
class Engine {
 public:
  Engine(const std::string& endpoint, const std::string& name, std::uint64_t region)
      : blocks_(region / kBlock) {
    kvd_client::Options options;
    options.endpoint = endpoint;
    options.engine_name = name;
    auto client = kvd_client::Client::open(options);
    EXPECT_TRUE(client.ok()) << (client.ok() ? "" : client.error().message);
    client_.emplace(std::move(*client));
    kvd_client::CacheOptions cache;
    cache.model = "m";
    cache.block_tokens = 16;
    cache.block_bytes = kBlock;
    cache.region_id = client_->allocate_region(region, kPatience)->id;
    cache.blocks = blocks_;
    cache.pieces = {{0, kBlock, kBlock}};
    cache_ = *client_->caches().open(cache, kPatience);
    const std::vector<std::uint32_t> first = {0};
    std::uint64_t ticket = 0;
    EXPECT_TRUE(
        client_->caches().store(cache_, {&digest_, 1}, first, false, kPatience, ticket).ok());
    EXPECT_TRUE(client_->caches().wait({&ticket, 1}, kPatience).ok());
  }

  /// Loads the stored block into this many blocks. 0: refused.
  std::uint64_t load(std::uint64_t blocks) {
    const std::vector<kvd_client::Digest> digests(blocks, digest_);
    std::vector<std::uint32_t> into(blocks);
    std::iota(into.begin(), into.end(), 0);
    std::uint64_t ticket = 0;
    const auto loaded = client_->caches().load(cache_, digests, into, kPatience, ticket);
    return loaded.ok() ? ticket : 0;
  }
  std::uint64_t load_all() { return load(blocks_); }
  TicketState state(std::uint64_t ticket) { return client_->caches().poll({&ticket, 1}).front(); }
  kvd_client::Client& client() { return *client_; }
  void leave() { client_.reset(); }

 private:
  const std::uint64_t blocks_;
  std::optional<kvd_client::Client> client_;
  kvd_client::Digest digest_{};
  std::uint64_t cache_ = 0;
};

class DaemonCopies : public testing::Test {
 protected:
  static constexpr std::uint64_t kRegion = 16 << 20;
  static constexpr std::uint64_t kRate = 8 << 20;  ///< bytes a second

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be of two domains";
    ASSERT_TRUE(kvd_.wait_ready()) << kvd_.log();
    // The kernel keeps credentials by thread, and a socket shows its maker's.
    std::thread([&] {
      if (::syscall(SYS_setresgid, kGroup, kGroup, static_cast<gid_t>(-1)) != 0) return;
      hog_.emplace(kvd_.endpoint(), "hog", kRegion);
    }).join();
    ASSERT_TRUE(hog_.has_value());
    honest_.emplace(kvd_.endpoint(), "honest", std::uint64_t{2} << 20);
    for (int i = 0; i < 4; ++i) last_ = hog_->load_all();
    ASSERT_NE(last_, 0u);
  }

  const RuntimeFolder folder_;
  const KvdProcess kvd_{folder_,
                        {.hbm = "32MiB",
                         .bandwidth = "8MiB/s",
                         .extra = "[[domain]]\nname = \"hog\"\ngids = [60001]\n"
                                  "[[domain]]\nname = \"honest\"\nuids = [0]\n"}};
  std::optional<Engine> hog_, honest_;
  std::uint64_t last_ = 0;  ///< one of the hog's four loads, which take 8 s together
};

TEST_F(DaemonCopies, AnotherDomainsLoadPassesAQueueOfLoads) {
  EXPECT_EQ(hog_->load(1), 0u) << "no more may be under way";
  const std::uint64_t ticket = honest_->load(1);
  ASSERT_TRUE(poll_until([&] { return honest_->state(ticket) != TicketState::kPending; }));
  EXPECT_EQ(hog_->state(last_), TicketState::kPending) << "it waited for all of them";
  EXPECT_EQ(honest_->state(ticket), TicketState::kDone);
}

TEST_F(DaemonCopies, LoadsOfAnEngineThatHasGoneAreNotCarriedOut) {
  hog_->leave();
  const auto begin = SteadyTime::now();
  // Nobody gets its region while a copy may touch it.
  ASSERT_TRUE(poll_until([&] {
    return honest_->client().allocate_region(std::uint64_t{24} << 20, kPatience).ok();
  })) << kvd_.log();
  const std::chrono::duration<double> took = SteadyTime::now() - begin;
  // What the loads would take is four regions' worth, of which zeroing its region takes one.
  EXPECT_LT(took.count(), 3.0 * kRegion / kRate);
}

}  // namespace
}  // namespace kvd::test
