#pragma once

#include <utility>

#include "kvd/core/cache/cache_copies.hpp"
#include "kvd/core/cache/disk_cache.hpp"
#include "kvd/core/cache/engine_caches.hpp"
#include "kvd/core/cache/keeping.hpp"
#include "kvd/core/cache/prefixes.hpp"
#include "kvd/core/ledger/budget.hpp"
#include "kvd/core/ledger/classes.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"
#include "kvd/core/ledger/lateness.hpp"
#include "kvd/core/ledger/region_copies.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/core/ledger/serving_order.hpp"
#include "kvd/core/ledger/spaces.hpp"
#include "kvd/core/moves/drains.hpp"
#include "kvd/core/moves/request_memory.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What all parts of the Controller stand on. The parts are made with it, and keep those members of
/// it that they use.
struct Ground {
  explicit Ground(Config config)
      : context(std::move(config)),
        store({context.config.hbm, context.config.dram, context.config.hbm_quotas,
               context.config.dram_quotas},
              context.config.index, {&context.config.hbm_quotas, &context.config.dram_quotas},
              context.orders),
        requests(context.config.max_domains),
        classes(store, requests),
        region_copies(store),
        spaces(context, store, requests),
        lateness(context, requests),
        knowledge(context, requests),
        line(context, requests, knowledge),
        budget(context, knowledge),
        cache_copies(context, store, budget),
        disk(context, store, requests, knowledge),
        engine_caches(context, store, requests, classes, region_copies, disk),
        keeping(context, store, classes),
        prefixes(context, store, requests, knowledge, disk),
        memory(store, requests, lateness, prefixes, context.config.max_given_up),
        drains(context, requests, memory, disk, cache_copies) {}

  Context context;
  store::Store store;
  Requests requests;
  Classes classes;
  RegionCopies region_copies;
  Spaces spaces;
  Lateness lateness;
  Knowledge knowledge;
  ServingOrder line;
  Budget budget;
  CacheCopies cache_copies;
  DiskCache disk;
  EngineCaches engine_caches;
  Keeping keeping;
  Prefixes prefixes;
  RequestMemory memory;
  Drains drains;
};

/// The members of the ground that nearly every part uses.
class Part {
 protected:
  explicit Part(Ground& ground)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        memory_(ground.memory) {}

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  RequestMemory& memory_;
};

}  // namespace kvd::core
