#pragma once

#include <deque>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "kvd/tiers/disk/files/io.hpp"
#include "kvd/tiers/disk/files/layout.hpp"
#include "kvd/tiers/disk/files/requests.hpp"
#include "kvd/tiers/disk/files/sectors.hpp"
#include "kvd/tiers/disk/files/segments.hpp"

namespace kvd::disk {

/// Sums a layer group. A function other than group_sum serves to measure what sums cost.
using SumFunction = GroupSum (*)(std::span<const std::byte>);

/// A store, with the generation its slot will have.
struct NumberedStore {
  Store store;
  SlotGeneration generation;
};

using Request = std::variant<Load, NumberedStore, Scan>;

inline Ticket ticket_of(const Request& request) {
  if (const auto* store = std::get_if<NumberedStore>(&request)) return store->store.ticket;
  if (const auto* load = std::get_if<Load>(&request)) return load->ticket;
  return std::get<Scan>(request).ticket;
}

/// The requests under way: which reads and writes each needs, and what comes of them. Here every
/// byte that was read is verified before anybody hears of it.
/// Source: FORMAT.md "Order of writes".
/// Owner:  one thread. What Io asks of memory holds for this object too.
class Flights {
 public:
  /// Layout, segments and io must outlive it.
  Flights(const Layout& layout, const Segments& segments, Io& io, SumFunction sum)
      : layout_(layout), segments_(segments), io_(io), sum_(sum) {}

  /// Starts a request that was checked; `deadline` is when it is reported as kTimedOut.
  void start(Request request, TimePoint deadline);
  /// Takes an outcome in. A request has landed with its last outcome: the device is done with it.
  void settle(const Outcome& outcome);
  /// Verifies the request that landed first and appends its completion; false where none has. One
  /// at a time, so that the device gets new work in between.
  bool finish_one(std::vector<Completion>& completions);
  /// Appends kTimedOut for what is overdue; its memory stays held until its outcomes are in.
  void expire(TimePoint now, std::vector<Completion>& completions);

  // These count the requests that have not landed.
  [[nodiscard]] std::uint32_t loads() const { return loads_; }
  [[nodiscard]] std::uint32_t stores() const { return stores_; }
  [[nodiscard]] std::uint32_t scans() const { return scans_; }
  [[nodiscard]] std::uint32_t all() const { return loads_ + stores_ + scans_; }
  [[nodiscard]] std::size_t landed() const { return landed_.size(); }

 private:
  struct Flight {
    Flight(Request what, TimePoint until, std::size_t sectors)
        : request(std::move(what)), deadline(until), headers(sectors) {}
    Request request;
    TimePoint deadline;
    Sectors headers;
    std::vector<Operation> operations;
    std::size_t outstanding = 0;
    Fault fault = Fault::kNone;     ///< the first of the outcomes
    std::vector<Fault> of_headers;  ///< of a scan, by slot
    bool header_written = false;    ///< of a store
    bool timed_out = false;
  };

  void plan(Flight& flight, const Load& load);
  void plan(Flight& flight, const NumberedStore& numbered);
  void plan(Flight& flight, const Scan& scan);
  void add_header(Flight& flight, DiskSlot slot, bool write, std::span<std::byte, 4096> sector);
  template <class Byte>
  void add_groups(Flight& flight, DiskSlot slot, std::uint32_t first_group, bool write,
                  std::span<const std::span<Byte>> groups);
  Operation& add(Flight& flight, DiskSlot slot, bool write, Bytes offset);
  void launch(Flight& flight, std::size_t place);
  /// False where the request has come to its end.
  bool go_on(Flight& flight, std::size_t place);
  [[nodiscard]] Completion completion_of(const Flight& flight) const;
  [[nodiscard]] Fault verify(const Flight& flight, const Load& load) const;
  void collect(const Flight& flight, const Scan& scan, Completion& completion) const;
  std::uint32_t& count_of(const Request& request);

  const Layout& layout_;
  const Segments& segments_;
  Io& io_;
  const SumFunction sum_;
  std::vector<std::unique_ptr<Flight>>
      flights_;  ///< indexed by the upper half of an operation's id
  std::vector<std::size_t> unused_;
  std::deque<std::unique_ptr<Flight>> landed_;
  std::uint32_t loads_ = 0, stores_ = 0, scans_ = 0;
};

}  // namespace kvd::disk
