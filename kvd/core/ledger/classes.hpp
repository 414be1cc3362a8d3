#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// The shapes of blocks that there are. Each is a class of slots in every pool, known as long as a
/// session or a slab has it. Domains share the table: nobody fills it for others, and what others
/// have cached stays, whoever asks for how many shapes.
///
/// Owner: control thread. Cost: O(sessions + slabs) for a shape that is new to the domain.
class Classes {
 public:
  Classes(store::Store& store, Requests& requests) : store_(store), requests_(requests) {}

  /// For an engine of the domain. Of cached blocks in shapes that none of its engines has, its own
  /// make way. QuotaExceeded: its engines have its share of them; InvalidArgument as
  /// Tiers::add_class.
  [[nodiscard]] Result<ClassId> of(const ModelClass& shape, DomainId domain);
  /// The class of blocks that are there already.
  [[nodiscard]] Result<ClassId> of(const ModelClass& shape);
  /// None: it is not known.
  [[nodiscard]] std::optional<ModelClass> shape(ClassId model_class) const;
  /// Empty slabs remember their class; where there are many, what nobody uses need not.
  void forget_unused();

 private:
  /// The classes that engines of each domain use.
  [[nodiscard]] std::map<DomainId, std::set<ClassId>> in_use() const;
  /// Shapes in which the domain has slabs.
  [[nodiscard]] std::set<ClassId> with_slabs(DomainId domain) const;
  /// Forgets those that no session, and no slab of either tier, has any more.
  void forget();

  store::Store& store_;
  Requests& requests_;
  std::map<ModelClass, ClassId> classes_;
  std::uint32_t last_ = 0;
};

}  // namespace kvd::core
