#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "kvd/core/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// The shapes of blocks that there are. Each is a class of slots in every pool, known as long as a
/// session or a slab has it.
///
/// Owner: control thread.
class Classes {
 public:
  Classes(store::Store& store, Requests& requests) : store_(store), requests_(requests) {}

  /// QuotaExceeded: too many of them; InvalidArgument as Tiers::add_class.
  [[nodiscard]] Result<ClassId> of(const ModelClass& shape);
  /// None: it is not known.
  [[nodiscard]] std::optional<ModelClass> shape(ClassId model_class) const;
  /// Empty slabs remember their class; where there are many, what nobody uses need not.
  void forget_unused();

 private:
  /// Forgets those that no session, and no slab of either tier, has any more.
  void forget();

  store::Store& store_;
  Requests& requests_;
  std::map<ModelClass, ClassId> classes_;
  std::uint32_t last_ = 0;
};

}  // namespace kvd::core
