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

/// Copies that wait, in turns: first those of the domain that has taken the fewest bytes, within it
/// by engine, then in order of arrival. So one engine's orders delay another by a burst, and not by
/// all of them.
/// Source: kvd design. Owner: control thread. Cost: O(domains + log engines) a call.
class JobTurns {
 public:
  void add(const Owner& owner, Ticket job);
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Whether a domain other than that one has a job.
  [[nodiscard]] bool beside(DomainId domain) const {
    return waiting_.size() > waiting_.count(domain);
  }
  /// The job to serve now, of a domain other than `but`. None: there is no such job.
  [[nodiscard]] std::optional<Ticket> next(std::optional<DomainId> but);
  /// Tells how much of a job of the domain was handed out.
  void took(DomainId domain, Bytes bytes) { fair_.took(domain, bytes); }
  /// The job waits no more. Cost: O(jobs of its owner); O(1) for its first.
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
