#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace kvd {

/// Gives turns by what each key has taken so far, in time or in bytes: the key that has taken least
/// is next. Among equals a key that was away comes first, then the one after the last that was
/// served. A key that was away starts level with the others: it has saved up nothing. Key 0 stands
/// for none, and takes its turns like any.
/// Source: start-time fair queueing (Goyal, Vin and Cheng, 1996), with equal weights.
/// Owner:  one thread. Cost: O(keys that took lately, and in the map).
template <class Key, class Amount>
class FairTurns {
 public:
  [[nodiscard]] Amount taken(Key key) const {
    const auto found = taken_.find(key);
    return found == taken_.end() ? level_ : std::max(found->second, level_);
  }
  void took(Key key, Amount amount) {
    level_ = taken(key);
    taken_[key] = level_ + amount;
    // A key that has taken less than the others counts like one that was never here.
    std::erase_if(taken_, [&](const auto& entry) { return entry.second < level_; });
  }
  /// The entry of the map whose turn is next, by key. `but` excludes one entry. Precondition: there
  /// is one.
  template <class Map>
  [[nodiscard]] typename Map::iterator next(Map& map, std::optional<Key> but = {}) {
    const auto rank = [&](const auto& entry) {
      const Key key = entry.first;
      return std::tuple(key == but, taken(key), taken_.contains(key), key <= served_);
    };
    const auto least = std::min_element(
        map.begin(), map.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    served_ = least->first;
    return least;
  }

 private:
  std::map<Key, Amount> taken_;  ///< only those that have taken level_ or more
  Amount level_{};               ///< what the one had taken that took last
  Key served_{};
};

}  // namespace kvd
