#include <algorithm>
#include <map>

#include "kvd/store/index/index.hpp"

namespace kvd::store {
namespace {

std::string fault(EntryId id, const std::string& what) {
  return "entry " + std::to_string(id.value) + ": " + what;
}

/// What a walk finds: the entries of a parent, or of a space, and how many each tier has.
struct Family {
  std::uint32_t children = 0;
  std::array<std::uint32_t, kCacheTiers> in{};
};

}  // namespace

std::string Index::fault_of(EntryId id, const Entry& entry) const {
  if (entry.space.value > spaces_.size() || !spaces_[entry.space.value - 1]) {
    return fault(id, "is of a space that is closed");
  }
  if (!entry.anywhere() && entry.leases == 0 && entry.children == 0) {
    return fault(id, "is known for nothing");
  }
  const DigestTable& table = space(entry.space).table;
  std::uint64_t probes = 0;
  const auto same = [&](EntryId other) { return at(other).digest == entry.digest; };
  if (table.find(table.hash(entry.digest), same, probes) != id) {
    return fault(id, "is not what the table finds under its digest");
  }
  if (entry.parent && (!entries_.live(entry.parent) || at(entry.parent).space != entry.space)) {
    return fault(id, "has a parent that is not in its space");
  }
  if (entry.next && (!entries_.live(entry.next) || at(entry.next).parent != id)) {
    return fault(id, "was followed by a block that is not its child");
  }
  if (entry.retained != retained_.contains(id) || (entry.retained && !entry.in(CacheTier::kDram))) {
    return fault(id, "is retained, and has no time until which, or is not in DRAM");
  }
  if (entry.demoted && (entry.retained || !entry.in(CacheTier::kDram))) {
    return fault(id, "is demoted, and retained as well, or not in DRAM");
  }
  for (std::size_t t = 0; t < kCacheTiers; ++t) {
    if (policies_[t]->may(id) != entry.may_leave(static_cast<CacheTier>(t))) {
      return fault(id, "may leave a tier, and the tier's policy says otherwise, or the reverse");
    }
  }
  return {};
}

std::string Index::fault_of_counts() const {
  std::map<EntryId, Family> families;
  std::map<SpaceId, Family> walked;
  std::array<std::size_t, kCacheTiers> may{};
  Bytes retained;
  entries_.each([&](EntryId, const Entry& entry) {
    if (entry.retained) retained += space(entry.space).retained;
    Family& family = families[entry.parent];
    Family& space = walked[entry.space];
    ++family.children;
    ++space.children;
    for (std::size_t t = 0; t < kCacheTiers; ++t) {
      const auto tier = static_cast<CacheTier>(t);
      family.in[t] += entry.in(tier);
      space.in[t] += entry.in(tier);
      may[t] += entry.may_leave(tier);
    }
  });
  std::string found;
  entries_.each([&](EntryId id, const Entry& entry) {
    const Family& family = families[id];
    if (family.children != entry.children || family.in != entry.children_in) {
      found = fault(id, "counts its children wrong");
    }
  });
  for (const auto& [key, id] : ids_) {
    if (space(id).in != walked[id].in) found = "a space counts its blocks in a tier wrong";
    if (space(id).table.size() != walked[id].children) found = "a table counts its entries wrong";
  }
  for (std::size_t t = 0; t < kCacheTiers; ++t) {
    if (policies_[t]->size() != may[t]) found = "a policy counts those that may leave wrong";
  }
  if (retained != retained_bytes_) found = "the bytes of retained blocks are counted wrong";
  return found;
}

std::string Index::validate() const {
  std::string found;
  entries_.each([&](EntryId id, const Entry& entry) {
    if (found.empty()) found = fault_of(id, entry);
  });
  return found.empty() ? fault_of_counts() : found;
}

}  // namespace kvd::store
