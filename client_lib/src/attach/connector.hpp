#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>

#include "client_lib/src/attach/recovery.hpp"
#include "client_lib/src/attach/session.hpp"
#include "client_lib/src/memory/region_book.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::client {

using SessionPtr = std::shared_ptr<Session>;

/// Keeps a process attached: it hands out the session that a call should use, starts another one
/// after the daemon went away, and tells the engine once when requests were lost with a session.
/// Owner:   connect() and session_for_…(): the thread whose turn it is in the client's gate; the
/// rest is thread-safe
class Connector {
 public:
  Connector(Introduction introduction, Nanoseconds attach_timeout, const Clock& clock);

  Status connect(TimePoint deadline);

  /// The session for a call that concerns only memory. `held` is what the caller's regions occupy.
  Result<SessionPtr> session_for_memory(Bytes held, TimePoint deadline);
  /// The session for a call about requests; Unavailable once after requests were lost.
  Result<SessionPtr> session_for_requests(Bytes held, TimePoint deadline);
  /// The same for a call that needs a session only because of its requests: it never attaches.
  Result<SessionPtr> session_with_requests();
  [[nodiscard]] SessionPtr session() const;

  void on_submitted(RequestId request);
  void on_ended(RequestId request);
  /// Call it when a call about requests has failed: notes it if that told the engine of a loss.
  void on_failed(const Error& error);

 private:
  using Need = Recovery::Need;
  /// Notices that the session has ended meanwhile. The caller holds mutex_.
  void notice_loss();
  Error tell_loss();
  Result<SessionPtr> attach_again(Bytes held, TimePoint deadline);

  const Clock& clock_;
  const Nanoseconds attach_timeout_;
  Introduction introduction_;
  mutable std::mutex mutex_;
  Recovery recovery_;
  SessionPtr session_;
  SessionPtr
      /// Lost with requests that the engine does not know to be lost: it may still read there.
      retired_;
};

}  // namespace kvd::client
