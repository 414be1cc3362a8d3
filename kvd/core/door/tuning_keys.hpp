#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/tuning.hpp"

namespace kvd::core {

/// A field of Tuning.
template <class T>
struct TuningField {
  T& (*in)(Tuning&);
  const T& (*of)(const Tuning&);
};

/// One number, size, text or truth value of Tuning that users set. Everything that reads, writes,
/// checks or shows one goes by this table: files, flags and variables (kvd/daemon/config), REST and
/// its description (kvd/admin), metrics. The goals of Tuning::slo have tables of their own, and
/// what Tuning has besides only comparisons set (kvd-sim). Source: kvd/DESIGN.md "What operators
/// see and change". Owner: constant.
struct TuningKey {
  using Field = std::variant<TuningField<std::string>, TuningField<double>, TuningField<bool>,
                             TuningField<std::optional<Bytes>>>;
  std::string_view path;  ///< "rotation.alpha": the table, then the key in it
  std::string_view help;  ///< what it is, on one line
  std::string_view when;  ///< when to set it
  Field field;
  double least = 0, most = 0;                   ///< of a number, or of bytes
  std::span<const std::string_view> choices{};  ///< of a text; empty: the table's policies

  [[nodiscard]] std::string_view table() const { return path.substr(0, path.find('.')); }
  [[nodiscard]] std::string_view name() const { return path.substr(path.find('.') + 1); }
};

/// In the order of documents. Keys of one table stand together.
[[nodiscard]] std::span<const TuningKey> tuning_keys();

/// What a text may be. Precondition: the key's field is a text.
[[nodiscard]] std::span<const std::string_view> choices_of(const TuningKey& key,
                                                           const planner::Catalogue& policies);

}  // namespace kvd::core
