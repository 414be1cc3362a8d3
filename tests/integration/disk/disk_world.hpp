#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvd/tiers/disk/disk_tier.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::disk {

/// How a tier reaches its files, and whether its layer groups fill sectors.
struct Way {
  const char* name;
  bool io_uring;
  Bytes group_bytes;
};
inline const Way kRingDirect{"RingDirect", true, Bytes(8192)};
inline const Way kRingBuffered{"RingBuffered", true, Bytes(5000)};
inline const Way kPoolDirect{"PoolDirect", false, Bytes(8192)};
inline const Way kPoolBuffered{"PoolBuffered", false, Bytes(5000)};
inline const auto kWays = ::testing::Values(kRingDirect, kRingBuffered, kPoolDirect, kPoolBuffered);

inline Digest digest_of(std::uint64_t number) {
  Digest digest{};
  std::mt19937_64 random(number);
  for (auto& byte : digest) byte = static_cast<std::uint8_t>(random());
  return digest;
}

inline BlockKey key_of(std::uint64_t number, std::uint64_t domain = 1) {
  return {digest_of(domain), digest_of(1000 + number)};
}

/// A block's memory: its layer groups, each from a multiple of 4 KiB.
class BlockMemory {
 public:
  explicit BlockMemory(const ClassShape& shape) : shape_(shape) {
    stride_ = (shape.group_bytes.size() + 4095) / 4096 * 4096;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, stride_ * shape.groups)));
    std::memset(memory_.get(), 0x77, stride_ * shape.groups);
  }
  /// The bytes of block `seed`, which no other seed has.
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto bytes = slab();
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
  }
  [[nodiscard]] std::span<std::byte> group(std::uint32_t g) const {
    return {memory_.get() + g * stride_, shape_.group_bytes.size()};
  }
  [[nodiscard]] std::vector<std::span<std::byte>> groups(std::uint32_t first,
                                                         std::uint32_t count) const {
    std::vector<std::span<std::byte>> spans;
    for (std::uint32_t g = first; g < first + count; ++g) spans.push_back(group(g));
    return spans;
  }
  [[nodiscard]] std::vector<std::span<const std::byte>> all() const {
    std::vector<std::span<const std::byte>> spans;
    for (std::uint32_t g = 0; g < shape_.groups; ++g) spans.emplace_back(group(g));
    return spans;
  }
  [[nodiscard]] std::span<std::byte> slab() const {
    return {memory_.get(), stride_ * shape_.groups};
  }
  [[nodiscard]] bool same(const BlockMemory& other, std::uint32_t first,
                          std::uint32_t count) const {
    for (std::uint32_t g = first; g < first + count; ++g) {
      if (std::memcmp(group(g).data(), other.group(g).data(), group(g).size()) != 0) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  ClassShape shape_;
  std::size_t stride_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

/// A tier in a folder of its own, asked for one thing at a time. Seeds name blocks: block `seed`
/// has the key and the bytes of that seed.
class DiskWorld {
 public:
  explicit DiskWorld(const Way& way, std::uint32_t groups = 3) {
    options_.folder = runtime_.file("tier");
    options_.shape = {digest_of(7), groups, way.group_bytes};
    options_.segment = 256 * kKiB;
    options_.capacity = 512 * kKiB;
    options_.floor = Bytes(0);
    options_.io_uring = way.io_uring;
    options_.threads = 3;
  }

  DiskOptions& options() { return options_; }
  DiskTier& tier() { return *tier_; }
  [[nodiscard]] std::string segment(std::uint32_t number) const {
    return options_.folder + "/segment-000" + std::to_string(number);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return runtime_.file(name); }

  ErrorCode try_open() {
    auto opened = DiskTier::open(options_, clock_);
    if (!opened.ok()) {
      message_ = opened.error().message;
      return opened.error().code;
    }
    tier_ = std::move(*opened);
    return ErrorCode::kOk;
  }
  void open() { ASSERT_EQ(try_open(), ErrorCode::kOk) << message_; }
  void close() { tier_.reset(); }
  void reopen() {
    close();
    open();
  }
  void use(std::shared_ptr<const Clock> clock) { clock_ = std::move(clock); }
  [[nodiscard]] const std::string& message() const { return message_; }

  Ticket next_ticket() { return Ticket(++last_ticket_); }

  /// The next completion of the ticket; others are kept for their turn.
  Completion wait(Ticket ticket) {
    for (;;) {
      const auto found = std::find_if(completions_.begin(), completions_.end(),
                                      [&](const auto& one) { return one.ticket == ticket; });
      if (found != completions_.end()) {
        Completion completion = std::move(*found);
        completions_.erase(found);
        return completion;
      }
      pollfd event{tier_->completion_fd(), POLLIN, 0};
      KVD_CHECK(::poll(&event, 1, static_cast<int>(test::kPatience.count()) * 1000) == 1,
                "no completion came");
      tier_->poll(completions_);
    }
  }

  Store store_of(DiskSlot slot, std::uint64_t seed, const BlockMemory& memory) {
    return {next_ticket(), slot, key_of(seed), memory.all(), test::kPatience};
  }
  Load load_of(DiskSlot slot, SlotGeneration generation, std::uint64_t seed,
               const BlockMemory& memory) {
    return {next_ticket(),  slot, generation,
            key_of(seed),   0,    memory.groups(0, options_.shape.groups),
            test::kPatience};
  }

  /// Writes block `seed`; ends the test's expectations where that fails.
  SlotGeneration store(DiskSlot slot, std::uint64_t seed, Fault expected = Fault::kNone) {
    BlockMemory memory(options_.shape);
    memory.fill(seed);
    Store store = store_of(slot, seed, memory);
    const Ticket ticket = store.ticket;
    const auto generation = tier_->store(std::move(store));
    KVD_CHECK(generation.ok(), generation.error().message.c_str());
    EXPECT_EQ(wait(ticket).fault, expected);
    return *generation;
  }

  /// Reads layer groups of block `seed`, and checks the bytes that were handed out.
  Fault load(DiskSlot slot, SlotGeneration generation, std::uint64_t seed, std::uint32_t first = 0,
             std::optional<std::uint32_t> groups = {}) {
    BlockMemory memory(options_.shape), expected(options_.shape);
    expected.fill(seed);
    Load load = load_of(slot, generation, seed, memory);
    const std::uint32_t count = groups.value_or(options_.shape.groups);
    load.first_group = first;
    load.groups = memory.groups(first, count);
    const Ticket ticket = load.ticket;
    const Status taken = tier_->load(std::move(load));
    KVD_CHECK(taken.ok(), taken.error().message.c_str());
    const Fault fault = wait(ticket).fault;
    const bool right = fault != Fault::kNone || memory.same(expected, first, count);
    EXPECT_TRUE(right) << "wrong bytes";
    return fault;
  }

  /// What the headers of all slots say.
  std::vector<FoundBlock> scan() {
    std::vector<FoundBlock> found;
    for (std::uint32_t at = 0; at < tier_->slots(); at += kMaxScan) {
      const Scan scan{next_ticket(), DiskSlot(at), std::min(kMaxScan, tier_->slots() - at),
                      test::kPatience};
      KVD_CHECK(tier_->scan(scan).ok(), "a scan is taken");
      const Completion completion = wait(scan.ticket);
      EXPECT_EQ(completion.fault, Fault::kNone);
      found.insert(found.end(), completion.found.begin(), completion.found.end());
    }
    return found;
  }

  std::uint64_t faults(Fault fault) {
    return tier_->status().faults[static_cast<std::size_t>(fault)];
  }

  /// Bytes of a segment file, behind the tier's back.
  std::vector<std::byte> read_file(std::uint32_t number, Bytes offset, std::size_t size) const {
    std::vector<std::byte> bytes(size);
    const UniqueFd file(::open(segment(number).c_str(), O_RDONLY | O_CLOEXEC));
    KVD_CHECK(::pread(file.get(), bytes.data(), size, offset.value) == std::ssize(bytes),
              "a segment is read");
    return bytes;
  }
  void write_file(std::uint32_t number, Bytes offset, std::span<const std::byte> bytes) const {
    const UniqueFd file(::open(segment(number).c_str(), O_WRONLY | O_CLOEXEC));
    KVD_CHECK(::pwrite(file.get(), bytes.data(), bytes.size(), offset.value) == std::ssize(bytes),
              "a segment is written");
  }
  void flip(std::uint32_t number, Bytes offset) const {
    auto byte = read_file(number, offset, 1);
    byte[0] ^= std::byte{0x10};
    write_file(number, offset, byte);
  }

 private:
  test::RuntimeFolder runtime_;
  DiskOptions options_;
  std::shared_ptr<const Clock> clock_ = std::make_shared<SteadyClock>();
  std::unique_ptr<DiskTier> tier_;
  std::string message_;
  std::vector<Completion> completions_;
  std::uint64_t last_ticket_ = 0;
};

/// KVD_TEST_SEED repeats a random test.
inline std::uint64_t random_seed() {
  const char* given = std::getenv("KVD_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// The suite that every way runs.
class EveryWay : public ::testing::TestWithParam<Way> {
 protected:
  /// Opens the world's tier; skips where the machine forbids the way.
  void SetUp() override {
    world_.open();
    if (HasFatalFailure()) return;
    const DiskStatus status = world_.tier().status();
    if (GetParam().io_uring && status.io != "io_uring") GTEST_SKIP() << status.io_reason;
    EXPECT_EQ(status.io, GetParam().io_uring ? "io_uring" : "threads");
  }
  DiskWorld world_{GetParam()};
};

inline std::string name_of_way(const ::testing::TestParamInfo<Way>& info) {
  return info.param.name;
}

}  // namespace kvd::disk
