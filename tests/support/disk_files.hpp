#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/fnv.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"

namespace kvd::test {

/// A name for tests: as different as what it is made of, and secret to nobody.
inline Digest plain_disk_name(const std::string& domain, const Fingerprint& fingerprint,
                              const Digest& block) {
  Digest name;
  Fnv1a mixed;
  mixed.add_bytes(domain);
  for (std::size_t i = 0; i < name.bytes.size(); ++i) {
    mixed.add(fingerprint.digest.bytes[i]);
    mixed.add(block.bytes[i]);
    name.bytes[i] = static_cast<std::uint8_t>(block.bytes[i] ^ (mixed.value() >> 56));
  }
  return name;
}

/// Plays a disk that keeps blocks as the `Content` of each layer group. Nothing ends by itself.
/// `Memory` gives the content of a DRAM slot by [], like a map.
template <class Content, class Memory = std::map<SlotId, Content>>
class DiskFiles {
 public:
  explicit DiskFiles(std::uint32_t slots = 24) : slots_(slots) {}

  std::uint32_t fail_reads = 0;  ///< one in this many fails, by the numbers given; 0: none
  bool fail_late = false;        ///< reads that fail for now: the slot may still hold the block
  std::uint32_t fail_writes = 0;
  std::size_t wrong = 0;  ///< reads of a slot that holds something else: the directory is wrong

  /// By how many slots files grow and shrink, and how many such parts all classes have together; 0:
  /// files keep their first size.
  std::uint32_t grain = 0, grains = 0;

  void open(const core::OpenDisk& order) { opening_.push_back(order); }
  void resize(const core::ResizeDisk& order) { resizing_.push_back(order); }
  void close(const core::CloseDisk& order) { closing_.push_back(order.disk); }
  void write(const core::WriteDisk& order) { writes_.push_back(order); }
  void read(const core::ReadDisk& order) { reads_.push_back(order); }
  [[nodiscard]] std::size_t under_way() const { return writes_.size() + reads_.size(); }

  /// The events of all orders, or of those that `chance` picks. It is asked for a number below its
  /// argument.
  template <class Random, class Feed>
  void finish(Memory& dram, Random random, Feed feed, std::size_t most = SIZE_MAX) {
    for (const core::DiskId disk : std::exchange(closing_, {})) {
      feed(core::DiskClosed{disk});
      cut(disk, 0);  // what nobody has open makes way at once
    }
    for (const core::OpenDisk& order : std::exchange(opening_, {})) {
      const core::DiskOpened opened = carry_out(order);
      feed(opened);
      if (opened.slots > 0) feed(core::DiskFound{order.disk, {}, true});
    }
    for (const core::ResizeDisk& order : std::exchange(resizing_, {})) feed(carry_out(order));
    while (most-- > 0 && under_way() > 0) {
      const std::size_t pick = random(under_way());
      if (pick < reads_.size()) {
        const core::ReadDisk order = reads_[pick];
        reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(pick));
        feed(carry_out(order, dram, fail_reads > 0 && random(fail_reads) == 0));
      } else {
        const auto at = writes_.begin() + static_cast<std::ptrdiff_t>(pick - reads_.size());
        const core::WriteDisk order = *at;
        writes_.erase(at);
        feed(carry_out(order, dram, fail_writes > 0 && random(fail_writes) == 0));
      }
    }
  }

 private:
  struct Slot {
    Digest domain, name;
    std::uint64_t generation = 0;
    std::vector<Content> groups;
  };
  using Key = std::pair<core::DiskId, std::uint32_t>;

  [[nodiscard]] std::uint32_t free_grains() const {
    std::uint32_t taken = 0;
    for (const auto& [disk, count] : grains_) taken += count;
    return grains - std::min(grains, taken);
  }
  core::DiskOpened carry_out(const core::OpenDisk& order) {
    using Lack = core::DiskOpened::Lack;
    if (grain == 0) return {order.disk, slots_, Lack::kFiles, Bytes(0), Bytes(0)};
    if (!order.make) return {order.disk, 0, Lack::kMade, Bytes(0), Bytes(0)};
    if (free_grains() == 0) return {order.disk, 0, Lack::kRoom, Bytes(0), Bytes(0)};
    grains_[order.disk] = 1;
    return {order.disk, grain, Lack::kFiles, Bytes(1), Bytes(1)};
  }
  core::DiskResized carry_out(const core::ResizeDisk& order) {
    std::uint32_t& has = grains_[order.disk];
    const auto wanted = static_cast<std::uint32_t>(order.bytes.value);
    if (wanted < has) cut(order.disk, wanted);
    if (wanted > has) has += std::min(wanted - has, free_grains());
    return {order.disk, has * grain, Bytes(has)};
  }
  void cut(core::DiskId disk, std::uint32_t left) {
    grains_[disk] = left;
    std::erase_if(files_, [&](const auto& file) {
      return file.first.first == disk && file.first.second >= left * grain;
    });
  }

  core::DiskFinished carry_out(const core::WriteDisk& order, Memory& dram, bool fails) {
    Slot& slot = files_[{order.block.disk, order.block.slot}];
    slot = {};
    if (fails) return {order.ticket, false, 0, true, false};
    slot = {order.block.domain, order.block.name, ++generation_, {}};
    for (const SlotId from : order.block.dram) slot.groups.push_back(dram[from]);
    return {order.ticket, true, slot.generation, false, false};
  }

  core::DiskFinished carry_out(const core::ReadDisk& order, Memory& dram, bool fails) {
    const Slot& slot = files_[{order.block.disk, order.block.slot}];
    const bool right = slot.domain == order.block.domain && slot.name == order.block.name &&
                       slot.generation == order.generation;
    if (!right) ++wrong;
    if (fails || !right) return {order.ticket, false, 0, !fail_late, false};
    for (std::size_t group = 0; group < slot.groups.size(); ++group) {
      dram[order.block.dram[group]] = slot.groups[group];
    }
    return {order.ticket, true, 0, false, false};
  }

  std::uint32_t slots_;
  std::vector<core::OpenDisk> opening_;
  std::vector<core::ResizeDisk> resizing_;
  std::vector<core::DiskId> closing_;
  std::map<core::DiskId, std::uint32_t> grains_;
  std::vector<core::WriteDisk> writes_;
  std::vector<core::ReadDisk> reads_;
  std::map<Key, Slot> files_;
  std::uint64_t generation_ = 0;
};

}  // namespace kvd::test
