#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/ctl/cells.hpp"

namespace kvd::ctl {

/// Which engines, requests or events of a document a person wants to see.
struct Choice {
  std::optional<std::uint64_t> engine{};  ///< its number; none: of all
  std::string level{};                    ///< of events the least, "warning"; empty: every level
  double since_s = 0;                     ///< of events the oldest; 0: any age

  [[nodiscard]] bool is_all() const { return !engine && level.empty() && since_s == 0; }
  /// Whether the row is one of them. A field that the row lacks does not count.
  [[nodiscard]] bool takes(const cells::Json& row) const;
};

/// The same document with these rows only; it has one list. Errors: Internal when it is not the
/// JSON that this program knows.
[[nodiscard]] Result<std::string> chosen(std::string_view document, const Choice& choice);

/// Whether the document's list has a row of this engine.
[[nodiscard]] bool tells_of(std::string_view document, std::uint64_t engine);

}  // namespace kvd::ctl
