#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// The shapes of blocks that exist. Each is a class of slots in every pool, known as long as a
/// session or a slab has it. Domains share the table: none can fill it for others, and what others
/// have cached stays, however many shapes a domain asks for.
///
/// Owner: control thread. Cost: O(sessions + slabs) for a shape that is new to the domain.
class Classes {
 public:
  Classes(store::Store& store, Requests& requests) : store_(store), requests_(requests) {}

  /// The class for an engine of the domain. Cached blocks of the domain make way where they have
  /// shapes that none of its engines has. QuotaExceeded: its engines have its share of shapes;
  /// InvalidArgument as Tiers::add_class.
  [[nodiscard]] Result<ClassId> of(const ModelClass& shape, DomainId domain);
  /// The class of blocks that exist already.
  [[nodiscard]] Result<ClassId> of(const ModelClass& shape);
  /// None when the class is not known.
  [[nodiscard]] std::optional<ModelClass> shape(ClassId model_class) const;
  /// Empty slabs remember their class; where there are many classes, those that nobody uses are
  /// forgotten.
  void forget_unused();

 private:
  /// The classes that engines of each domain use.
  [[nodiscard]] std::map<DomainId, std::set<ClassId>> in_use() const;
  /// The shapes in which the domain has slabs.
  [[nodiscard]] std::set<ClassId> with_slabs(DomainId domain) const;
  /// Forgets shapes that no session, and no slab of either tier, has any more.
  void forget();

  store::Store& store_;
  Requests& requests_;
  std::map<ModelClass, ClassId> classes_;
  std::uint32_t last_ = 0;
};

}  // namespace kvd::core
