#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// What is known of the remote store: which names are there, which are not, which were asked for. A
/// hint that ages, as others write there and the servers evict.
///
/// Source: kvd/DESIGN.md "Blocks on other machines". Owner: control thread. Errors: none. Cost:
/// O(1) a call; at most 2^18 names, the oldest go.
class RemoteNames {
 public:
  [[nodiscard]] bool there(const Digest& name, TimePoint now) const {
    const Hint* hint = find(name);
    return hint != nullptr && hint->state == State::kThere && now - hint->at < kThereFor;
  }
  /// Whether asking now could tell anything new.
  [[nodiscard]] bool worth_asking(const Digest& name, TimePoint now) const {
    const Hint* hint = find(name);
    return hint == nullptr ||
           now - hint->at >= (hint->state == State::kThere ? kThereFor : kAbsentFor);
  }
  /// It was asked for within the last `patience`, and there is no answer yet.
  [[nodiscard]] bool awaited(const Digest& name, TimePoint now, Nanoseconds patience) const {
    const Hint* hint = find(name);
    return hint != nullptr && hint->state == State::kAsked && now - hint->at < patience;
  }
  void ask(const Digest& name, TimePoint now) { put(name, {now, State::kAsked}); }
  void answer(const Digest& name, bool there, TimePoint now) {
    put(name, {now, there ? State::kThere : State::kAbsent});
  }
  /// A write of it failed.
  void refuse(const Digest& name, TimePoint now) { put(name, {now, State::kRefused}); }
  /// A write of it failed lately, and no server has come back since.
  [[nodiscard]] bool refused(const Digest& name, TimePoint now) const {
    const Hint* hint = find(name);
    return hint != nullptr && hint->state == State::kRefused && now - hint->at < kRefusedFor;
  }
  /// Whatever was there may not be any more.
  void clear() { young_.clear(), old_.clear(); }

 private:
  static constexpr Nanoseconds kThereFor = std::chrono::seconds(60);
  static constexpr Nanoseconds kAbsentFor = std::chrono::seconds(2);
  static constexpr Nanoseconds kRefusedFor = std::chrono::seconds(10);
  static constexpr std::size_t kMost = std::size_t{1} << 17;  ///< of each half
  enum class State : std::uint8_t { kAsked, kAbsent, kThere, kRefused };
  struct Hint {
    TimePoint at{0};
    State state = State::kAsked;
  };
  struct Hash {
    std::size_t operator()(const Digest& name) const {
      std::size_t number = 0;  // names are as good as random
      std::memcpy(&number, name.bytes.data(), sizeof number);
      return number;
    }
  };
  using Half = std::unordered_map<Digest, Hint, Hash>;

  [[nodiscard]] const Hint* find(const Digest& name) const {
    for (const Half* half : {&young_, &old_}) {
      if (const auto at = half->find(name); at != half->end()) return &at->second;
    }
    return nullptr;
  }
  void put(const Digest& name, Hint hint) {
    if (young_.size() >= kMost) old_ = std::exchange(young_, {});
    young_[name] = hint;
  }

  Half young_, old_;
};

}  // namespace kvd::core
