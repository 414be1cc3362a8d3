#include "tests/lab/bench/store_disk_bench.hpp"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/tiers/disk/disk_tier.hpp"
#include "tests/lab/bench/floors/raw_uring.hpp"

namespace kvd::bench {
namespace {

using namespace kvd::disk;

// A block of 2 MiB in eight layer groups.
constexpr std::uint32_t kGroups = 8;
constexpr Bytes kGroup = 256 * kKiB;
constexpr Bytes kBlock = kGroup * kGroups;
constexpr std::uint32_t kDepth = 16;
constexpr std::uint32_t kAsked = 2 * kDepth;  // as many wait as are under way
constexpr Nanoseconds kDiskPatience = std::chrono::seconds(60);

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "kvd-bench store: %s\n", why.c_str());
  std::exit(1);
}

/// Memory that begins at a multiple of 4 KiB.
class DiskMemory {
 public:
  explicit DiskMemory(std::size_t size)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, size))), size_(size) {
    std::mt19937_64 random(1);
    for (std::size_t at = 0; at < size; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(memory_.get() + at, &word, sizeof word);
    }
  }
  [[nodiscard]] std::span<std::byte> all() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_;
};

/// A tier full of blocks, in one segment.
class DiskWork {
 public:
  DiskWork(const std::string& folder, std::uint32_t blocks, SumFunction sum)
      : memory_(kAsked * kBlock.size()), tier_(open(folder, blocks, sum)), generations_(blocks) {
    tier_->add_slab(memory_.all());
    each_block([this](std::uint32_t block, std::size_t place) {
      auto groups = groups_of(place);
      const auto generation = tier_->store(
          {Ticket(place + 1), DiskSlot(block), {}, {groups.begin(), groups.end()}, kDiskPatience});
      if (!generation.ok()) give_up(generation.error().message);
      generations_[block] = *generation;
    });
  }

  void load_all() {
    each_block([this](std::uint32_t block, std::size_t place) {
      const Status taken = tier_->load({Ticket(place + 1),
                                        DiskSlot(block),
                                        generations_[block],
                                        {},
                                        0,
                                        groups_of(place),
                                        kDiskPatience});
      if (!taken.ok()) give_up(taken.error().message);
    });
  }

  [[nodiscard]] const Layout& layout() const { return tier_->layout(); }
  [[nodiscard]] DiskStatus status() const { return tier_->status(); }

 private:
  static std::unique_ptr<DiskTier> open(const std::string& folder, std::uint32_t blocks,
                                        SumFunction sum) {
    DiskOptions options;
    options.folder = folder;
    options.shape = {{}, kGroups, kGroup};
    options.segment = kSector + (kSector + kBlock) * std::int64_t{blocks};
    options.capacity = options.segment;
    options.depth = kDepth;
    options.sum = sum;
    auto tier = DiskTier::open(options, std::make_shared<SteadyClock>());
    if (!tier.ok()) give_up(tier.error().message);
    return std::move(*tier);
  }

  std::vector<std::span<std::byte>> groups_of(std::size_t place) const {
    std::vector<std::span<std::byte>> groups;
    for (std::uint32_t group = 0; group < kGroups; ++group) {
      groups.push_back(
          memory_.all().subspan(place * kBlock.size() + group * kGroup.size(), kGroup.size()));
    }
    return groups;
  }

  /// Asks for every block in turn, kAsked at a time.
  template <class Ask>
  void each_block(Ask ask) {
    const auto blocks = static_cast<std::uint32_t>(generations_.size());
    std::uint32_t next = 0, done = 0;
    for (; next < std::min(blocks, kAsked); ++next) ask(next, next);
    std::vector<Completion> completions;
    while (done < blocks) {
      pollfd event{tier_->completion_fd(), POLLIN, 0};
      ::poll(&event, 1, 1000);
      completions.clear();
      tier_->poll(completions);
      for (const Completion& completion : completions) {
        if (completion.fault != Fault::kNone) give_up(std::string(name(completion.fault)));
        ++done;
        if (next < blocks) ask(next++, completion.ticket.value - 1);
      }
    }
  }

  DiskMemory memory_;  // outlives the tier
  std::unique_ptr<DiskTier> tier_;
  std::vector<SlotGeneration> generations_;
};

/// A folder of the benchmark's own, removed at the end.
class DiskBenchFolder {
 public:
  explicit DiskBenchFolder(const Arguments& arguments) {
    const auto flag = std::find(arguments.rest.begin(), arguments.rest.end(), "--disk-folder");
    const bool given = flag != arguments.rest.end() && flag + 1 != arguments.rest.end();
    path_ = (given ? std::filesystem::path(*(flag + 1)) : std::filesystem::temp_directory_path()) /
            "kvd-bench-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) give_up("no folder can be made at " + path_);
  }
  ~DiskBenchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DiskBenchFolder(const DiskBenchFolder&) = delete;
  DiskBenchFolder& operator=(const DiskBenchFolder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

GroupSum no_sum(std::span<const std::byte>) { return {}; }

template <class Work>
double gigabytes_a_second(std::uint32_t blocks, Work work) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  work();
  return static_cast<double>(kBlock.value) * blocks / to_seconds(clock.now() - start) / 1e9;
}

}  // namespace

std::vector<Row> disk_rows(const Arguments& arguments) {
  const double mib = arguments.number("--disk-mib", 256);
  const double passes = arguments.number("--disk-repetitions", 9);
  if (mib < 2 || mib > 1e6 || passes < 1 || passes > 1e6) {
    give_up("--disk-mib is 2 to 1000000, --disk-repetitions 1 to 1000000");
  }
  // Two files of each kind, with those without checksums between those with them: where on a disk a
  // file lies changes how fast it is read.
  const auto blocks = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(mib / 4));
  const int repetitions = static_cast<int>(passes);
  const DiskBenchFolder folder(arguments);
  DiskWork first(folder.file("sums-1"), blocks, group_sum);
  DiskWork first_without(folder.file("none-1"), blocks, no_sum);
  DiskWork last_without(folder.file("none-2"), blocks, no_sum);
  DiskWork last(folder.file("sums-2"), blocks, group_sum);
  std::fprintf(stderr, "disk tier: %s%s\n", first.status().io.c_str(),
               first.status().direct ? ", direct" : "");
  // One read of the tier brings a header and the payload.
  const std::size_t length = first.layout().slot_bytes().size();
  DiskMemory memory(kDepth * length);
  RawUring raw_first(folder.file("sums-1/segment-0000"), memory.all(), length);
  RawUring raw_last(folder.file("sums-2/segment-0000"), memory.all(), length);
  std::vector<std::uint64_t> offsets;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    offsets.push_back(first.layout().header_offset(DiskSlot(block)).size());
  }
  const auto rate = [&](auto one, auto other) {
    return [=] {
      return gigabytes_a_second(2 * blocks, [&] {
        one();
        other();
      });
    };
  };
  const auto verified = rate([&] { first.load_all(); }, [&] { last.load_all(); });
  const auto raw = rate([&] { raw_first.read(offsets); }, [&] { raw_last.read(offsets); });
  const auto without = rate([&] { first_without.load_all(); }, [&] { last_without.load_all(); });
  return {interleaved("disk_load", "GB/s", repetitions, verified, raw),
          interleaved("verify", "GB/s", repetitions, verified, without)};
}

}  // namespace kvd::bench
