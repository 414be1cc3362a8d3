#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/sim/engine/profile.hpp"

namespace kvd::sim {

/// The link between the tiers, with one queue for each direction. Fetches of streamed layers go
/// first, the earliest layer group ahead; then swaps in order; then copies that nobody waits for.
/// The first of them takes the whole direction and interrupts the others; while both directions are
/// busy they slow down to what they may move together.
/// Source: kvd/DESIGN.md "Bytes on their way".
/// Owner:  one thread, virtual time that never runs backwards.
class Link {
 public:
  enum class Class : std::uint8_t { kStream, kSwap, kBackground };
  enum Direction : std::uint8_t { kH2d = 0, kD2h = 1 };

  struct Job {
    Ticket ticket;
    std::uint32_t part = 0;   ///< index of the fetch within a stream
    std::uint32_t group = 0;  ///< streams: its layer group
    Class priority = Class::kSwap;
    std::int64_t slots = 0;
    Bytes slot_bytes;
  };
  struct Ended {
    Job job;
    Nanoseconds busy{0};  ///< how long the link served it
  };

  explicit Link(const LinkModel& model) : model_(model) {}

  void add(Direction direction, const Job& job, TimePoint now);
  /// Takes out the jobs of a stream of which no byte has moved yet; returns how many.
  std::size_t cancel(Ticket ticket, TimePoint now);
  /// When the next job ends; TimePoint::max() if there is none.
  [[nodiscard]] TimePoint next() const;
  /// Lets time pass and appends what ended by then.
  void advance(TimePoint now, std::vector<Ended>& ended);

  [[nodiscard]] Seconds busy(Direction direction) const { return lanes_[direction].busy; }
  [[nodiscard]] bool idle() const { return !lanes_[0].serves() && !lanes_[1].serves(); }

 private:
  struct Queued {
    Job job;
    double left = 0;  ///< seconds of service at full rate
    double served = 0;
    bool begun = false;
  };
  struct Lane {
    std::array<std::deque<Queued>, 3> queues;  ///< by Class
    Seconds busy{0};
    [[nodiscard]] bool serves() const { return head() != nullptr; }
    [[nodiscard]] const Queued* head() const;
    [[nodiscard]] Queued* head() {
      return const_cast<Queued*>(static_cast<const Lane&>(*this).head());
    }
    void drop_head();
  };

  [[nodiscard]] double work(Direction direction, const Job& job) const;
  [[nodiscard]] double speed() const;
  void pass(TimePoint now);

  LinkModel model_;
  std::array<Lane, 2> lanes_;
  TimePoint now_{0};
};

}  // namespace kvd::sim
