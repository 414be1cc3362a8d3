#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/pool/ledger.hpp"
#include "kvd/pool/quota.hpp"
#include "kvd/pool/slab.hpp"
#include "kvd/pool/slot_state.hpp"

namespace kvd::pool {

/// Slabs by their number.
using Positions = std::vector<std::uint32_t>;

/// The slabs of a tier and their slots, the classes that divide them, and all that is summed up and
/// listed about them. Every change goes through here, so that sums and lists are always in step.
/// Knows no quotas and decides nothing.
/// Source: kvd/DESIGN.md "Words" (slab, slot, class).
/// Owner:  control thread.
/// Errors: a call that breaks a state rule is a bug and aborts.
/// Cost:   O(log slabs) where a slot becomes free or is taken; other changes of slots O(1).
class SlabBook {
 public:
  struct Class {
    Bytes slot_bytes;
    std::uint32_t slots_per_slab = 0;
  };
  /// Free slots and number of each slab that has any: the fullest slab first.
  using Room = std::set<std::pair<std::uint32_t, std::uint32_t>>;

  /// `first`: the number of the first slab; the others follow.
  explicit SlabBook(SlabCapacity capacity, SlabIndex first = {})
      : capacity_(capacity), first_(first.value), slabs_(capacity.slabs), ledger_(slabs_) {}

  [[nodiscard]] SlabCapacity capacity() const { return capacity_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  [[nodiscard]] const std::vector<Slab>& slabs() const { return slabs_; }
  [[nodiscard]] const Slab& at(SlabIndex index) const {
    const std::uint32_t at = index.value - first_;  // a smaller number wraps, and is too large
    KVD_CHECK(at < slabs_.size(), "no such slab in the tier");
    return slabs_[at];
  }
  /// Numbers of the first slab, and of the one that would follow the last.
  [[nodiscard]] std::uint32_t begin() const { return first_; }
  [[nodiscard]] std::uint32_t end() const { return first_ + capacity_.slabs; }

  /// Errors: InvalidArgument if the slot does not fit a slab, a slab would hold too many, or the
  ///         class is known with another size.
  [[nodiscard]] Status add_class(ClassId model_class, Bytes slot_bytes);
  /// False when a slab has the class.
  bool remove_class(ClassId model_class);
  [[nodiscard]] const Class& class_of(ClassId model_class) const;

  /// Slabs of the class and domain with free slots that do not retire.
  [[nodiscard]] const Room& room(ClassId model_class, DomainId domain) const;
  /// The domain's slabs of other classes that nothing is in, ascending.
  [[nodiscard]] Positions empty_foreign(ClassId model_class, DomainId domain) const;

  /// Changes a slab that is not divided into slots, or fields that do not decide how its slots are
  /// listed.
  template <class Change>
  void change(SlabIndex index, Change&& apply) {
    Slab& slab = writable(index);
    ledger_.remove(slab);
    std::forward<Change>(apply)(slab);
    ledger_.add(slab);
  }
  /// Divides the slab into slots of the class.
  void assign(SlabIndex index, ClassId model_class, DomainId domain);
  /// The slab belongs to nobody now, and is dirty.
  void unassign(SlabIndex index);
  void retire(SlabIndex index);
  void unretire(SlabIndex index);
  /// The slab came into its class for the engine. None: the engine has had its chance.
  void await(SlabIndex index, EngineId engine) { writable(index).awaited_by = engine; }

  /// free -> filling, at most `wanted` slots of the slab, which are appended to `slots`.
  void take(SlabIndex index, std::uint32_t wanted, std::vector<SlotId>& slots);
  /// Neighbours; none of them becomes free.
  void move(SlabIndex index, SlotRun run, SlotStates from, SlotState to) {
    writable(index).slots.move(run, from, to);
  }
  /// Several slots of one slab become free.
  void free(SlabIndex index, Slots slots, SlotStates from);

  /// Empty, or what does not add up.
  [[nodiscard]] std::string validate() const;

 private:
  [[nodiscard]] Slab& writable(SlabIndex index) { return const_cast<Slab&>(at(index)); }
  /// Keeps room_ in step when a class slab has another number of free slots than before.
  void relist(SlabIndex index, std::uint32_t free_before);
  void unlist(SlabIndex index);
  [[nodiscard]] std::string validate_slab(const Slab& slab) const;
  [[nodiscard]] std::string validate_room() const;

  SlabCapacity capacity_;
  std::uint32_t first_;
  std::map<ClassId, Class> classes_;
  std::vector<Slab> slabs_;
  std::map<std::pair<ClassId, DomainId>, Room> room_;
  Ledger ledger_;
};

}  // namespace kvd::pool
