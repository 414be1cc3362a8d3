#pragma once

#include <utility>

#include "kvd/core/budget.hpp"
#include "kvd/core/cache_copies.hpp"
#include "kvd/core/classes.hpp"
#include "kvd/core/context.hpp"
#include "kvd/core/disk_cache.hpp"
#include "kvd/core/drains.hpp"
#include "kvd/core/engine_caches.hpp"
#include "kvd/core/keeping.hpp"
#include "kvd/core/knowledge.hpp"
#include "kvd/core/lateness.hpp"
#include "kvd/core/prefixes.hpp"
#include "kvd/core/region_copies.hpp"
#include "kvd/core/request_memory.hpp"
#include "kvd/core/requests.hpp"
#include "kvd/core/serving_order.hpp"
#include "kvd/core/spaces.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What all parts of the Controller stand on. They are made with it and keep what they use.
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
        drains(context, requests, memory) {}

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

}  // namespace kvd::core
