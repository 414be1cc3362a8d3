#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "client_lib/src/attach/call_gate.hpp"
#include "client_lib/src/attach/connector.hpp"
#include "client_lib/src/attach/session.hpp"
#include "client_lib/src/memory/region_book.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/this_process.hpp"

namespace kvd::client {

/// How a client's calls reach the daemon: one at a time, each with the session that it is to use.
/// Owner:   thread-safe; the gate serialises all that talks to the daemon, and guards the book of
///          regions.
/// Errors:  PeerGone in a forked child, before anything is touched there; DeadlineExceeded.
class DaemonLink {
 public:
  DaemonLink(Introduction introduction, Nanoseconds attach_timeout);
  Status connect();

  [[nodiscard]] bool forked() const { return this_process() != owner_; }
  [[nodiscard]] Status check_fork() const;
  [[nodiscard]] TimePoint deadline(Nanoseconds timeout) const;
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] Connector& connector() { return connector_; }
  [[nodiscard]] const Connector& connector() const { return connector_; }
  /// For whoever has the turn.
  [[nodiscard]] RegionBook& regions() { return regions_; }

  /// The caller's turn to talk to the daemon.
  Result<CallGate::Turn> enter(TimePoint deadline);
  /// The last turn, however long it takes to come.
  CallGate::Turn enter() { return gate_.enter(); }

  /// Runs body(session, deadline), alone, with the session that a call about memory is to use.
  template <class Body>
  auto on_memory(Nanoseconds timeout, Body body)
      -> decltype(body(std::declval<const SessionPtr&>(), TimePoint()));
  /// The same as on_memory(), for a call about requests.
  template <class Body>
  auto on_requests(Nanoseconds timeout, Body body)
      -> decltype(body(std::declval<const SessionPtr&>(), TimePoint()));
  /// The same with the present session. It never attaches, because its caller is in the middle of a
  /// step.
  template <class Body>
  auto in_a_step(Nanoseconds timeout, Body body)
      -> decltype(body(std::declval<const SessionPtr&>(), TimePoint()));
  /// The session for what runs beside other calls.
  Result<SessionPtr> session_with_requests();
  /// Runs wait(session, deadline) beside other calls.
  template <class Wait>
  Status wait_in_session(Nanoseconds timeout, Wait wait);

 private:
  /// Tells a daemon that the session is new to what of an earlier daemon's it has: what that daemon
  /// has written down is the session's again. The rest stays as it is, and counts as orphaned. What
  /// is answered late is asked again by the next call.
  void claim(const SessionPtr& session, TimePoint deadline);

  const pid_t owner_ = this_process();
  const Nanoseconds attach_timeout_;
  SteadyClock clock_;
  Connector connector_;
  CallGate gate_;
  RegionBook regions_;
  struct Asked {
    std::weak_ptr<Session> session;
    bool answered = false;  ///< all of them
    /// By region: the command that opens its space.
    std::map<std::uint64_t, std::optional<std::uint64_t>> opening;
  } asked_;
};

/// A region that could not be taken is handed back even when the caller's time is over.
inline constexpr Nanoseconds kReturnTimeout = std::chrono::milliseconds(100);
/// Hands back a region that nobody maps any more.
Status finish_region(Session& session, RegionId region, TimePoint deadline);
/// Hands back a region that nobody took.
Status return_region(Session& session, RegionId region, TimePoint deadline);
/// Hands back regions whose allocation was given up but whose slabs came nevertheless.
void return_untaken_regions(Session& session, TimePoint deadline);

template <class Body>
auto DaemonLink::on_memory(Nanoseconds timeout, Body body)
    -> decltype(body(std::declval<const SessionPtr&>(), TimePoint())) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  KVD_ASSIGN_OR_RETURN(const auto session, connector_.session_for_memory(regions_.total(), until));
  claim(session, until);
  return_untaken_regions(*session, until);
  return body(session, until);
}

template <class Body>
auto DaemonLink::on_requests(Nanoseconds timeout, Body body)
    -> decltype(body(std::declval<const SessionPtr&>(), TimePoint())) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  KVD_ASSIGN_OR_RETURN(const auto session,
                       connector_.session_for_requests(regions_.total(), until));
  claim(session, until);
  return_untaken_regions(*session, until);
  auto result = body(session, until);
  if (!result.ok()) connector_.on_failed(result.error());
  return result;
}

template <class Body>
auto DaemonLink::in_a_step(Nanoseconds timeout, Body body)
    -> decltype(body(std::declval<const SessionPtr&>(), TimePoint())) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  const SessionPtr session = connector_.session();
  if (session->gone()) {
    return make_error(ErrorCode::kUnavailable,
                      "the daemon is gone: go on without it; a ping attaches again");
  }
  return body(session, until);
}

template <class Wait>
Status DaemonLink::wait_in_session(Nanoseconds timeout, Wait wait) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto session, session_with_requests());
  Status status = wait(*session, until);
  if (!status.ok()) connector_.on_failed(status.error());
  return status;
}

}  // namespace kvd::client
