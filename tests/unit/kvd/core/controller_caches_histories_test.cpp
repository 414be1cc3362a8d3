// Engines that place by themselves, at random: they store, load, park, drop, hint, free regions and
// parts of spaces under copies and die under them, beside a disk that fails. No byte is ever
// another's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "tests/unit/kvd/core/byte_node.hpp"

namespace kvd::test {
namespace {

using Op = CacheBlocks::Op;
using State = SetTicket::State;

constexpr std::uint32_t kSeeds = 40;  ///< digests; each domain's bytes are its own

/// Engines that know what each of their blocks is to hold.
class History {
 public:
  explicit History(std::uint64_t seed, bool corrupt = false) : random_(seed), corrupt_(corrupt) {
    if (seed % 2 == 0) node_.disk.grain = 4, node_.disk.grains = 5;
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure() && errors == 0; ++i) {
      one();
      node_.renew_all();
      if (below(4) == 0) node_.scrub_all();
      check();
    }
    for (auto& [id, engine] : engines_) node_.feed(Detach{id});
    engines_.clear();
    while (!node_.copies.empty() || node_.disk.under_way() > 0) {
      node_.finish_all();
      node_.finish_disk();
    }
    node_.renew_all();
    node_.feed(ClearCache{});
    node_.scrub_all();
    EXPECT_EQ(node_.disk.wrong, 0u);
    const auto status = node_.controller->status(node_.now);
    reads = status.counters.prefixes.lower[core::kDiskTier].loads;
    prefetched = status.retained.prefetched_bytes;
    EXPECT_EQ(status.tiers[0].free, status.tiers[0].capacity) << "HBM leaks";
    EXPECT_EQ(status.tiers[1].free, status.tiers[1].capacity) << "DRAM leaks";
  }

  std::size_t errors = 0;
  std::size_t loads = 0, stores = 0, refused = 0, deaths = 0, replaced = 0;
  std::uint64_t reads = 0;       ///< of blocks from disk
  std::uint64_t prefetched = 0;  ///< bytes that they brought

 private:
  struct Copying {
    bool load = false;
    bool park = false;
    std::vector<std::uint32_t> seeds, blocks;
    std::set<std::uint32_t> lost;  ///< blocks that lost a part of their memory meanwhile
  };
  struct Engine {
    DomainId domain;
    ByteNode::Leased region;
    CacheId cache;
    std::uint64_t last_ticket = 0;
    std::map<std::uint32_t, std::uint32_t> holds;  ///< block: what it was filled or loaded with
    std::set<std::uint32_t> busy;                  ///< blocks of copies under way
    std::map<std::uint64_t, Copying> open;
    std::set<std::uint32_t> parked;
  };

  std::uint32_t below(std::uint32_t most) { return static_cast<std::uint32_t>(random_() % most); }
  static std::uint32_t bytes_of(DomainId domain, std::uint32_t seed) {
    return domain.value * 1000 + seed;
  }

  void one() {
    const std::uint32_t what = below(100);
    if (engines_.empty() || (what < 4 && engines_.size() < 5)) return come();
    auto& [id, engine] =
        *std::next(engines_.begin(), below(static_cast<std::uint32_t>(engines_.size())));
    if (what < 34) return copy(id, engine, Op::kStore);
    if (what < 60) return copy(id, engine, Op::kLoad);
    if (what < 64) return drop(id, engine);
    if (what < 69) return hint(id, engine);
    if (what < 87) return finish();
    if (what < 92) return finish_disk();
    if (what < 93) return reopen(id, engine);
    if (what < 95) return replace_a_part(id, engine);
    if (what < 97) return go(id, below(2) == 0);
    node_.now += std::chrono::milliseconds(below(2));
    node_.feed(Tick{});
  }

  void come() {
    const DomainId domain(1 + below(2));
    const EngineId id = node_.attach(domain);
    const std::uint32_t slabs = 1 + below(2);
    const auto region = below(2) == 0 ? node_.lease(id, slabs) : node_.lease_in_parts(id, slabs);
    if (!region) return node_.feed(Detach{id});
    Engine engine;
    engine.domain = domain;
    take(id, engine, *region);
    engines_.emplace(id, std::move(engine));
  }

  // Memory comes zeroed, whoever had it before.
  void take(EngineId id, Engine& engine, const ByteNode::Leased& region) {
    engine.region = region;
    engine.cache = CacheId(ByteNode::value(node_.command(id, ByteNode::over(region))));
    engine.holds.clear();
    engine.busy.clear();
    for (std::uint32_t block = 0; block < region.slabs.size() * 4; ++block) {
      for (std::int64_t at = 0; at < ByteNode::kBlock; at += 97) {
        errors += node_.byte(region, block, at) == 0 ? 0u : 1u;
      }
    }
  }

  void copy(EngineId id, Engine& engine, Op op) {
    CacheBlocks asked{engine.cache, op, op == Op::kStore && below(4) == 0, 0, {}, {}};
    Copying copying{op == Op::kLoad, asked.park, {}, {}, {}};
    for (std::uint32_t block = 0; block < engine.region.slabs.size() * 4; ++block) {
      if (engine.busy.contains(block) || below(2) == 0) continue;
      const std::uint32_t seed = op == Op::kLoad ? known(id, engine) : below(kSeeds);
      if (op == Op::kStore) node_.fill(engine.region, block, bytes_of(engine.domain, seed));
      if (op == Op::kStore) engine.holds[block] = bytes_of(engine.domain, seed);
      copying.seeds.push_back(seed);
      copying.blocks.push_back(block);
    }
    if (copying.seeds.empty()) return;
    for (const std::uint32_t seed : copying.seeds) asked.digests.push_back(ByteNode::digest(seed));
    asked.blocks = copying.blocks;
    asked.ticket = ++engine.last_ticket;
    const auto reply = node_.command(id, asked);
    ASSERT_TRUE(reply.has_value()) << "answered at once";
    if (ByteNode::code(reply) != ErrorCode::kOk) {
      ++refused;
      return;
    }
    engine.busy.insert(copying.blocks.begin(), copying.blocks.end());
    engine.open.emplace(asked.ticket, std::move(copying));
    settle();
  }

  /// One that is there, mostly.
  std::uint32_t known(EngineId id, const Engine& engine) {
    for (int i = 0; i < 20; ++i) {
      const std::uint32_t seed = below(kSeeds);
      CacheBlocks asked{engine.cache, Op::kLookup, false, 0, {ByteNode::digest(seed)}, {}};
      if (ByteNode::value(node_.command(id, asked)) == 1) return seed;
    }
    return below(kSeeds);
  }

  void hint(EngineId id, const Engine& engine) {
    constexpr Op kHints[] = {Op::kRetain, Op::kPin, Op::kUnpin, Op::kDemote, Op::kPrefetch};
    CacheBlocks asked{engine.cache, kHints[below(5)], false, 0, {}, {}};
    asked.retain = std::chrono::milliseconds(below(3));
    for (int i = 0; i < 3; ++i) asked.digests.push_back(ByteNode::digest(below(kSeeds)));
    const ErrorCode code = ByteNode::code(node_.command(id, asked));
    const bool may_refuse = asked.op == Op::kPin || asked.op == Op::kPrefetch;
    EXPECT_TRUE(code == ErrorCode::kOk || (may_refuse && code == ErrorCode::kQuotaExceeded));
  }

  void drop(EngineId id, const Engine& engine) {
    const std::uint32_t seed = below(kSeeds);
    CacheBlocks asked{engine.cache, Op::kDrop, false, 0, {ByteNode::digest(seed)}, {}};
    EXPECT_EQ(ByteNode::code(node_.command(id, asked)), ErrorCode::kOk);
    for (auto& [other, each] : engines_) {
      if (each.domain != engine.domain) continue;
      each.parked.erase(seed);
      for (auto& [ticket, copying] : each.open) {
        if (std::find(copying.seeds.begin(), copying.seeds.end(), seed) != copying.seeds.end()) {
          copying.park = false;
        }
      }
    }
  }

  void finish() {
    if (node_.copies.empty()) return;
    const std::uint32_t place = below(static_cast<std::uint32_t>(node_.copies.size()));
    if (corrupt_ && node_.copies[place].to_hbm) {
      store::BlockLayout off = *node_.copies[place].layout;
      off.pieces.front().offset += Bytes(1);
      node_.copies[place].layout = std::make_shared<const store::BlockLayout>(std::move(off));
    }
    node_.finish(place, below(12) != 0);
    settle();
  }

  void finish_disk() {
    node_.disk.fail_reads = node_.disk.fail_writes = 12;
    node_.finish_disk([&](std::size_t most) { return below(static_cast<std::uint32_t>(most)); },
                      1 + below(8));
    settle();
  }

  // What the page says of tickets, the engines act on.
  void settle() {
    for (auto& [id, engine] : engines_) {
      for (auto it = engine.open.begin(); it != engine.open.end();) {
        const State state = node_.state(id, it->first);
        if (state == State::kPending) {
          ++it;
          continue;
        }
        over(engine, it->second, state == State::kDone);
        it = engine.open.erase(it);
      }
    }
  }
  void over(Engine& engine, const Copying& copying, bool ok) {
    for (std::size_t i = 0; i < copying.blocks.size(); ++i) {
      engine.busy.erase(copying.blocks[i]);
      if (ok && copying.park) engine.parked.insert(copying.seeds[i]);
      if (!copying.load || copying.lost.contains(copying.blocks[i])) continue;
      engine.holds.erase(copying.blocks[i]);
      if (ok) engine.holds[copying.blocks[i]] = bytes_of(engine.domain, copying.seeds[i]);
    }
    loads += copying.load && ok ? 1 : 0;
    stores += !copying.load && ok ? 1 : 0;
  }

  // The region goes back, whatever copies are doing with it, and another one comes.
  void reopen(EngineId id, Engine& engine) {
    EXPECT_EQ(ByteNode::code(node_.command(id, CloseCache{engine.cache})), ErrorCode::kOk);
    node_.release(id, engine.region);
    for (auto& [ticket, copying] : engine.open) copying.blocks.clear(), copying.load = false;
    for (auto& [ticket, copying] : engine.open) copying.seeds.clear();
    node_.scrub_all();
    const auto region = below(2) == 0 ? node_.lease(id, 1) : node_.lease_in_parts(id, 1);
    if (!region) return go(id, true);
    take(id, engine, *region);
  }

  // One slab goes back, whatever copies are doing with it, and another one takes its place, zeroed.
  void replace_a_part(EngineId id, Engine& engine) {
    if (engine.region.parts.empty()) return;
    const std::uint32_t at = below(static_cast<std::uint32_t>(engine.region.parts.size()));
    node_.take_away(id, engine.region, at);
    std::set<std::uint32_t> gone;
    for (std::uint32_t block = 0; block < engine.region.slabs.size() * 4; ++block) {
      if (!ByteNode::touches(engine.region, block, at)) continue;
      gone.insert(block);
      engine.holds.erase(block);
      CacheBlocks asked{
          engine.cache, Op::kStore, false, ++engine.last_ticket, {ByteNode::digest(below(kSeeds))},
          {block}};
      EXPECT_EQ(ByteNode::code(node_.command(id, asked)), ErrorCode::kInvalidArgument);
    }
    // Copies go on with the old slab, which nobody else gets before they have ended, and with the
    // rest of these blocks.
    for (auto& [ticket, copying] : engine.open) copying.lost.insert(gone.begin(), gone.end());
    node_.scrub_all();
    if (!node_.put_back(id, engine.region, at)) return go(id, true);
    ++replaced;
    for (const std::uint32_t block : gone) {
      for (std::int64_t byte = 0; byte < ByteNode::kBlock; byte += 97) {
        const bool here = ByteNode::offset_of(engine.region, block, byte) / ByteNode::kSlab == at;
        errors += here && node_.byte(engine.region, block, byte) != 0 ? 1u : 0u;
      }
    }
  }
  void go(EngineId id, bool in_order) {
    engines_.erase(id);
    if (in_order) return node_.feed(Detach{id});
    ++deaths;
    node_.feed(Dying{id});
    if (below(2) == 0) finish();
    if (below(2) == 0) finish_disk();
    node_.feed(Dead{id});
  }

  // Every block that its engine may read is as it was written or loaded, and every parked block is
  // there.
  void check() {
    for (auto& [id, engine] : engines_) {
      for (const auto& [block, seed] : engine.holds) {
        const bool written =
            std::any_of(engine.open.begin(), engine.open.end(), [&, at = block](const auto& entry) {
              const auto& blocks = entry.second.blocks;
              return entry.second.load &&
                     std::find(blocks.begin(), blocks.end(), at) != blocks.end();
            });
        if (!written && !node_.holds(engine.region, block, seed)) ++errors;
      }
      for (const std::uint32_t seed : engine.parked) {
        CacheBlocks asked{engine.cache, Op::kLookup, false, 0, {ByteNode::digest(seed)}, {}};
        EXPECT_EQ(ByteNode::value(node_.command(id, asked)), 1u) << "parked, and not there";
      }
    }
  }

  static core::DiskConfig on_disk() {
    core::DiskConfig config;
    config.name = plain_disk_name;
    config.size = Bytes(5);
    return config;
  }

  ByteNode node_{6, 6, {}, on_disk()};
  std::mt19937_64 random_;
  bool corrupt_;
  std::map<EngineId, Engine> engines_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kUsual = 15;  // more than a second each
#else
constexpr std::uint64_t kUsual = 60;
#endif

std::uint64_t histories() {
  const char* wanted = std::getenv("KVD_HISTORIES");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : kUsual;
}

TEST(ControllerCaches, RandomHistoriesKeepEveryByte) {
  std::size_t loads = 0, stores = 0, refused = 0, deaths = 0, replaced = 0;
  std::uint64_t reads = 0, prefetched = 0;
  for (std::uint64_t seed = 1; seed <= histories(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History history(seed);
    history.run(400);
    ASSERT_EQ(history.errors, 0u);
    if (HasFailure()) return;
    loads += history.loads;
    stores += history.stores;
    refused += history.refused;
    deaths += history.deaths;
    replaced += history.replaced;
    reads += history.reads;
    prefetched += history.prefetched;
  }
  EXPECT_GT(loads, 10 * histories()) << "they are to load, not to be refused";
  EXPECT_GT(stores, 10 * histories());
  EXPECT_GT(refused, 0u);
  EXPECT_GT(deaths, 0u);
  EXPECT_GT(replaced, 0u);
  EXPECT_GT(reads, histories());
  EXPECT_GT(prefetched, 0u);
}

TEST(ControllerCaches, RandomHistoriesNoticeACopyThatIsAByteOff) {
  std::size_t noticed = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    History history(seed, true);
    history.run(400);
    noticed += history.errors > 0 ? 1 : 0;
  }
  EXPECT_EQ(noticed, 20u);
}

}  // namespace
}  // namespace kvd::test
