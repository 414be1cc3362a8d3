#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "ipc/http/exchange.hpp"
#include "ipc/http/request_reader.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::http {

/// A TCP listener on the loopback that strangers cannot wear out: it reads requests with a strict
/// reader of its own, bounds how many clients there are, how long a request may take to arrive and
/// an answer to be read, and hands on what is sound and complete. One request a connection.
/// Where too many clients are still sending, the one that has been at it for longest makes way, so
/// silent ones cannot keep out one that speaks.
/// Source: kvd design.
/// Owner:  made and destroyed by one thread; a thread of its own calls the handler.
/// Errors: InvalidArgument for an address that is not loopback or port 0; Unavailable when the port
///         is taken; never throws.
class Front {
 public:
  struct Limits {
    RequestReader::Limits request{};
    std::size_t readers = 32;      ///< clients whose request is not complete
    std::size_t connections = 96;  ///< all clients
    Bytes backlog =
        64 * kMiB;  ///< the most of one answer that is written and not yet read by the client
    Bytes all_backlogs = 256 * kMiB;  ///< together; the client with the largest makes way
    Nanoseconds arrival{std::chrono::seconds(10)};  ///< time in which a whole request must arrive
    Nanoseconds stall{std::chrono::seconds(30)};    ///< without a byte of an answer being taken
  };
  struct Options {
    std::string address = "127.0.0.1";
    std::uint16_t port = 0;
    Limits limits{};
    /// The JSON body of an answer that refuses.
    std::string (*refusal)(int status, const std::string& message) = nullptr;
    const Clock* clock = nullptr;  ///< null: the steady clock
  };
  /// HEAD comes as GET, and the answer's body is left out. Called on the front's thread, which
  /// serves nobody meanwhile, so hand long work to other threads.
  using Handler = std::function<void(Request, std::shared_ptr<Exchange>)>;

  [[nodiscard]] static Result<std::unique_ptr<Front>> start(Options options, Handler handler);
  /// Hangs up on every client; their exchanges end unsent.
  ~Front();
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  /// Errors: InvalidArgument where start() would say so.
  [[nodiscard]] static Status check(const std::string& address, std::uint16_t port);
  /// "127.0.0.1:8470", "[::1]:8470".
  [[nodiscard]] static std::string authority(const std::string& address, std::uint16_t port);

 private:
  enum class Phase : std::uint8_t { kReading, kAnswering, kLingering };
  struct Connection {
    UniqueFd socket;
    RequestReader reader;
    TimePoint deadline;
    Phase phase = Phase::kReading;
    bool may_send = false;  ///< was given leave to send its body
    bool last = false;      ///< `out` ends the answer
    std::string out{};
    std::size_t sent = 0;
    std::shared_ptr<Outcome> outcome{};  ///< set once there is an answer to wait for
  };
  using Connections = std::map<std::uint64_t, Connection>;  // in order of arrival

  Front(Options options, Handler handler, UniqueFd listener, UniqueFd epoll,
        std::shared_ptr<Outbox> outbox);
  void run();
  void serve(std::uint64_t id, std::uint32_t events);
  void accept();
  void listen(bool on);
  void make_room();
  void read(Connections::iterator it);
  void hand_on(Connections::iterator it);
  void refuse(Connections::iterator it, int status, const std::string& message);
  void take_outbox();
  void flush(Connections::iterator it);
  void linger(Connections::iterator it);
  void drain(Connections::iterator it);
  void close(Connections::iterator it);
  void close_late();
  void close_largest();
  void watch(Connections::iterator it, std::uint32_t events) const;
  [[nodiscard]] std::size_t readers() const;

  const Options options_;
  const Handler handler_;
  const SteadyClock steady_;
  const Clock& clock_;
  const UniqueFd listener_;
  const UniqueFd epoll_;
  const std::shared_ptr<Outbox> outbox_;
  Connections connections_;
  std::uint64_t last_id_ = 1;  ///< 0 is the listener, 1 the bell
  bool listening_ = true;      ///< false while no descriptor is free
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace kvd::http
