#pragma once

#include <cstdint>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/pool/tier_pool.hpp"
#include "kvd/store/index/disk_admission.hpp"
#include "kvd/store/index/index.hpp"
#include "kvd/store/memory/key.hpp"

namespace kvd::core {

/// Cached blocks on disk.
struct DiskConfig {
  store::OutsideName name;  ///< none: there is no disk, or none yet
  bool awaited = false;     ///< it is told later (DiskNamed): the disk cannot be used yet
  Bytes size{INT64_MAX};    ///< of all files together
  store::SecondTouch admission;
  Bytes writes_a_day{INT64_MAX};
  /// A request waits no longer for what it needs of the disk.
  Nanoseconds patience{2'000'000'000};
};

/// What a Controller is made with. Quotas and tuning are only where it starts: both change live.
struct Config {
  std::vector<pool::TierPool::Config> hbm;  ///< by device, at least one
  pool::TierPool::Config dram;
  pool::Quotas hbm_quotas;  ///< of each device
  pool::Quotas dram_quotas;
  store::Index::Config index;  ///< of blocks that are found again
  DiskConfig disk;
  /// The shell writes down what is cached, for the next daemon: what DRAM has, and what HBM alone
  /// has.
  struct Keep {
    bool dram = false;
    bool hbm = false;  ///< not without DRAM
  } keep;
  Tuning tuning;
  Nanoseconds step_timeout{5'000'000'000};
  /// A silent engine is to end after others have waited this long for what it holds; 0: never.
  Nanoseconds evict_after{0};
  /// Where nobody of a domain gets on for so long, its latest request ends; zero: never.
  Nanoseconds standstill_after{60'000'000'000};
  /// Domains that may have engines at a time: each has a part of what is shared out for certain.
  std::uint32_t max_domains = 64;
  std::uint32_t max_requests_per_engine = 1024;
  std::uint32_t max_requests_per_domain = 8192;
  /// Blocks of ended requests, each layer group's, that one event gives up; the next ones go on
  /// with the rest. A thousand prompts may end at once, and the control thread has others to serve.
  std::uint32_t max_given_up = 8192;
  /// Block tables are made only for shells whose engines read them: the simulator's do not.
  bool publish_tables = true;
  /// The shell says of every request how long its answer will be (Submit::predicted).
  bool oracle = false;
  bool validate_each_event = false;  ///< tests: abort on a broken invariant after every event
};

}  // namespace kvd::core
