#include "client_lib/engine/text/stop_matcher.hpp"

#include <algorithm>
#include <utility>

namespace kvd::engine {

std::string StopMatcher::feed(std::string_view bytes) {
  if (matched_) return {};
  pending_ += bytes;
  const std::size_t match = first_match();
  matched_ = match != std::string::npos;
  const std::size_t shown = matched_ ? match : pending_.size() - held();
  std::string out = pending_.substr(0, shown);
  pending_.erase(0, matched_ ? std::string::npos : shown);
  return out;
}

std::string StopMatcher::flush() { return std::exchange(pending_, {}); }

std::size_t StopMatcher::first_match() const {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, pending_.find(stop));
  return first;
}

/// Length of the longest end of the text that begins a stop.
std::size_t StopMatcher::held() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > longest; --n) {
      if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace kvd::engine
