#pragma once

namespace kvd {

/// The entry of an ordered map whose turn it is: the one after the key served last, which becomes
/// its key. Precondition: the map is not empty.
template <class Map>
[[nodiscard]] typename Map::iterator next_in_turn(Map& map, typename Map::key_type& served) {
  auto next = map.upper_bound(served);
  if (next == map.end()) next = map.begin();
  served = next->first;
  return next;
}

}  // namespace kvd
