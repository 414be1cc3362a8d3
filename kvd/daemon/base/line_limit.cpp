#include "kvd/daemon/base/line_limit.hpp"

#include <algorithm>
#include <utility>

namespace kvd::daemon {

LineLimit::Verdict LineLimit::take(std::string_view line, TimePoint now) {
  std::string key(line);
  std::erase_if(key, [](char c) { return c >= '0' && c <= '9'; });
  if (kinds_.size() >= kMostKinds && !kinds_.contains(key)) kinds_.clear();
  Kind& kind = kinds_.try_emplace(std::move(key), Kind{now}).first->second;
  if (now - kind.since >= kSpan) {
    kind.since = now;
    kind.written = 0;
  }
  if (kind.written == kMost) {
    ++kind.left_out;
    return {false, 0};
  }
  ++kind.written;
  return {true, std::exchange(kind.left_out, 0)};
}

}  // namespace kvd::daemon
