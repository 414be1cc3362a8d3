#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/layer_mark.hpp"
#include "kernels/device/host/host_backend.hpp"
#include "kvd/mover/mover.hpp"
#include "tests/contract/device/device_fixture.hpp"
#include "tests/support/faulty/faulty_backend.hpp"

namespace kvd::mover {

/// What an engine's page would hold.
struct Words {
  std::atomic<std::uint64_t> progress{0};
  std::atomic<std::uint64_t> wanted{0};
  std::atomic<std::uint64_t> fence{0};
  std::atomic<std::uint64_t> h2d{0};
  [[nodiscard]] LayerWords layer() { return {&progress, &wanted, &fence}; }
};

/// A mover over a real host pool of one slab a tier. Its device misbehaves when told to.
class MoverWorld {
 public:
  static constexpr Bytes kSlot = kKiB * 16;
  static constexpr std::uint32_t kSlots = 256;

  explicit MoverWorld(kernels::FaultScript script = {}, Bytes burst = kKiB * 32) {
    backend = kernels::FaultyBackend::create(kernels::HostBackend::create(host(), clock).value(),
                                             std::move(script))
                  .value();
    const SlabStore::Size size{kMiB * 4, 1};
    slabs = std::make_unique<SlabStore>(SlabStore::create(*backend, size, size, {}).value());
    BurstLimits limits;
    limits.least = burst;
    limits.most = burst;
    mover = std::make_unique<Mover>(*backend, *slabs, limits);
  }

  static SlotId slot(std::uint32_t index) { return {SlabIndex(0), index}; }
  std::span<std::byte> bytes(Tier tier, std::uint32_t index) const {
    return {reinterpret_cast<std::byte*>(slabs->address(tier, slot(index), kSlot)), kSlot.size()};
  }
  /// Slot n of DRAM gets pattern n, slots of HBM are zeroed.
  void fill() {
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      kernels::fill_pattern(bytes(Tier::kDram, i), i);
      std::memset(bytes(Tier::kHbm, i).data(), 0, kSlot.size());
    }
  }
  [[nodiscard]] bool holds(std::uint32_t hbm, std::uint32_t dram) const {
    return std::memcmp(bytes(Tier::kHbm, hbm).data(), bytes(Tier::kDram, dram).data(),
                       kSlot.size()) == 0;
  }

  /// Slots [hbm, hbm + count) from or to [dram, dram + count).
  static std::vector<core::CopySlots::Pair> pairs(std::uint32_t hbm, std::uint32_t dram,
                                                  std::uint32_t count) {
    std::vector<core::CopySlots::Pair> out;
    for (std::uint32_t i = 0; i < count; ++i) out.push_back({slot(hbm + i), slot(dram + i)});
    return out;
  }
  static core::CopySlots copy(std::uint64_t ticket, bool to_hbm, std::uint32_t hbm,
                              std::uint32_t dram, std::uint32_t count, bool background = false) {
    return {Ticket(ticket), EngineId(1), to_hbm, kSlot, pairs(hbm, dram, count), background};
  }
  static core::StreamLayers stream(std::uint64_t ticket, std::uint64_t iteration,
                                   std::uint32_t groups,
                                   std::vector<core::StreamLayers::Fetch> fetches,
                                   EngineId engine = EngineId(1)) {
    return {Ticket(ticket), engine, iteration, groups, kSlot, std::move(fetches)};
  }

  void poll() { mover->poll(finished); }
  /// Polls until it holds; no test passes by the deadline.
  template <class Condition>
  [[nodiscard]] bool until(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (poll(); !condition(); poll()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      pollfd wait{backend->completion_fd(), POLLIN, 0};
      ::poll(&wait, 1, 1);
    }
    return true;
  }
  [[nodiscard]] bool until_finished(std::size_t count) {
    return until([&] { return finished.size() >= count; });
  }
  /// Lets held bursts go one by one until nothing is left.
  void let_all_go() {
    for (poll(); backend->step(); poll()) {
      const auto before = backend->counters();
      ASSERT_TRUE(until([&] {
        const auto now = backend->counters();
        return now.batches_completed[0] + now.batches_completed[1] >
               before.batches_completed[0] + before.batches_completed[1];
      }));
    }
  }
  [[nodiscard]] std::vector<std::uint64_t> order() const {
    std::vector<std::uint64_t> out;
    for (const core::CopyFinished& done : finished) out.push_back(done.ticket.value);
    return out;
  }

  SteadyClock clock;
  std::unique_ptr<kernels::FaultyBackend> backend;
  std::unique_ptr<SlabStore> slabs;
  std::unique_ptr<Mover> mover;
  std::vector<core::CopyFinished> finished;

 private:
  static kernels::HostConfig host() {
    kernels::HostConfig config;
    config.pages = kernels::PagePreference::kSmall;
    config.populate_threads = 1;
    return config;
  }
};

}  // namespace kvd::mover
