#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/daemon/sessions/peer.hpp"
#include "kvd/daemon/sessions/session_bounds.hpp"

namespace kvd::daemon {

/// All sessions: those that live, and those that have ended while their processes live on and may
/// still map what they were given. Ends no session by itself (SessionEnds does).
/// Owner: control thread. Pointers hold until remove().
class SessionTable {
 public:
  void add(Peer peer);
  void remove(EngineId engine) { peers_.erase(engine); }
  /// From now on no command can prove that it comes from the session.
  void forget_generation(Generation generation) { generations_.erase(generation); }

  /// One that has not ended; null: none.
  [[nodiscard]] Peer* find(EngineId engine);
  /// One whose socket is open. Also a rank whose group has ended: it is still told so.
  [[nodiscard]] Peer* connected(EngineId engine);
  /// Ended ones too.
  [[nodiscard]] Peer* any(EngineId engine);
  [[nodiscard]] Peer* of_generation(Generation generation);
  [[nodiscard]] std::map<EngineId, Peer>& all() { return peers_; }

  /// Visits the ranks of the engine that have not ended, in order of rank; a group has several.
  template <class F>
  void each_rank(EngineId engine, F visit) {
    for (auto it = peers_.lower_bound(engine); it != peers_.end(); ++it) {
      if (it->second.speaks_for() != engine) return;
      if (!it->second.ended) visit(it->second);
    }
  }
  /// Whether a rank of the group is here, ended or not.
  [[nodiscard]] bool has_rank_of(EngineId group) const;

  /// Whether the domain has a session, ended ones included.
  [[nodiscard]] bool has_domain(DomainId domain) const;
  [[nodiscard]] SessionCounts counts() const;
  [[nodiscard]] SessionCounts counts(DomainId domain) const;
  /// Counted by user as well: processes that kvd does not see all have the same number, 0.
  [[nodiscard]] std::size_t ended_of_process(pid_t process, uid_t uid) const;

 private:
  std::map<EngineId, Peer> peers_;
  std::map<Generation, EngineId> generations_;
};

}  // namespace kvd::daemon
