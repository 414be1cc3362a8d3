#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/tiers/disk/files/event_fd.hpp"
#include "kvd/tiers/remote/ending.hpp"
#include "kvd/tiers/remote/requests.hpp"
#include "kvd/tiers/remote/resp.hpp"

namespace kvd::remote {

/// What one server is asked.
struct Request {
  enum class Kind : std::uint8_t { kFind, kGet, kPut, kDrop, kPing, kHello } kind = Kind::kPing;
  Ticket ticket;
  disk::ClassShape shape;
  disk::BlockKey key;
  std::vector<disk::Digest> digests;  ///< of a find
  Groups into;                        ///< of a get
  ConstGroups from;                   ///< of a put
  TimePoint deadline{0};
};

/// What came of it.
struct Answer {
  std::size_t server = 0;
  Request::Kind kind = Request::Kind::kPing;
  Ticket ticket;
  disk::Fault fault = disk::Fault::kNone;
  std::vector<bool> there;
};

/// One server: its connection, what is under way there, and the breaker.
///
/// Source: kvd design. Owner: add(), status() and stop() are thread-safe; all else is its thread's.
/// Errors: none; `answer` and `change` are called from either side, never under the link's lock.
class Link {
 public:
  struct Setup {
    std::size_t number = 0;
    std::string address, password;
    Nanoseconds ttl{0};
    std::shared_ptr<const Clock> clock;
    std::function<void(const Answer&)> answer;
    std::function<void(Change)> change;
  };
  /// Errors: Unavailable without a descriptor. The thread keeps the link alive until it ends.
  static Result<std::shared_ptr<Link>> start(Setup setup);

  void add(Request request);
  [[nodiscard]] ServerStatus status() const;
  /// Has the thread end what is under way, as where the server is off.
  void end();
  /// The same, and waits until no memory of others is touched any more: for the thread, though not
  /// for a resolver that takes more than a second.
  void stop();

 private:
  enum class State : std::uint8_t { kOff, kTrying, kOn };
  /// A find asks for groups of digests, and then for each of a group of which some are there.
  struct Finding {
    struct Part {
      std::size_t first = 0, size = 0;
    };
    std::vector<Part> parts;    ///< that were asked for
    std::vector<Part> unclear;  ///< to be asked for
    std::vector<bool> there;
  };
  /// A request that was sent, in part at least.
  struct Flight {
    Request request;
    std::size_t left = 1;    ///< replies that it still gets
    bool setting = false;    ///< a put that sends its value
    bool abandoned = false;  ///< its answer was given: what comes is passed over
    Finding finding{};
    std::unique_ptr<const disk::Sector> header{};  ///< of a put, once it is computed
    TimePoint since{0};
  };
  struct Sending {
    std::string head, tail;
    std::unique_ptr<const disk::Sector> header{};  ///< of the value that is sent
    std::vector<iovec> parts;
    std::size_t at = 0;  ///< parts before it are sent
  };
  struct Receiving {
    disk::Sector header{};
    std::array<char, 2> end{};
    std::vector<iovec> parts;
    std::size_t at = 0;
    std::int64_t skip = 0;  ///< bytes to pass over, the end of the value included
    /// What the header says, and how many groups were compared with it.
    disk::SlotHeader said{};
    disk::Fault fault = disk::Fault::kNone;
    std::size_t compared = 0;
    bool open = false;  ///< a value is on its way; without parts it is passed over
    [[nodiscard]] bool active() const { return at < parts.size() || skip > 0; }
    /// Compares the groups that have arrived, while they are in the CPU's cache.
    void compare(const Request& request);
  };

  Link(Setup setup, disk::EventFd wake) : setup_(std::move(setup)), wake_(std::move(wake)) {}
  void run();
  void turn();
  void connect();
  void say_hello();
  void take_incoming();
  void wait();
  void expire();
  /// The server is off from now on.
  void fail(const Error& why);
  void answer(const Request& request, disk::Fault fault, std::vector<bool> there = {});

  // ---- sending ----
  void send();
  /// False: there is nothing to send.
  [[nodiscard]] bool fill();
  void begin(Flight flight);
  void begin_find(Flight& flight);
  void begin_value(Flight& flight);
  void sum_ahead();
  void flush();
  [[nodiscard]] bool is_sending() const { return sending_.at < sending_.parts.size(); }

  // ---- receiving (link_replies.cpp) ----
  void receive();
  [[nodiscard]] std::int64_t read_some();
  void use_input();
  void take_buffered();
  void on_line(std::string_view line);
  void on_word(Flight& flight);
  void on_hello();
  void on_found(Flight& flight, std::int64_t number);
  void on_number(Flight& flight, std::int64_t number);
  void on_bulk(Flight& flight, std::int64_t bytes);
  /// `early`: before all of it was sent.
  void on_refusal(Flight& flight, std::string_view text, bool early);
  void on_value();
  void drop(const Request& of);
  void over(disk::Fault fault, std::vector<bool> there = {});
  void measure(const Flight& flight);
  void count(std::uint64_t ServerStatus::*what);
  [[nodiscard]] static bool is_asked(Request::Kind kind) {
    return kind == Request::Kind::kFind || kind == Request::Kind::kGet ||
           kind == Request::Kind::kPut;
  }

  const Setup setup_;
  const disk::EventFd wake_;
  Ending ending_;

  // The thread's own:
  UniqueFd fd_;
  State state_ = State::kOff;
  Nanoseconds pause_{0};
  TimePoint next_try_{0}, no_writes_before_{0};
  TimePoint progress_{0};                    ///< the last byte of the server, or of a value to it
  TimePoint replied_{0};                     ///< the last line of a reply
  std::array<std::deque<Flight>, 3> ready_;  ///< finds and small ones, gets, puts
  std::deque<Flight> flights_;               ///< in the order of their replies
  Sending sending_;
  Receiving receiving_;
  struct Input {
    std::array<char, 4096> bytes{};
    std::size_t at = 0, end = 0;
  } input_{};

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Request> incoming_;
  std::array<std::size_t, 3> queued_{};  ///< by kind as in ready_: requests that are not over
  ServerStatus status_;
};

}  // namespace kvd::remote
