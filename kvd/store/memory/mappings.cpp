#include "kvd/store/memory/mappings.hpp"

namespace kvd::store {

void Mappings::engine_came(EngineId engine) {
  const std::uint32_t slabs = hbm_.slabs();
  engines_[engine] = {pool::SlabSet(slabs, false), pool::SlabSet(slabs, false), false};
}

const pool::SlabSet* Mappings::of(EngineId engine) const {
  const auto found = engines_.find(engine);
  return found == engines_.end() ? nullptr : &found->second.mapped;
}

Mappings::Known* Mappings::known(EngineId engine, SlabIndex slab) {
  const auto found = engines_.find(engine);
  const bool is_known = found != engines_.end() && slab.value < found->second.sent.size();
  return is_known ? &found->second : nullptr;
}

void Mappings::send(EngineId engine, const std::vector<SlabIndex>& slabs) {
  Known& maps = engines_.at(engine);
  maps.awaits = !slabs.empty();
  for (const SlabIndex slab : slabs) {
    if (maps.sent[slab.value]) continue;
    maps.sent[slab.value] = true;
    hbm_.with(slab).set_mapped(slab, engine, true);
    orders_.add(SendSlab{engine, slab, RegionId(0), 0, 0});
  }
}

bool Mappings::awaited_by(EngineId engine) const {
  const auto found = engines_.find(engine);
  return found != engines_.end() && found->second.awaits;
}

bool Mappings::mapped(EngineId engine, SlabIndex slab) {
  Known* maps = known(engine, slab);
  if (maps == nullptr || !maps->sent[slab.value]) return false;
  maps->mapped[slab.value] = true;
  return true;
}

void Mappings::end_awaiting_mapped(EngineId engine) {
  const pool::SlabSet* mapped = of(engine);
  if (mapped == nullptr) return;
  for (std::uint32_t slab = 0; slab < hbm_.slabs(); ++slab) {
    if (!(*mapped)[slab] && hbm_.with(SlabIndex(slab)).awaited(SlabIndex(slab), engine)) return;
  }
  stop_awaiting(engine);
}

bool Mappings::unmapped(EngineId engine, SlabIndex slab) {
  Known* maps = known(engine, slab);
  // Only an answer to a request of ours counts, because slots may be granted in memory that is
  // still mapped.
  if (maps == nullptr || !maps->sent[slab.value] || maps->mapped[slab.value]) return false;
  maps->sent[slab.value] = false;
  hbm_.with(slab).set_mapped(slab, engine, false);
  return true;
}

void Mappings::unsent(EngineId engine, SlabIndex slab, bool region) {
  Known* maps = known(engine, slab);
  if (maps == nullptr || (region && maps->sent[slab.value])) return;
  maps->sent[slab.value] = maps->mapped[slab.value] = false;
  hbm_.with(slab).set_mapped(slab, engine, false);  // the next grant of slots there sends it anew
}

void Mappings::region_unmapped(EngineId engine, SlabIndex slab) {
  const Known* maps = known(engine, slab);
  if (maps == nullptr || !maps->sent[slab.value]) hbm_.with(slab).set_mapped(slab, engine, false);
}

void Mappings::ask_back(const std::vector<SlabIndex>& slabs) {
  for (const SlabIndex slab : slabs) {
    for (auto& [engine, maps] : engines_) {
      if (maps.mapped[slab.value]) orders_.add(AskUnmap{engine, slab});
      maps.mapped[slab.value] = false;
    }
  }
}

void Mappings::forget(EngineId engine) {
  for (std::uint32_t slab = 0; slab < hbm_.slabs(); ++slab) {
    hbm_.with(SlabIndex(slab)).set_mapped(SlabIndex(slab), engine, false);
  }
  stop_awaiting(engine);
}

}  // namespace kvd::store
