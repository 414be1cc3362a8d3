#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "tests/lab/cache/replay.hpp"

namespace kvd::sim {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

/// A block that a prompt asks for. All uses of a workload are in order.
struct Use {
  std::uint64_t id;
  std::size_t position;       ///< place of the block in its prompt
  std::size_t next = kNever;  ///< number of its next use
};

std::vector<Use> uses_of(const Workload& workload) {
  std::vector<Use> uses;
  std::unordered_map<std::uint64_t, std::size_t> last;
  for (const Arrival& arrival : workload) {
    for (std::size_t i = 0; i < arrival.prefix.size(); ++i) {
      const auto [known, fresh] = last.try_emplace(arrival.prefix[i], uses.size());
      if (!fresh) uses[std::exchange(known->second, uses.size())].next = uses.size();
      uses.push_back({arrival.prefix[i], i});
    }
  }
  return uses;
}

std::uint64_t most_found(const std::vector<Use>& uses, std::size_t capacity) {
  std::set<std::size_t> kept;  // by the number of the next use
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    found += kept.erase(i);
    if (uses[i].next == kNever) continue;
    kept.insert(uses[i].next);
    if (kept.size() > capacity) kept.erase(std::prev(kept.end()));
  }
  return found;
}

double most_saved(const std::vector<Use>& uses, std::size_t capacity, BlockCosts& costs) {
  struct Stay {
    double saved, length;
  };
  std::vector<Stay> stays;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].next == kNever) continue;
    stays.push_back(
        {costs.seconds(uses[uses[i].next].position), static_cast<double>(uses[i].next - i)});
  }
  std::sort(stays.begin(), stays.end(),
            [](const Stay& a, const Stay& b) { return a.saved * b.length > b.saved * a.length; });
  double left = static_cast<double>(capacity) * static_cast<double>(uses.size());
  double saved = 0;
  for (const Stay& stay : stays) {
    const double share = std::min(1.0, left / stay.length);
    saved += stay.saved * share;
    left -= stay.length * share;
    if (left <= 0) break;
  }
  return saved;
}

}  // namespace

CacheFigures cache_bound(const Workload& workload, std::size_t capacity, BlockCosts& costs) {
  const std::vector<Use> uses = uses_of(workload);
  CacheFigures bound;
  bound.found = most_found(uses, capacity);
  bound.saved_s = most_saved(uses, capacity, costs);
  return bound;
}

}  // namespace kvd::sim
