#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "ipc/transport/attach.hpp"
#include "ipc/transport/silent_bounds.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/poller.hpp"
#include "kvd/daemon/service/session_maker.hpp"

namespace kvd::daemon {

/// The attach socket, and its connections until each has said all; SessionMaker then decides who is
/// let in. A connection that was taken keeps its place until it has spoken or its time is over.
/// Connections beyond the bounds are hung up on, and try again. Out of descriptors it stops
/// listening until the next tick, since the socket would be readable all the time.
/// Source: kvd/DESIGN.md "Out of descriptors"; ipc/PROTOCOL.md section 2.
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none after construction; who is not let in is told why.
class Acceptor {
 public:
  struct Uses {
    Poller& poller;
    SessionMaker& maker;
    EventLog& log;
    const Clock& clock;
  };

  /// `bounds` are those of connections that have not said all.
  Acceptor(const Uses& uses, transport::AttachListener listener, transport::SilentBounds bounds)
      : uses_(uses), listener_(std::move(listener)), bounds_(bounds) {}

  /// Errors: those of Poller::watch.
  [[nodiscard]] Status open();
  /// Nobody connects any more.
  void close() { listener_.reset(); }

  /// Listens anew where engines no longer find the socket. Returns whether it had to.
  /// Errors: those of UnixListener::restore() and of Poller::watch.
  [[nodiscard]] Result<bool> restore();

  /// The listener is readable.
  void accept();
  /// A connection that has not said all is readable.
  void on_pending(std::uint32_t id);
  /// Listens again, and hangs up on those who said nothing for too long.
  void on_tick();

  /// Times it stopped listening for want of descriptors.
  [[nodiscard]] std::uint64_t pauses() const { return pauses_; }

 private:
  struct Pending {
    transport::AttachConnection connection;
    TimePoint deadline;
    uid_t uid;
    bool hello = false;  ///< it has come
    Introduction said;
  };

  void listen(bool on);
  void pause(const Error& why);
  /// Whether there is a place for one more connection of the uid, or one can be made.
  [[nodiscard]] bool make_room(uid_t uid);
  [[nodiscard]] std::optional<uid_t> who_is_in_the_way(uid_t newcomer) const;
  void take(transport::AttachConnection connection, uid_t uid);
  Pending remove(std::uint32_t id);
  /// Whether everything that it has to say has arrived.
  [[nodiscard]] static Result<bool> hear(Pending& pending);
  [[nodiscard]] Status admit(Pending& pending);
  void refuse(transport::AttachConnection& connection, const Error& error);

  const Uses uses_;
  std::optional<transport::AttachListener> listener_;
  const transport::SilentBounds bounds_;
  std::map<std::uint32_t, Pending> pending_;
  std::uint32_t last_ = 0;
  bool listening_ = true;
  bool watched_ = false;  ///< the listener, by the poller
  std::uint64_t pauses_ = 0;
};

}  // namespace kvd::daemon
