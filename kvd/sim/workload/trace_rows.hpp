#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvd/sim/world/arrival.hpp"

namespace kvd::sim {

/// Reads one row of each format; nothing for a row that makes no sense. Times are as recorded.
[[nodiscard]] std::optional<Arrival> azure_row(std::string_view row);
[[nodiscard]] std::optional<Arrival> lengths_row(std::string_view row);
[[nodiscard]] std::optional<Arrival> mooncake_row(std::string_view row);

/// The keys that every row of Mooncake's has and this one lacks, as "a, b"; empty: it lacks none.
[[nodiscard]] std::string mooncake_keys_missing(std::string_view row);

}  // namespace kvd::sim
