#include "kvd/mover/slab_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/host/host_backend.hpp"

namespace kvd::mover {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Bytes kSlab = kMiB * 2;

/// A machine with room for this many slabs.
class SlabStoreTest : public testing::Test {
 protected:
  std::unique_ptr<kernels::HostBackend> backend(std::int64_t* room) {
    kernels::HostConfig config;
    config.pages = kernels::PagePreference::kSmall;
    config.may_take = [room](Bytes) -> Status {
      if ((*room)-- > 0) return {};
      *room = 0;
      return make_error(ErrorCode::kOutOfMemory, "full");
    };
    return kernels::HostBackend::create(config, clock_).value();
  }
  static std::vector<SlabIndex> slabs(std::initializer_list<std::uint32_t> numbers) {
    return {numbers.begin(), numbers.end()};
  }

  SteadyClock clock_;
  std::int64_t room_ = 1000;
};

TEST_F(SlabStoreTest, WhereThereIsRoomNothingIsMissing) {
  const auto device = backend(&room_);
  const auto sut = SlabStore::create(*device, {kSlab, 3}, {kSlab, 2}, {}).value();
  EXPECT_THAT(sut.missing(Tier::kHbm), IsEmpty());
  EXPECT_THAT(sut.missing(Tier::kDram), IsEmpty());
  EXPECT_TRUE(sut.shortage().ok());
}

TEST_F(SlabStoreTest, AShortageHitsAllPoolsAlike) {
  room_ = 6;
  const auto one = backend(&room_), two = backend(&room_);
  auto sut =
      SlabStore::create({{one.get(), {kSlab, 4}}, {two.get(), {kSlab, 4}}}, {kSlab, 4}, {}).value();
  EXPECT_EQ(sut.missing(Tier::kHbm), slabs({2, 3, 6, 7}));
  EXPECT_EQ(sut.missing(Tier::kDram), slabs({2, 3}));
  EXPECT_EQ(sut.shortage().error().message, "full");
  EXPECT_EQ(sut.slab_bytes(Tier::kDram), kSlab);
  EXPECT_EQ(sut.bytes_backed_by(Tier::kHbm, kernels::PageKind::kSmall), kSlab * 4);
}

TEST_F(SlabStoreTest, MemoryThatComesLaterIsPutWhereThereWasNone) {
  room_ = 1;
  const auto one = backend(&room_), two = backend(&room_);
  auto sut =
      SlabStore::create({{one.get(), {kSlab, 1}}, {two.get(), {kSlab, 1}}}, {kSlab, 1}, {}).value();
  EXPECT_EQ(sut.missing(Tier::kHbm), slabs({1}));
  EXPECT_EQ(sut.missing(Tier::kDram), slabs({0}));
  room_ = 2;
  ASSERT_TRUE(sut.put(Tier::kHbm, SlabIndex(1), *two->create_slab(Tier::kHbm, kSlab)).ok());
  ASSERT_TRUE(sut.put(Tier::kDram, SlabIndex(0), *one->create_slab(Tier::kDram, kSlab)).ok());
  EXPECT_THAT(sut.missing(Tier::kHbm), IsEmpty());
  EXPECT_THAT(sut.missing(Tier::kDram), IsEmpty());
  EXPECT_NE(sut.address(Tier::kDram, SlabIndex(0)), 0u);
}

}  // namespace
}  // namespace kvd::mover
