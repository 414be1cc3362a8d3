#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvd/tiers/disk/files/requests.hpp"
#include "kvd/tiers/disk/workers/flights.hpp"

namespace kvd::disk {

/// A request that has not started.
struct Waiting {
  Request request;
  TimePoint deadline;
};

/// What lies between the askers and the tier's thread: bounded queues one way, completions and
/// counts the other. Loads start before stores, stores before scans. Stores have a quarter of the
/// depth, and one place even while loads wait, so that they come to an end; scans have one place
/// while nothing waits. Owner: thread-safe.
class Desk {
 public:
  /// Requests under way at most; requests of each kind that wait at most.
  Desk(std::uint32_t depth, std::uint32_t queue) : depth_(depth), queue_(queue) {}

  /// Errors: WouldBlock where the queue is full, or a store into the slot is not over;
  ///         InvalidArgument for a ticket in use; Unavailable when closed.
  Status add(Request request, TimePoint deadline);
  void poll(std::vector<Completion>& completions);
  /// Fills the numbers; the words are the tier's.
  void count(DiskStatus& status);
  /// Tickets whose memory the device may still touch, as far as the desk knows.
  [[nodiscard]] std::vector<Ticket> held();
  /// Takes no more requests.
  void close();

  // ---- the tier's thread ----
  /// What is to start now. Appends completions of what waits no more: it is overdue, or the desk is
  /// closed.
  [[nodiscard]] std::vector<Waiting> take(const Flights& flights, TimePoint now,
                                          std::vector<Completion>& ended);
  /// Hands them over and empties the vector.
  void deliver(std::vector<Completion>& completions, const Flights& flights);
  /// Closed, and every request has had its last completion.
  [[nodiscard]] bool finished();

 private:
  using Queue = std::deque<Waiting>;
  /// A request from add() to its last completion.
  struct Open {
    Bytes bytes;
    bool is_load = false, is_store = false;
    DiskSlot slot;      ///< of a store
    bool told = false;  ///< it had a completion
  };

  static void take_from(Queue& queue, std::uint32_t places, std::vector<Waiting>& taken);
  void end_waiting(Queue& queue, TimePoint now, std::vector<Completion>& ended);
  void note(const Open& open, const Completion& completion);
  [[nodiscard]] Queue& queue_of(const Request& request);

  const std::uint32_t depth_, queue_;
  std::mutex mutex_;  // guards what follows
  Queue loads_, stores_, scans_;
  std::unordered_map<Ticket, Open> open_;
  std::unordered_set<std::uint32_t> written_slots_;
  std::vector<Completion> completions_;
  DiskStatus numbers_;
  bool closed_ = false;
};

}  // namespace kvd::disk
