#pragma once

#include <deque>
#include <map>
#include <optional>

#include "ipc/vocabulary/fair_turns.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::mover {

/// Whose copies they are.
struct Owner {
  DomainId domain;  ///< none: kvd's own
  EngineId engine;
};

/// Copies that wait, in turns: first of the domain that has taken the fewest bytes, by engine in
/// it, then as they came. So what one has ordered delays another by a burst, not by all of it.
/// Source: kvd design. Owner: control thread. Cost: O(domains + log engines) a call.
class JobTurns {
 public:
  void add(const Owner& owner, Ticket job);
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Whether another domain than that has one.
  [[nodiscard]] bool beside(DomainId domain) const {
    return waiting_.size() > waiting_.count(domain);
  }
  /// The job to serve now, of another domain than `but`. None: there is none.
  [[nodiscard]] std::optional<Ticket> next(std::optional<DomainId> but);
  /// Tells how much of a job of the domain was handed out.
  void took(DomainId domain, Bytes bytes) { fair_.took(domain, bytes); }
  /// It waits no more. Cost: O(jobs of its owner); the first of them O(1).
  void remove(const Owner& owner, Ticket job);

 private:
  struct Queues {
    std::map<EngineId, std::deque<Ticket>> by_engine;  ///< no empty ones
    EngineId served;                                   ///< last
  };
  std::map<DomainId, Queues> waiting_;  ///< no empty ones
  FairTurns<DomainId, Bytes> fair_;
};

}  // namespace kvd::mover
