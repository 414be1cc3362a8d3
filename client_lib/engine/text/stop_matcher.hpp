#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvd::engine {

/// Ends a text before the first of some strings. Holds back what may turn out to begin one, so that
/// nothing of it is ever shown.
class StopMatcher {
 public:
  /// Precondition: no stop is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes more bytes; returns those that may be shown now. Nothing more once matched().
  std::string feed(std::string_view bytes);
  /// Call it when no more bytes come. Returns what was held back, unless a stop was found.
  std::string flush();
  [[nodiscard]] bool matched() const { return matched_; }

 private:
  [[nodiscard]] std::size_t first_match() const;
  [[nodiscard]] std::size_t held() const;

  std::vector<std::string> stops_;
  std::string pending_;
  bool matched_ = false;
};

}  // namespace kvd::engine
