#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/support/disk_files.hpp"
#include "tests/unit/kvd/core/parts/cache/prefixes_fixture.hpp"

namespace kvd::core {

inline Config with_disk() {
  Config config = small_config();
  config.disk.name = test::plain_disk_name;
  return config;
}

/// Blocks that are only on disk.
class DiskFixture : public PrefixesFixture {
 protected:
  explicit DiskFixture(Config config = with_disk()) : PrefixesFixture(std::move(config)) {}
  ~DiskFixture() override { EXPECT_EQ(disk.slots(), reading); }

  /// Files for the first class that is asked for.
  void open(std::uint32_t slots = 16) {
    disk.on_opened({DiskId(1), slots});
    found({DiskId(1), {}, true});
  }
  void found(const DiskFound& blocks) {
    disk.classes().on_found(blocks);
    (void)disk.go_on();
  }
  /// Blocks in DRAM that a second request has asked for.
  void leave_touched(Session& session, std::int64_t prompt, std::uint8_t text) {
    leave_in_dram(session, prompt, text);
    Request& again = asked(session, prompt + 1, text);
    ASSERT_EQ(sut.find(again), Found::kInDram);
    sut.count(again);
    sut.give_back(again);
    ground.memory.end(again);
  }
  /// On disk alone.
  void leave_on_disk(Session& session, std::int64_t prompt, std::uint8_t text) {
    leave_touched(session, prompt, text);
    finish(written());
    ground.store.cache.clear();
  }
  /// An engine whose files are open, and a text of this many tokens that is only on disk.
  Session& with_on_disk(std::int64_t prompt) {
    Session& session = attach();
    tell(submit(session, 9, 8), 1);
    open();
    leave_on_disk(session, prompt, 7);
    return session;
  }
  /// A request that waits for the blocks of that text.
  Request& awaiting(Session& session, std::int64_t prompt) {
    Request& request = asked(session, prompt, 7);
    EXPECT_EQ(sut.find(request), Found::kSoon);
    return request;
  }
  template <class E>
  std::vector<E> fresh(std::size_t& seen) {
    std::vector<E> all = emitted<E>();
    all.erase(all.begin(),
              all.begin() + static_cast<std::ptrdiff_t>(std::exchange(seen, all.size())));
    return all;
  }
  /// The orders since the last call.
  std::vector<WriteDisk> written() {
    disk.write_ahead();
    return fresh<WriteDisk>(writes_seen);
  }
  std::vector<ReadDisk> read() { return fresh<ReadDisk>(reads_seen); }
  template <class E>
  void finish(const std::vector<E>& orders, bool ok = true) {
    for (const E& order : orders) {
      (void)disk.on_finished({order.ticket, ok, ++generation, !ok, false});
    }
  }
  /// All of the memory that nobody has.
  void expect_nothing_left() {
    ground.store.cache.clear();
    EXPECT_EQ(free_dram(), kSlab * 8);
    EXPECT_EQ(free_hbm(), kSlab * 4);
  }

  DiskCache& disk = ground.disk;
  std::size_t writes_seen = 0, reads_seen = 0, reading = 0;
  std::uint64_t generation = 0;
};

}  // namespace kvd::core
