// kvd-bench store: what finding and keeping cached blocks costs, beside hashing and a bare hash
// map; how fast they load from disk and DRAM, beside a bare io_uring and memcpy; and a restart.
#include <malloc.h>

#include <cstring>
#include <random>
#include <unordered_map>

#include "ipc/digest/block_chain.hpp"
#include "ipc/vocabulary/check.hpp"
#include "kvd/store/index/index.hpp"
#include "planner/solver/placement_solver.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/store_disk_bench.hpp"
#include "tests/lab/bench/store_dram_bench.hpp"
#include "tests/lab/bench/store_restart_bench.hpp"

namespace kvd::bench::store_benchmark {
namespace {

using store::CacheTier;
using store::EntryId;
using store::Index;
using store::Place;

constexpr const char* kHelp =
    R"(usage: kvd-bench store [--json] [--repetitions N] [--disk-repetitions N] [--disk-mib N]
                       [--disk-folder DIR] [--dram-repetitions N]
                       [--restart-repetitions N]

CPU time of the index of cached blocks while it has 1 M of them: 490 prompts of 32 K tokens, 2,048
blocks of 16 each, all different, in DRAM, under the default eviction policy. Each repetition takes
another prompt, so that its part of the index is not in the processor's caches.

  lookup_32k   us to hash a prompt of 32 K tokens and find its blocks, each leased
               floor: hashing it alone                                            limit: ratio 1.2
  index_put    ns a block to store a prompt's blocks and release them
               floor: std::unordered_map from digest to number, emplace             limit: ratio 3
  index_get    ns a block to find a prompt's blocks, each leased, and release them
               floor: the same map, find                                            limit: ratio 3
  index_bytes  bytes a block that the index has from malloc, tables and policies included
                                                                                limit: 128 bytes

Then GB/s of loads from the disk tier: blocks of 2 MiB in registered memory, 16 under way, every
byte verified.

  disk_load    floor: the same reads by a bare io_uring, nothing looked at        limit: ratio 0.8
  verify       floor: the same loads with sums left out                           limit: ratio 0.9

Then GB/s into an engine that places its blocks itself: 32 blocks of 2 MiB out of kvd's DRAM into its
region, from the call until the copy is known to be done; every byte is looked at afterwards.

  dram_load    floor: memcpy of the same bytes by the engine's thread            limit: ratio 0.8

And a restart: 10,000 blocks of 16 KiB are on disk, kvd (416 MiB of memory) is killed and started
again, its engine attaches again and asks for a prompt of 1,000 of them, all of which are found and
looked at.

  restart      s from the kill to the end of that request             limit: 1 s
  restart_dram the same where kvd-holder keeps DRAM and starts kvd, and there is no disk
  restart_hbm  the same where HBM alone has it
                                                                      limit: 1 s

  --repetitions N        of each row of the index, and of its floor in turn: 200
  --disk-repetitions N   the same of the disk's rows: 9
  --disk-mib N           bytes of each: 256
  --disk-folder DIR      whose disk is measured: the temporary folder
  --dram-repetitions N   25
  --restart-repetitions N  5
)";

constexpr std::size_t kPrompts = 490, kTokens = 32'768, kBlocks = kTokens / 16;
constexpr store::SecondsPerByte kSaved{1e-9};

struct DigestWord {
  std::size_t operator()(const Digest& digest) const {
    std::size_t word = 0;
    std::memcpy(&word, digest.bytes.data(), sizeof word);
    return word;
  }
};
using Map = std::unordered_map<Digest, std::uint32_t, DigestWord>;

std::vector<std::uint32_t> prompt(std::size_t number) {
  std::mt19937_64 random(number);
  std::vector<std::uint32_t> tokens(kTokens);
  for (auto& token : tokens) token = static_cast<std::uint32_t>(random() % 150'000);
  return tokens;
}

/// CPU seconds of this thread.
template <class Work>
double seconds(Work work) {
  const planner::ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  work();
  return to_seconds(clock.now() - begin);
}

/// An index of 1 M blocks, and a hash map of the same blocks.
class StoreWorld {
 public:
  StoreWorld() {
    for (std::size_t i = 0; i < kPrompts; ++i) chains_.push_back(hashed(prompt(i)));
    const std::size_t before = allocated();
    space_ = index_.open({});
    for (const auto& chain : chains_) store(chain);
    bytes_ = static_cast<double>(allocated() - before) / static_cast<double>(index_.size());
    for (const auto& chain : chains_) put(chain);
    KVD_CHECK(index_.size() == kPrompts * kBlocks && map_.size() == index_.size(),
              "the index does not have the blocks of all prompts");
  }

  [[nodiscard]] double bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<Digest>& next_chain() { return chains_[next()]; }
  [[nodiscard]] std::size_t next() { return next_ = (next_ + 1) % kPrompts; }

  [[nodiscard]] std::vector<Digest> hashed(const std::vector<std::uint32_t>& tokens) {
    std::vector<Digest> chain;
    KVD_CHECK(hash_.extend(tokens, Tokens(16), {}, chain).ok(), "the prompt is not hashed");
    return chain;
  }
  [[nodiscard]] std::vector<EntryId> lookup(const std::vector<Digest>& chain) {
    return index_.lookup(space_, chain).blocks;
  }
  void release(const std::vector<EntryId>& blocks) {
    KVD_CHECK(blocks.size() == kBlocks, "a prompt is not found whole");
    index_.release(blocks);
  }
  void store(const std::vector<Digest>& chain) {
    std::vector<EntryId> blocks;
    blocks.reserve(chain.size());
    for (const Digest& digest : chain) {
      const EntryId parent = blocks.empty() ? EntryId() : blocks.back();
      const auto id = index_.insert({space_, parent, digest, kSaved});
      KVD_CHECK(id.ok() && index_.place(*id, CacheTier::kDram, Place(++places_)), "not stored");
      blocks.push_back(*id);
    }
    index_.release(blocks);
  }
  void remove(const std::vector<Digest>& chain) {
    const std::vector<EntryId> blocks = lookup(chain);
    index_.release(blocks);
    for (auto id = blocks.rbegin(); id != blocks.rend(); ++id) {
      (void)index_.forget(*id, CacheTier::kDram);
    }
    for (const Digest& digest : chain) map_.erase(digest);
  }
  void put(const std::vector<Digest>& chain) {
    for (const Digest& digest : chain) map_.emplace(digest, static_cast<std::uint32_t>(++places_));
  }
  void get(const std::vector<Digest>& chain) {
    for (const Digest& digest : chain) sum_ += map_.find(digest)->second;
    KVD_CHECK(sum_ > 0, "the map has none");
  }

 private:
  static std::size_t allocated() {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }

  digest::BlockChain hash_;
  std::vector<std::vector<Digest>> chains_;
  Index index_{{.secret = {1, 2, 3, 4}}};
  store::SpaceId space_;
  Map map_;
  double bytes_ = 0;
  std::size_t next_ = 0;
  std::uint32_t places_ = 0;
  std::uint64_t sum_ = 0;
};

Row lookup_row(StoreWorld& world, int repetitions) {
  const auto value = [&] {
    const auto tokens = prompt(world.next());
    std::vector<EntryId> blocks;
    const double took = seconds([&] { blocks = world.lookup(world.hashed(tokens)); });
    world.release(blocks);
    return took * 1e6;
  };
  const auto floor = [&] {
    const auto tokens = prompt(world.next());
    return seconds([&] { (void)world.hashed(tokens); }) * 1e6;
  };
  return interleaved("lookup_32k", "us", repetitions, value, floor);
}

/// Nanoseconds a block for what `work` does to a prompt's blocks.
template <class Work>
double ns_a_block(Work work) {
  return seconds(work) * 1e9 / kBlocks;
}

Row put_row(StoreWorld& world, int repetitions) {
  const auto emptied = [&]() -> const std::vector<Digest>& {
    const auto& chain = world.next_chain();
    world.remove(chain);
    return chain;
  };
  const auto value = [&] {
    const auto& chain = emptied();
    const double took = ns_a_block([&] { world.store(chain); });
    world.put(chain);
    return took;
  };
  const auto floor = [&] {
    const auto& chain = emptied();
    const double took = ns_a_block([&] { world.put(chain); });
    world.store(chain);
    return took;
  };
  return interleaved("index_put", "ns", repetitions, value, floor);
}

Row get_row(StoreWorld& world, int repetitions) {
  return interleaved(
      "index_get", "ns", repetitions,
      [&] {
        const auto& chain = world.next_chain();
        return ns_a_block([&] { world.release(world.lookup(chain)); });
      },
      [&] {
        const auto& chain = world.next_chain();
        return ns_a_block([&] { world.get(chain); });
      });
}

std::vector<Row> index_rows(int repetitions) {
  StoreWorld world;
  return {lookup_row(world, repetitions), put_row(world, repetitions), get_row(world, repetitions),
          Row{"index_bytes", world.bytes(), {}, {}, "bytes"}};
}

int run(const Arguments& arguments) {
  const double repetitions = arguments.number("--repetitions", 200);
  if (repetitions < 1 || repetitions > 1e6) {
    std::fprintf(stderr, "kvd-bench store: --repetitions is 1 to 1000000\n");
    return 2;
  }
  std::vector<Row> rows = index_rows(static_cast<int>(repetitions));
  for (Row& row : disk_rows(arguments)) rows.push_back(std::move(row));
  rows.push_back(dram_load_row(arguments));
  rows.push_back(restart_row(arguments));
  rows.push_back(restart_kept_row(arguments, Tier::kDram));
  rows.push_back(restart_kept_row(arguments, Tier::kHbm));
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"store", "finding and keeping 1 M cached blocks, loads from disk; more: store --help", run,
     kHelp}};

}  // namespace
}  // namespace kvd::bench::store_benchmark
