#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/model/memory.hpp"

namespace kvd::planner {

/// The layers k, 2k, ... of `layers`, 1-based: OrbitFlow's distance k.
[[nodiscard]] std::vector<std::int32_t> distance_layers(std::int32_t layers, std::int32_t distance);

/// `count` of `layers` layers, spread evenly: floor(m * L / n), m = 1..n.
[[nodiscard]] std::vector<std::int32_t> even_layers(std::int32_t layers, std::int32_t count);

/// D(L): for each value of floor(L/k), k = 2..L, the largest such k; ascending.
/// Source: OrbitFlow sec. 4.2, with the representatives its published code takes.
[[nodiscard]] std::vector<std::int32_t> representative_distances(std::int32_t layers);

/// One placement that a request may get.
struct Candidate {
  /// k of the distance-driven candidates; 0: no layer leaves; nothing: the layers follow no
  /// distance.
  std::optional<std::int32_t> distance;
  std::vector<std::int32_t> offloaded;
};

enum class CandidateSet { kDistances, kDistancesAndEven };

/// No layers, all layers, and D(L); with the even set also every other number of layers. Ascending
/// by number of offloaded layers. Under strict staging a single offloaded layer saves nothing and
/// is left out.
[[nodiscard]] std::vector<Candidate> candidates(std::int32_t layers, CandidateSet set,
                                                BufferRule rule);

}  // namespace kvd::planner
