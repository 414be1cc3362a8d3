#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kvd/core/controller.hpp"
#include "tests/support/disk_files.hpp"

namespace kvd::test {

using namespace kvd::core;  // NOLINT(google-build-using-namespace): test support of this namespace

/// A shell around the Controller whose memory is real bytes, for engines that place their blocks
/// themselves. Copies end when the test says so, in any order, well or not.
class ByteNode {
 public:
  static constexpr std::int64_t kSlab = 16384;
  static constexpr std::int64_t kBlock = 4096;  ///< so there are 4 of them in a slab of DRAM
  static constexpr std::int64_t kFirst = 3000;  ///< bytes of a block's first piece

  explicit ByteNode(std::uint32_t hbm_slabs = 8, std::uint32_t dram_slabs = 4,
                    pool::Quotas dram_quotas = {}, core::DiskConfig disk_config = {},
                    core::RemoteConfig remote_config = {})
      : hbm_(hbm_slabs * kSlab), dram_(dram_slabs * kSlab) {
    Controller::Config config;
    config.disk = std::move(disk_config);
    config.remote = std::move(remote_config);
    config.hbm = {{Tier::kHbm, Bytes(kSlab), hbm_slabs}};
    config.dram = {Tier::kDram, Bytes(kSlab), dram_slabs};
    config.dram_quotas = std::move(dram_quotas);
    config.validate_each_event = true;
    auto made = Controller::create(std::move(config));
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().to_string());
    controller = std::move(made).value();
  }

  struct Leased {
    RegionId id;  ///< number of the region or the space
    std::vector<SlabIndex> slabs;
    std::vector<RegionId> parts;  ///< only of a space: the regions at its positions
  };

  EngineId attach(DomainId domain = DomainId(1)) {
    Attach attach;
    attach.name = "engine";
    attach.domain = domain;
    attach.domain_name = std::to_string(domain.value);
    auto grant = controller->attach(attach, now);
    EXPECT_TRUE(grant.ok()) << (grant.ok() ? "" : grant.error().to_string());
    return grant->engine;
  }

  template <class Body>
  std::optional<Reply> command(EngineId engine, Body body) {
    reply_.reset();
    feed(Command{engine, ReplyTo(++last_reply_to_), now + std::chrono::seconds(1), body});
    return std::exchange(reply_, std::nullopt);
  }
  static ErrorCode code(const std::optional<Reply>& reply) {
    if (!reply) return ErrorCode::kWouldBlock;
    const Error* error = std::get_if<Error>(&reply->body);
    return error ? error->code : ErrorCode::kOk;
  }
  static std::uint64_t value(const std::optional<Reply>& reply) {
    const ValueReply* found = reply ? std::get_if<ValueReply>(&reply->body) : nullptr;
    EXPECT_NE(found, nullptr) << (reply && code(reply) != ErrorCode::kOk
                                      ? std::get<Error>(reply->body).to_string()
                                      : "no answer");
    return found ? found->value : 0;
  }

  /// None: the answer is a refusal, or it would have to wait.
  std::optional<Leased> lease(EngineId engine, std::int64_t slabs) {
    sent_.clear();
    const auto reply = command(engine, AllocateRegion{Bytes(slabs * kSlab)});
    const auto* granted = reply ? std::get_if<RegionReply>(&reply->body) : nullptr;
    if (granted == nullptr) return std::nullopt;
    return Leased{granted->region, sent_, {}};
  }
  /// A space, with a region of its own behind each of its positions.
  std::optional<Leased> lease_in_parts(EngineId engine, std::uint32_t slabs) {
    Leased leased;
    leased.id = RegionId(value(command(engine, OpenSpace{slabs})));
    leased.slabs.resize(slabs);
    leased.parts.resize(slabs);
    for (std::uint32_t position = slabs; position-- > 0;) {
      if (!put_back(engine, leased, position)) return release(engine, leased), std::nullopt;
    }
    return leased;
  }
  /// False: there is no room.
  bool put_back(EngineId engine, Leased& leased, std::uint32_t position) {
    const auto region = lease(engine, 1);
    if (!region) return false;
    EXPECT_EQ(value(command(engine, PlaceRegion{leased.id, region->id, {position}})), 1u);
    leased.slabs[position] = region->slabs.front();
    leased.parts[position] = region->id;
    return true;
  }
  void take_away(EngineId engine, Leased& leased, std::uint32_t position) {
    const RegionId part = std::exchange(leased.parts[position], RegionId());
    if (!part) return;
    EXPECT_EQ(code(command(engine, ReleaseRegion{part})), ErrorCode::kOk);
  }
  void release(EngineId engine, Leased& leased) {
    if (leased.parts.empty()) {
      EXPECT_EQ(code(command(engine, ReleaseRegion{leased.id})), ErrorCode::kOk);
      return;
    }
    for (std::uint32_t at = 0; at < leased.parts.size(); ++at) take_away(engine, leased, at);
    EXPECT_EQ(code(command(engine, CloseSpace{leased.id})), ErrorCode::kOk);
  }
  /// Whether some of the block lies at the position.
  static bool touches(const Leased& region, std::uint32_t block, std::uint32_t position) {
    for (std::int64_t at = 0; at < kBlock; ++at) {
      if (offset_of(region, block, at) / kSlab == position) return true;
    }
    return false;
  }
  /// Two pieces a block, the second halves behind all first ones, so that blocks cross slabs.
  static OpenCache over(const Leased& region, const char* model = "m") {
    OpenCache open = nowhere(model);
    open.region = region.id;
    open.blocks = std::ssize(region.slabs) * kSlab / kBlock;
    open.pieces = {{Bytes(0), Bytes(kFirst), Bytes(kFirst)},
                   {Bytes(kFirst * open.blocks), Bytes(kBlock - kFirst), Bytes(kBlock - kFirst)}};
    return open;
  }
  static OpenCache nowhere(const char* model = "m") {
    OpenCache open;
    open.fingerprint.digest.bytes[0] = static_cast<std::uint8_t>(model[0]);
    open.block_bytes = Bytes(kBlock);
    open.block_tokens = 16;
    return open;
  }

  /// Byte `at` of a block of the region, as over() lays it out.
  std::uint8_t& byte(const Leased& region, std::uint32_t block, std::int64_t at) {
    const std::int64_t from = offset_of(region, block, at);
    const SlabIndex slab = region.slabs[static_cast<std::size_t>(from / kSlab)];
    return hbm_[static_cast<std::size_t>(slab.value * kSlab + from % kSlab)];
  }
  static std::int64_t offset_of(const Leased& region, std::uint32_t block, std::int64_t at) {
    const std::int64_t blocks = std::ssize(region.slabs) * kSlab / kBlock;
    return at < kFirst ? block * kFirst + at
                       : blocks * kFirst + block * (kBlock - kFirst) + (at - kFirst);
  }
  void fill(const Leased& region, std::uint32_t block, std::uint32_t seed) {
    for (std::int64_t at = 0; at < kBlock; ++at) byte(region, block, at) = pattern(seed, at);
  }
  [[nodiscard]] bool holds(const Leased& region, std::uint32_t block, std::uint32_t seed) {
    for (std::int64_t at = 0; at < kBlock; ++at) {
      if (byte(region, block, at) != pattern(seed, at)) return false;
    }
    return true;
  }
  static std::uint8_t pattern(std::uint32_t seed, std::int64_t at) {
    const auto mixed = (seed + 1) * 2654435761u + static_cast<std::uint32_t>(at) * 40503u;
    return static_cast<std::uint8_t>(mixed >> 13);
  }
  static Digest digest(std::uint32_t seed) {
    Digest made;
    for (std::size_t i = 0; i < 4; ++i) made.bytes[i] = static_cast<std::uint8_t>(seed >> (8 * i));
    made.bytes[31] = 1;
    return made;
  }

  /// The bytes of a slot in DRAM, as a disk reads and writes them.
  struct DramSlot {
    std::uint8_t* bytes;
    operator std::vector<std::uint8_t>() const {  // NOLINT(google-explicit-constructor)
      return {bytes, bytes + kBlock};
    }
    void operator=(const std::vector<std::uint8_t>& content) const {
      std::copy(content.begin(), content.end(), bytes);
    }
  };
  struct Dram {
    std::vector<std::uint8_t>& all;
    DramSlot operator[](SlotId slot) const {
      return {&all[static_cast<std::size_t>(slot.slab().value * kSlab + slot.index() * kBlock)]};
    }
  };
  /// Does at most `most` of the disk's orders, as `random` picks.
  template <class Random>
  void finish_disk(Random random, std::size_t most = SIZE_MAX) {
    Dram dram{dram_};
    disk.finish(
        dram, random, [&](const Event& event) { feed(event); }, most);
  }
  /// All of it, in order.
  void finish_disk() {
    finish_disk([](std::size_t) { return 0u; });
  }

  /// Ends the copy with this number among those under way, or all of them, with their zeroing.
  void finish(std::size_t place, bool ok = true) {
    CopyRanges copy = copies[place];
    copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(place));
    const bool drop = dropped.erase(copy.ticket) > 0;
    if (drop) copy.blocks.resize(copy.blocks.size() / 2);
    Bytes bytes;
    for (const CopyRanges::Block& block : copy.blocks) {
      bytes += Bytes(kBlock);
      if (ok) carry_out(copy, block);
    }
    feed(CopyFinished{copy.ticket, ok && !drop, bytes, std::chrono::milliseconds(1), drop});
  }
  void finish_all() {
    while (!copies.empty()) finish(0);
    scrub_all();
  }
  void scrub_all() {
    while (!scrubs_.empty()) {
      const Scrub scrub = scrubs_.back();
      scrubs_.pop_back();
      std::vector<std::uint8_t>& memory = scrub.tier == Tier::kHbm ? hbm_ : dram_;
      for (const SlabIndex slab : scrub.slabs) {
        std::fill_n(memory.begin() + slab.value * kSlab, kSlab, std::uint8_t{0});
      }
      for (const SlotId slot : scrub.slots) {
        const std::int64_t from = slot.slab().value * kSlab + slot.index() * scrub.slot_bytes.value;
        std::fill_n(memory.begin() + from, scrub.slot_bytes.value, std::uint8_t{0});
      }
      feed(CopyFinished{scrub.ticket, true, Bytes(kSlab), std::chrono::milliseconds(1)});
    }
  }
  [[nodiscard]] SetTicket::State state(EngineId engine, std::uint64_t ticket) const {
    return tickets.at({engine, ticket});
  }

  void feed(const Event& event) {
    std::vector<Effect> effects;
    controller->on(event, now, effects);
    for (const Effect& effect : effects) {
      std::visit([&](const auto& e) { take(e); }, effect);
    }
  }

  std::unique_ptr<Controller> controller;
  std::vector<FindRemote> finds;   ///< that nobody has answered
  std::vector<CopyRanges> copies;  ///< under way
  std::set<Ticket> dropped;        ///< how many of these get no further than half way
  DiskFiles<std::vector<std::uint8_t>, Dram> disk;
  std::map<std::pair<EngineId, std::uint64_t>, SetTicket::State> tickets;
  TimePoint now{1};

 private:
  void carry_out(const CopyRanges& copy, const CopyRanges::Block& block) {
    copy.layout->each_range(
        block.block, [&](std::size_t position, Bytes offset, Bytes at, Bytes bytes) {
          const SlabIndex slab = copy.layout->slabs[position];
          const auto hbm = hbm_.begin() + slab.value * kSlab + offset.value;
          const auto dram = dram_.begin() + block.slot.slab().value * kSlab +
                            block.slot.index() * copy.slot_bytes.value + at.value;
          if (copy.to_hbm) {
            std::copy_n(dram, bytes.value, hbm);
          } else {
            std::copy_n(hbm, bytes.value, dram);
          }
        });
  }
  void take(const Reply& reply) { reply_ = reply; }
  void take(const CopyRanges& copy) { copies.push_back(copy); }
  void take(const DropCopy& drop) { dropped.insert(drop.ticket); }
  void take(const SetTicket& ticket) { tickets[{ticket.engine, ticket.number}] = ticket.state; }
  void take(const Scrub& scrub) { scrubs_.push_back(scrub); }
  void take(const SendSlab& slab) { sent_.push_back(slab.slab); }
  void take(const RenewSlab& renew) {
    std::fill_n(hbm_.begin() + renew.slab.value * kSlab, kSlab, std::uint8_t{0});
    renewed_.push_back(renew.slab);
  }
  void take(const OpenDisk& order) { disk.open(order); }
  void take(const ResizeDisk& order) { disk.resize(order); }
  void take(const CloseDisk& order) { disk.close(order); }
  void take(const WriteDisk& order) { disk.write(order); }
  void take(const ReadDisk& order) { disk.read(order); }
  void take(const FindRemote& order) { finds.push_back(order); }
  void take(const Note&) {}
  void take(const ForgetKept&) {}  // nothing is written down
  template <class Other>
  void take(const Other&) {
    FAIL() << "nothing else is asked for here";
  }

 public:
  /// New memory for slabs that change domain, where it was asked for.
  void renew_all() {
    for (const SlabIndex slab : std::exchange(renewed_, {})) feed(SlabRenewed{slab});
  }

 private:
  std::vector<std::uint8_t> hbm_, dram_;
  std::vector<Scrub> scrubs_;
  std::vector<SlabIndex> sent_;
  std::vector<SlabIndex> renewed_;
  std::optional<Reply> reply_;
  std::uint64_t last_reply_to_ = 0;
};

}  // namespace kvd::test
