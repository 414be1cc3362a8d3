// Tests what the policies that kvd is compared with evict first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "tests/lab/cache/id_queue.hpp"
#include "tests/lab/cache/policies.hpp"

namespace kvd::sim {
namespace {

using store::Entries;
using store::EntryId;
using store::SpaceId;
using ::testing::ElementsAre;

/// A tier of single blocks, each the first of its chain: the policy alone decides.
class Tier : public ::testing::Test {
 protected:
  Entries entries;
  std::unique_ptr<store::Eviction> sut;
  std::vector<EntryId> ids{EntryId()};  ///< by the number that the tests give them, from 1

  void use(const char* name) { sut = cache_policy(name).value()(entries); }
  void arrive(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const EntryId id = entries.make(SpaceId(1));
      std::memcpy(entries[id].digest.bytes.data(), &id.value, sizeof id.value);
      ids.push_back(id);
      enter(ids.size() - 1);
    }
  }
  void enter(std::size_t number) {
    sut->added(ids[number]);
    sut->may_leave(ids[number]);
  }
  /// Touches an entry as a lookup does, with a lease.
  void touch(std::size_t number) {
    entries[ids[number]].leases = 1;
    sut->must_stay(ids[number]);
    sut->touched(ids[number]);
    entries[ids[number]].leases = 0;
    sut->may_leave(ids[number]);
  }
  std::size_t leave() {
    const EntryId id = sut->victim();
    if (!id) return 0;
    EXPECT_EQ(sut->victim(), id) << "it stays the victim";
    sut->must_stay(id);
    sut->removed(id);
    return static_cast<std::size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin());
  }
  std::vector<std::size_t> leave(std::size_t count) {
    std::vector<std::size_t> left;
    while (left.size() < count) left.push_back(leave());
    return left;
  }
};

TEST_F(Tier, SievePassesWhatWasTouchedAndKeepsItsOrder) {
  use("sieve");
  arrive(5);
  touch(1);
  touch(3);
  EXPECT_THAT(leave(2), ElementsAre(2, 4));
  arrive(1);
  EXPECT_THAT(leave(2), ElementsAre(5, 6)) << "the hand goes on where it was";
  EXPECT_THAT(leave(3), ElementsAre(1, 3, 0)) << "and comes round";
}

TEST_F(Tier, SieveTakesAParentRightAfterItsLastChild) {
  use("sieve");
  arrive(4);
  sut->must_stay(ids[1]);  // a child arrives
  EXPECT_THAT(leave(1), ElementsAre(2));
  sut->may_leave(ids[1]);  // this was number 2
  EXPECT_THAT(leave(3), ElementsAre(1, 3, 4));
}

TEST_F(Tier, QueuesPassWhatIsLeasedAndKeepItsPlace) {
  for (const char* kind : {"sieve", "s3fifo"}) {
    SCOPED_TRACE(kind);
    ids.resize(1);
    use(kind);
    arrive(2);
    for (const std::size_t i : {1u, 2u}) {
      entries[ids[i]].leases = 1;
      sut->must_stay(ids[i]);
    }
    EXPECT_EQ(leave(), 0u) << "all are leased";
    arrive(1);
    EXPECT_EQ(leave(), 3u);
    entries[ids[2]].leases = 0;
    sut->may_leave(ids[2]);
    entries[ids[1]].leases = 0;
    EXPECT_EQ(leave(), 2u) << "a child came while the other was leased";
    sut->may_leave(ids[1]);
    EXPECT_THAT(leave(2), ElementsAre(1, 0));
  }
}

TEST_F(Tier, S3FifoTakesFirstWhatWasAskedForOnce) {
  use("s3fifo");
  arrive(6);
  for (int i = 0; i < 2; ++i) {
    touch(2);
    touch(5);
  }
  touch(4);
  EXPECT_THAT(leave(4), ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(leave(3), ElementsAre(2, 5, 0));
}

TEST_F(Tier, S3FifoKeepsWhatReturnsSoonAfterItLeft) {
  use("s3fifo");
  arrive(3);
  EXPECT_THAT(leave(1), ElementsAre(1));
  enter(1);
  EXPECT_THAT(leave(3), ElementsAre(2, 3, 1)) << "in the main queue now";
}

TEST_F(Tier, EveryPolicyTakesEachBlockOnce) {
  const auto seed = static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const char* kind : {"sieve", "s3fifo"}) {
    SCOPED_TRACE(kind);
    std::mt19937_64 random(seed);
    ids.resize(1);
    use(kind);
    arrive(200);
    for (int i = 0; i < 600; ++i) touch(1 + static_cast<std::size_t>(random() % 200));
    EXPECT_EQ(sut->size(), 200u);
    std::set<std::size_t> left;
    while (const std::size_t number = leave()) EXPECT_TRUE(left.insert(number).second);
    EXPECT_EQ(left.size(), 200u);
    EXPECT_EQ(sut->size(), 0u);
  }
}

TEST(IdQueueTest, KeepsTheOrder) {
  IdQueue sut;
  const auto row = [&] {
    std::vector<std::uint32_t> ids;
    for (EntryId id = sut.oldest(); id; id = sut.newer(id)) ids.push_back(id.value);
    return ids;
  };
  for (const std::uint32_t id : {5u, 2u, 9u}) sut.insert(EntryId(id));
  sut.insert(EntryId(7), EntryId(2));
  sut.insert(EntryId(1), EntryId(5));
  EXPECT_THAT(row(), ElementsAre(1, 5, 7, 2, 9));
  for (const std::uint32_t id : {1u, 9u, 7u}) sut.erase(EntryId(id));
  EXPECT_THAT(row(), ElementsAre(5, 2));
  EXPECT_EQ(sut.size(), 2u);
  EXPECT_FALSE(sut.contains(EntryId(7)));
}

TEST(CachePolicies, NamesThatAreNotThereAreAnsweredWithThoseThatAre) {
  const auto unknown = cache_policy("mru");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message,
            "no eviction policy is called mru; there are default, lru, s3fifo, sieve");
}

}  // namespace
}  // namespace kvd::sim
