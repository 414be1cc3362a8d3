#include "planner/model/candidates.hpp"

#include <algorithm>

namespace kvd::planner {

std::vector<std::int32_t> distance_layers(std::int32_t layers, std::int32_t distance) {
  std::vector<std::int32_t> offloaded;
  for (std::int32_t l = distance; l <= layers; l += distance) offloaded.push_back(l);
  return offloaded;
}

std::vector<std::int32_t> even_layers(std::int32_t layers, std::int32_t count) {
  std::vector<std::int32_t> offloaded;
  for (std::int32_t m = 1; m <= count; ++m) offloaded.push_back(m * layers / count);
  return offloaded;
}

std::vector<std::int32_t> representative_distances(std::int32_t layers) {
  std::vector<std::int32_t> distances;
  for (std::int32_t k = 2; k <= layers; ++k) {
    if (k == layers || layers / (k + 1) != layers / k) distances.push_back(k);
  }
  return distances;
}

std::vector<Candidate> candidates(std::int32_t layers, CandidateSet set, BufferRule rule) {
  std::vector<Candidate> made = {{0, {}}, {1, distance_layers(layers, 1)}};
  for (const auto k : representative_distances(layers)) {
    made.push_back({k, distance_layers(layers, k)});
  }
  const auto by_count = [](const Candidate& a, const Candidate& b) {
    return a.offloaded.size() < b.offloaded.size();
  };
  std::sort(made.begin(), made.end(), by_count);
  if (set == CandidateSet::kDistancesAndEven) {
    const auto distances = made;
    for (std::int32_t n = 1; n < layers; ++n) {
      Candidate even{std::nullopt, even_layers(layers, n)};
      if (!std::binary_search(distances.begin(), distances.end(), even, by_count)) {
        made.push_back(std::move(even));
      }
    }
    std::sort(made.begin(), made.end(), by_count);
  }
  if (rule == BufferRule::kStrict && layers > 1) {
    std::erase_if(made, [](const Candidate& c) { return c.offloaded.size() == 1; });
  }
  return made;
}

}  // namespace kvd::planner
