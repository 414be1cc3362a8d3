// Regions that grow and shrink: several engines share one pool of a real kvd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client_lib/include/kvd.h"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;
using nlohmann::json;

constexpr std::uint64_t kSlab = 2 << 20;

Client attached(const KvdProcess& kvd, const char* name = "engine") {
  kvd_client::Options options;
  options.endpoint = kvd.endpoint();
  options.engine_name = name;
  return std::move(Client::open(options)).value();
}

std::uint64_t lent(const KvdProcess& kvd) {
  return json::parse(kvd.get("/v1/status").body)["pools"][0]["region_bytes"];
}

/// An engine with addresses for the whole pool.
struct Elastic {
  explicit Elastic(const KvdProcess& kvd, std::uint64_t slabs = 8) : client(attached(kvd)) {
    auto reserved = client.reserve_region(slabs * kSlab, kPatience);
    EXPECT_TRUE(reserved.ok()) << (reserved.ok() ? "" : reserved.error().message);
    region = *reserved;
  }
  kvd_client::Result<std::uint64_t> grow(std::vector<std::uint32_t> positions,
                                         kvd_client::Duration timeout = kPatience) {
    return client.grow_region(region.id, positions, timeout);
  }
  /// The slabs that it may have.
  std::uint64_t share(std::uint64_t kept, std::uint64_t wanted, std::uint64_t age_ns = 0,
                      std::uint64_t least = 0) {
    const auto bytes = client.share_region(
        region.id, {kept * kSlab, least * kSlab, wanted * kSlab, kSlab, age_ns}, kPatience);
    EXPECT_TRUE(bytes.ok()) << (bytes.ok() ? "" : bytes.error().message);
    return bytes.ok() ? *bytes / kSlab : 0;
  }
  std::byte* at(std::uint32_t position) const { return region.address + position * kSlab; }

  Client client;
  kvd_client::Region region;
};

class DaemonSpaces : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kvd_.wait_ready()) << kvd_.log(); }
  bool comes_to_lend(std::uint64_t slabs) {
    return poll_until([&] { return lent(kvd_) == slabs * kSlab; });
  }

  RuntimeFolder folder_;
  KvdProcess kvd_{folder_, {.hbm = "16MiB"}};  // 8 slabs
};

TEST_F(DaemonSpaces, HaveMemoryWhereItWasAskedForAndLoseItAgain) {
  Elastic engine(kvd_);
  EXPECT_EQ(engine.region.bytes, 8 * kSlab);
  EXPECT_EQ(engine.region.granularity, kSlab);
  EXPECT_EQ(lent(kvd_), 0u) << "addresses alone cost nothing";
  const auto part = engine.grow({5, 2});
  ASSERT_TRUE(part.ok()) << part.error().message;
  EXPECT_TRUE(comes_to_lend(2));
  EXPECT_EQ(*engine.at(5), std::byte{0}) << "it is zeroed";
  std::memset(engine.at(5), 0x55, kSlab);
  std::memset(engine.at(2), 0x22, kSlab);
  EXPECT_EQ(engine.at(5)[kSlab - 1], std::byte{0x55});
  EXPECT_EQ(engine.at(2)[0], std::byte{0x22}) << "each position has memory of its own";

  EXPECT_TRUE(engine.client.shrink_region(engine.region.id, *part, kPatience).ok());
  EXPECT_TRUE(comes_to_lend(0));
  ASSERT_TRUE(engine.grow({5}).ok());
  EXPECT_EQ(*engine.at(5), std::byte{0}) << "what stood there is gone";
  EXPECT_TRUE(engine.client.free_region(engine.region.id, kPatience).ok());
  EXPECT_TRUE(comes_to_lend(0));
}

// The kernel says so, as reading there would end the test.
TEST_F(DaemonSpaces, HaveNothingBehindOtherAddresses) {
  Elastic engine(kvd_);
  const auto part = engine.grow({1});
  ASSERT_TRUE(part.ok());
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const auto can_read = [&](std::uint32_t position) {
    return ::write(ends[1], engine.at(position), 1) == 1;
  };
  EXPECT_TRUE(can_read(1));
  EXPECT_FALSE(can_read(0));
  EXPECT_FALSE(can_read(2));
  ASSERT_TRUE(engine.client.shrink_region(engine.region.id, *part, kPatience).ok());
  EXPECT_FALSE(can_read(1));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(DaemonSpaces, RefuseWhatCannotBe) {
  Elastic engine(kvd_);
  EXPECT_EQ(engine.client.reserve_region(9 * kSlab, kPatience).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.client.reserve_region(0, kPatience).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.grow({}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.grow({8}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.grow({1, 1}).code(), ErrorCode::kInvalidArgument);
  const auto part = engine.grow({1});
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(engine.grow({1}).code(), ErrorCode::kInvalidArgument) << "it has memory";
  EXPECT_EQ(engine.client.shrink_region(engine.region.id, *part + 1, kPatience).code(),
            ErrorCode::kNotFound);
  EXPECT_EQ(engine.client.shrink_region(engine.region.id + 1, *part, kPatience).code(),
            ErrorCode::kNotFound);
  const auto fixed = engine.client.allocate_region(kSlab, kPatience);
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ(engine.client.grow_region(fixed->id, std::vector<std::uint32_t>{0}, kPatience).code(),
            ErrorCode::kInvalidArgument);
  // All or none: 6 slabs are free.
  EXPECT_FALSE(engine.grow({0, 2, 3, 4, 5, 6, 7}, std::chrono::milliseconds(200)).ok());
  EXPECT_TRUE(comes_to_lend(2));
  EXPECT_TRUE(engine.grow({0, 2, 3, 4, 5, 6}).ok()) << "nothing of the refused one is left";
}

TEST_F(DaemonSpaces, ShareOnePoolByWhatTheyNeed) {
  Elastic a(kvd_), b(kvd_);
  EXPECT_EQ(a.share(1, 8), 8u) << "nobody else wants any";
  ASSERT_TRUE(a.grow({0, 1, 2, 3, 4, 5, 6, 7}).ok());
  EXPECT_EQ(b.share(1, 2), 2u);
  EXPECT_EQ(a.share(1, 8), 6u) << "the pressure";
  EXPECT_EQ(b.share(1, 8), 4u);
  EXPECT_EQ(a.share(1, 8), 4u);
  EXPECT_EQ(b.share(1, 8, 1'000'000, 7), 7u) << "its oldest request needs so many";
  EXPECT_EQ(a.share(1, 8), 1u) << "what it keeps";
  EXPECT_EQ(a.share(1, 8, 2'000'000, 6), 6u) << "an older one";
  EXPECT_EQ(b.share(0, 0), 0u);
  EXPECT_EQ(a.share(1, 2), 8u) << "what nobody wants stays";
}

TEST_F(DaemonSpaces, OfAKilledEngineAreFree) {
  // It is forked while this process has one thread: other threads' locks would stay locked in the
  // child.
  const pid_t child = ::fork();
  if (child == 0) {
    Elastic engine(kvd_);
    if (!engine.grow({0, 1, 2, 3, 4}).ok()) ::_exit(1);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(comes_to_lend(0));
  Elastic survivor(kvd_);
  EXPECT_EQ(survivor.share(0, 8), 8u);
  EXPECT_TRUE(survivor.grow({0, 1, 2, 3, 4, 5, 6, 7}).ok());
}

TEST_F(DaemonSpaces, TakeCopiesOfTheirBlocksWhereThereIsMemory) {
  Elastic engine(kvd_);
  // A block is one slab's half in the lower part of the addresses, and one in the upper.
  const auto cache =
      engine.client.caches().open({"test",
                                   16,
                                   kSlab,
                                   engine.region.id,
                                   8,
                                   {{0, kSlab / 2, kSlab / 2}, {4 * kSlab, kSlab / 2, kSlab / 2}}},
                                  kPatience);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  ASSERT_TRUE(engine.grow({0}).ok());
  const kvd_client::Digest digest{{1}};
  const std::uint32_t first = 0, other = 7;
  std::uint64_t ticket = 0;
  const auto store = [&](const std::uint32_t& block) {
    return engine.client.caches()
        .store(*cache, {&digest, 1}, {&block, 1}, false, kPatience, ticket)
        .code();
  };
  EXPECT_EQ(store(first), ErrorCode::kInvalidArgument) << "half of it has no memory";
  const auto upper = engine.grow({4});
  ASSERT_TRUE(upper.ok());
  std::memset(engine.at(0), 0x10, kSlab / 2);
  std::memset(engine.at(4), 0x14, kSlab / 2);
  EXPECT_EQ(store(first), ErrorCode::kOk);
  EXPECT_TRUE(engine.client.caches().wait({&ticket, 1}, kPatience).ok());
  ASSERT_TRUE(engine.client.shrink_region(engine.region.id, *upper, kPatience).ok());
  EXPECT_EQ(store(other), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(engine.grow({3, 7}).ok());
  EXPECT_TRUE(
      engine.client.caches().load(*cache, {&digest, 1}, {&other, 1}, kPatience, ticket).ok());
  EXPECT_TRUE(engine.client.caches().wait({&ticket, 1}, kPatience).ok());
  EXPECT_EQ(engine.at(3)[kSlab - 1], std::byte{0x10});
  EXPECT_EQ(engine.at(7)[kSlab - 1], std::byte{0x14});
  EXPECT_EQ(engine.at(3)[0], std::byte{0}) << "block 6 is not touched";
}

TEST_F(DaemonSpaces, OutliveTheirDaemonAndAreFreedThen) {
  Elastic engine(kvd_);
  ASSERT_TRUE(engine.grow({3}).ok());
  std::memset(engine.at(3), 0x33, kSlab);
  kvd_.signal(SIGKILL);
  ASSERT_TRUE(kvd_.wait());
  EXPECT_EQ(engine.grow({4}, std::chrono::milliseconds(200)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(engine.at(3)[kSlab - 1], std::byte{0x33}) << "it is still there";
  const std::vector<std::uint32_t> more{4, 7};
  ASSERT_TRUE(engine.client.back_region(engine.region.id, more, kPatience).ok());
  EXPECT_EQ(*engine.at(7), std::byte{0}) << "memory of the process's own";
  std::memset(engine.at(4), 0x44, kSlab);
  EXPECT_EQ(engine.at(3)[0], std::byte{0x33});
  EXPECT_EQ(engine.client.back_region(engine.region.id, more, kPatience).code(),
            ErrorCode::kInvalidArgument)
      << "it has memory";
  EXPECT_TRUE(engine.client.free_region(engine.region.id, kPatience).ok());
}

TEST_F(DaemonSpaces, AreHadFromC) {
  kvd_open_options options{};
  options.struct_size = sizeof options;
  const std::string endpoint = kvd_.endpoint();
  options.endpoint = endpoint.c_str();
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();
  constexpr std::uint64_t kTimeout = 30'000'000'000;
  kvd_region region{};
  region.struct_size = sizeof region;
  ASSERT_EQ(kvd_region_reserve(handle, 8 * kSlab, kTimeout, &region), KVD_OK) << kvd_last_error();
  const std::uint32_t positions[] = {6, 7};
  std::uint64_t part = 0, bytes = 0;
  ASSERT_EQ(kvd_region_grow(handle, region.id, positions, 2, kTimeout, &part), KVD_OK);
  std::memset(static_cast<std::byte*>(region.address) + 6 * kSlab, 1, 2 * kSlab);
  kvd_demand demand{sizeof demand, 0, 0, 4 * kSlab, kSlab, 0, nullptr, 0};
  ASSERT_EQ(kvd_region_share(handle, region.id, &demand, kTimeout, &bytes), KVD_OK);
  EXPECT_EQ(bytes, 4 * kSlab);
  const kvd_need need{5 * kSlab, kSlab, 1, 1'000'000'000, kvd_slo_class("chat"), 1};
  demand.wanted_bytes = 5 * kSlab;
  demand.needs = &need;
  demand.need_count = 1;
  ASSERT_EQ(kvd_region_share(handle, region.id, &demand, kTimeout, &bytes), KVD_OK);
  EXPECT_EQ(bytes, 5 * kSlab);
  demand.need_count = KVD_MAX_NEEDS + 1;
  EXPECT_EQ(kvd_region_share(handle, region.id, &demand, kTimeout, &bytes), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_region_shrink(handle, region.id, part, kTimeout), KVD_OK);
  EXPECT_EQ(kvd_region_shrink(handle, region.id, part, kTimeout), KVD_NOT_FOUND);
  EXPECT_EQ(kvd_region_grow(handle, region.id, nullptr, 1, kTimeout, &part), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_region_back(handle, region.id, nullptr, 1, kTimeout), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_region_back(handle, region.id, positions, 2, kTimeout), KVD_INVALID_ARGUMENT);
  EXPECT_THAT(kvd_last_error(), testing::HasSubstr("kvd_region_grow")) << "its kvd is there";
  EXPECT_EQ(kvd_region_share(handle, region.id, nullptr, kTimeout, &bytes), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_region_free(handle, region.id, kTimeout), KVD_OK);
  kvd_close(handle);
}

}  // namespace
}  // namespace kvd::test
