#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvd/tiers/remote/remote_tier.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::remote {

inline disk::Digest digest_of(std::uint64_t number) {
  disk::Digest digest{};
  std::mt19937_64 random(number);
  for (auto& byte : digest) byte = static_cast<std::uint8_t>(random());
  return digest;
}

/// A block's memory.
class Memory {
 public:
  explicit Memory(const disk::ClassShape& shape) : bytes_(shape.groups) {
    for (auto& group : bytes_) group.resize(shape.group_bytes.size(), std::byte{0x77});
  }
  Memory(const disk::ClassShape& shape, std::uint64_t seed) : Memory(shape) {
    std::mt19937_64 random(seed);
    for (auto& group : bytes_) {
      for (auto& byte : group) byte = static_cast<std::byte>(random());
    }
  }
  [[nodiscard]] Groups groups() {
    Groups all;
    for (auto& group : bytes_) all.emplace_back(group);
    return all;
  }
  [[nodiscard]] ConstGroups whole() const {
    ConstGroups all;
    for (const auto& group : bytes_) all.emplace_back(group);
    return all;
  }
  friend bool operator==(const Memory&, const Memory&) = default;

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

/// A tier asked for one thing at a time, or for many at once. Seeds name blocks: block `seed` has
/// the key and the bytes of that seed. Its time passes only where a test waits for a server to go
/// or come, so that no server is late because the machine is busy.
class RemoteWorld {
 public:
  explicit RemoteWorld(std::vector<std::string> servers, std::string password = {},
                       const std::shared_ptr<const Clock>& clock = nullptr) {
    RemoteOptions options;
    options.servers = std::move(servers);
    options.password = std::move(password);
    options.ttl = std::chrono::seconds(100);
    tier_ = RemoteTier::open(options, clock ? clock : time).value();
  }

  const std::shared_ptr<ManualClock> time =
      std::make_shared<ManualClock>(TimePoint(std::chrono::hours(1)));
  /// The clock goes on while a request is waited for, at most at a quarter of the real pace.
  bool time_passes = false;
  disk::ClassShape shape{digest_of(7), 3, Bytes(70'000)};
  std::uint64_t domain = 1;
  Nanoseconds patience = std::chrono::seconds(20);

  [[nodiscard]] RemoteTier& tier() { return *tier_; }
  [[nodiscard]] disk::BlockKey key(std::uint64_t seed) const {
    return {digest_of(domain), digest_of(1000 * domain + seed)};
  }

  disk::Fault put(std::uint64_t seed) {
    const Memory memory(shape, seed);
    tier_->put({next(), shape, key(seed), memory.whole(), patience});
    return end_of(last_).fault;
  }
  /// After kNone the bytes are those of the seed.
  disk::Fault get(std::uint64_t seed) {
    Memory memory(shape);
    tier_->get({next(), shape, key(seed), memory.groups(), patience});
    const disk::Fault fault = end_of(last_).fault;
    if (fault == disk::Fault::kNone) {
      EXPECT_EQ(memory, Memory(shape, seed));
    }
    return fault;
  }
  std::vector<bool> find(const std::vector<std::uint64_t>& seeds) {
    std::vector<disk::Digest> digests;
    digests.reserve(seeds.size());
    for (const std::uint64_t seed : seeds) digests.push_back(key(seed).digest);
    tier_->find({next(), shape, digests, patience});
    return end_of(last_).there;
  }
  /// Whether the condition holds before kPatience is over, while time passes.
  template <class Condition>
  bool wait_until(Condition condition) {
    return test::poll_until([&] {
      if (condition()) return true;
      time->advance(std::chrono::milliseconds(1));
      return false;
    });
  }
  /// Waits until all servers are on, or all are off.
  bool wait_for(bool on) {
    return wait_until([&] {
      for (const ServerStatus& status : tier_->status()) {
        if (status.on != on) return false;
      }
      return true;
    });
  }
  [[nodiscard]] ServerStatus status() const { return tier_->status().front(); }

  Ticket next() { return last_ = Ticket(last_.value + 1); }
  Completion end_of(Ticket ticket) {
    const auto until = std::chrono::steady_clock::now() + test::kPatience;
    while (!ended_.contains(ticket)) {
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "no completion";
        return {ticket, disk::Fault::kBusy, {}};
      }
      pollfd event{tier_->completion_fd(), POLLIN, 0};
      (void)::poll(&event, 1, time_passes ? 1 : 1000);
      if (time_passes) time->advance(std::chrono::microseconds(250));
      std::vector<Completion> completions;
      tier_->poll(completions, changes);
      for (Completion& each : completions) ended_.emplace(each.ticket, std::move(each));
    }
    return ended_.extract(ticket).mapped();
  }
  std::vector<Change> changes;

 private:
  std::unique_ptr<RemoteTier> tier_;
  Ticket last_;
  std::map<Ticket, Completion> ended_;
};

}  // namespace kvd::remote
