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
  store::OutsideName name;  ///< none: there is no disk, or its name is not known yet
  bool awaited = false;   ///< the name comes later (DiskNamed); until then the disk cannot be used
  Bytes size{INT64_MAX};  ///< of all files together
  store::SecondTouch admission;
  Bytes writes_a_day{INT64_MAX};
  /// The longest that a request waits for what it needs from the disk.
  Nanoseconds patience{2'000'000'000};
};

/// Cached blocks on other machines.
struct RemoteConfig {
  store::OutsideName name;       ///< none: there is no remote store
  store::SecondTouch admission;  ///< which blocks are written there
  Bytes bytes_per_s{INT64_MAX};  ///< written there at most
};

/// What a Controller is made with. Quotas and tuning are only initial values: both change live.
struct Config {
  std::vector<pool::TierPool::Config> hbm;  ///< by device, at least one
  pool::TierPool::Config dram;
  pool::Quotas hbm_quotas;  ///< of each device
  pool::Quotas dram_quotas;
  store::Index::Config index;  ///< index of blocks that are found again
  DiskConfig disk;
  RemoteConfig remote;
  /// What engines may have retained (Hints).
  struct Retain {
    double share = 0.5;  ///< of the DRAM that a domain may have
    Nanoseconds most{600'000'000'000};
  } retain;
  /// The shell writes down for the next daemon what is cached in DRAM, and what only HBM has.
  struct Keep {
    bool dram = false;
    bool hbm = false;  ///< only with `dram`
  } keep;
  Tuning tuning;
  const planner::Catalogue* policies = &planner::stock_policies();  ///< outlives the Controller
  Nanoseconds step_timeout{5'000'000'000};
  /// A silent engine is to end after others have waited this long for what it holds; 0: never.
  Nanoseconds evict_after{0};
  /// When no request of a domain has made progress for this long, its latest one ends; zero: never.
  Nanoseconds standstill_after{60'000'000'000};
  /// The most domains with engines at a time: each has a part of what is shared out for certain.
  std::uint32_t max_domains = 64;
  std::uint32_t max_requests_per_engine = 1024;
  std::uint32_t max_requests_per_domain = 8192;
  /// The most blocks of ended requests, counted per layer group, that one event gives up; later
  /// events go on with the rest. A thousand prompts may end at once, and the control thread has
  /// others to serve.
  std::uint32_t max_given_up = 8192;
  /// Block tables are made only for shells whose engines read them: those of the simulator do not.
  bool publish_tables = true;
  bool validate_each_event = false;  ///< tests: abort on a broken invariant after every event
};

}  // namespace kvd::core
