#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ipc/vocabulary/units.hpp"

namespace kvd::daemon {

/// Lets a line of the log through kMost times in kSpan. Lines that differ in digits alone (ids,
/// sizes, times) count as the same one, so that an engine cannot fill a disk by repeating what kvd
/// logs about it.
/// Source: kvd. Owner: one thread at a time.
class LineLimit {
 public:
  static constexpr std::uint32_t kMost = 100;
  static constexpr Nanoseconds kSpan{10'000'000'000};
  static constexpr std::size_t kMostKinds = 512;  ///< remembered; beyond it all are forgotten

  struct Verdict {
    bool write = true;
    std::uint64_t left_out = 0;  ///< lines like it since the last one that was written
  };
  Verdict take(std::string_view line, TimePoint now);

 private:
  struct Kind {
    TimePoint since{0};
    std::uint32_t written = 0;
    std::uint64_t left_out = 0;
  };
  std::map<std::string, Kind, std::less<>> kinds_;
};

}  // namespace kvd::daemon
