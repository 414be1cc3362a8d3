#include "kvd/tiers/disk/workers/flights.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvd::disk {
namespace {

constexpr unsigned kIdBits = 32;

std::int64_t length_of(const Operation& operation) {
  std::int64_t length = 0;
  for (const iovec& part : operation.parts) length += static_cast<std::int64_t>(part.iov_len);
  return length;
}

// Neighbours in memory become one part.
void append(std::vector<iovec>& parts, const void* memory, std::size_t size) {
  if (!parts.empty()) {
    iovec& last = parts.back();
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == memory) {
      last.iov_len += size;
      return;
    }
  }
  parts.push_back({const_cast<void*>(memory), size});
}

Fault fault_of(const Operation& operation, std::int64_t result) {
  if (result < 0) return fault_of_errno(static_cast<int>(-result));
  if (result == length_of(operation)) return Fault::kNone;
  return operation.write ? Fault::kFull : Fault::kTruncated;
}

}  // namespace

std::uint32_t& Flights::count_of(const Request& request) {
  if (std::holds_alternative<Load>(request)) return loads_;
  return std::holds_alternative<Scan>(request) ? scans_ : stores_;
}

void Flights::start(Request request, TimePoint deadline) {
  if (unused_.empty()) {
    unused_.push_back(flights_.size());
    flights_.emplace_back();
  }
  const std::size_t place = unused_.back();
  unused_.pop_back();
  const auto* scan = std::get_if<Scan>(&request);
  const std::size_t sectors = scan != nullptr ? scan->count : 1;
  ++count_of(request);
  flights_[place] = std::make_unique<Flight>(std::move(request), deadline, sectors);
  Flight& flight = *flights_[place];
  std::visit([&](const auto& what) { plan(flight, what); }, flight.request);
  launch(flight, place);
}

Operation& Flights::add(Flight& flight, DiskSlot slot, bool write, Bytes offset) {
  return flight.operations.emplace_back(
      Operation{0, segments_.fd(layout_.segment(slot)), write, offset, {}});
}

void Flights::add_header(Flight& flight, DiskSlot slot, bool write,
                         std::span<std::byte, 4096> sector) {
  add(flight, slot, write, layout_.header_offset(slot)).parts = {{sector.data(), sector.size()}};
}

template <class Byte>
void Flights::add_groups(Flight& flight, DiskSlot slot, std::uint32_t first_group, bool write,
                         std::span<const std::span<Byte>> groups) {
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    if (i == 0 || !layout_.fills_sectors()) {
      add(flight, slot, write, layout_.group_offset(slot, first_group + i));
    }
    append(flight.operations.back().parts, groups[i].data(), groups[i].size());
  }
}

void Flights::plan(Flight& flight, const Load& load) {
  add_header(flight, load.slot, false, flight.headers[0]);
  add_groups<std::byte>(flight, load.slot, load.first_group, false, load.groups);
}

// The sums are those of the bytes as they are now; the header follows in go_on().
void Flights::plan(Flight& flight, const NumberedStore& numbered) {
  const Store& store = numbered.store;
  SlotHeader header{store.slot, numbered.generation, store.key, {}};
  for (const auto& group : store.groups) header.sums.push_back(sum_(group));
  const Sector sector = encode_header(layout_, header);
  std::memcpy(flight.headers[0].data(), sector.data(), sector.size());
  add_groups<const std::byte>(flight, store.slot, 0, true, store.groups);
}

void Flights::plan(Flight& flight, const Scan& scan) {
  flight.of_headers.resize(scan.count, Fault::kNone);
  for (std::uint32_t i = 0; i < scan.count; ++i) {
    add_header(flight, DiskSlot(scan.first.value + i), false, flight.headers[i]);
  }
}

void Flights::launch(Flight& flight, std::size_t place) {
  flight.outstanding = flight.operations.size();
  for (std::size_t i = 0; i < flight.operations.size(); ++i) {
    flight.operations[i].id = (std::uint64_t{place} << kIdBits) | i;
    io_.submit(flight.operations[i]);
  }
}

void Flights::settle(const Outcome& outcome) {
  const auto place = static_cast<std::size_t>(outcome.id >> kIdBits);
  const auto number = static_cast<std::size_t>(outcome.id & 0xffffffffu);
  Flight& flight = *flights_[place];
  const Fault fault = fault_of(flight.operations[number], outcome.result);
  if (!flight.of_headers.empty()) {
    flight.of_headers[number] = fault;
  } else if (flight.fault == Fault::kNone) {
    flight.fault = fault;
  }
  if (--flight.outstanding > 0 || go_on(flight, place)) return;
  --count_of(flight.request);
  landed_.push_back(std::move(flights_[place]));
  unused_.push_back(place);
}

bool Flights::finish_one(std::vector<Completion>& completions) {
  if (landed_.empty()) return false;
  completions.push_back(completion_of(*landed_.front()));
  landed_.pop_front();
  return true;
}

bool Flights::go_on(Flight& flight, std::size_t place) {
  const auto* numbered = std::get_if<NumberedStore>(&flight.request);
  if (numbered == nullptr || flight.header_written) return false;
  if (flight.fault != Fault::kNone || flight.timed_out) return false;
  flight.header_written = true;
  flight.operations.clear();
  add_header(flight, numbered->store.slot, true, flight.headers[0]);
  launch(flight, place);
  return true;
}

Completion Flights::completion_of(const Flight& flight) const {
  Completion completion{ticket_of(flight.request), flight.fault, false, {}, {}};
  if (flight.timed_out) {
    completion.fault = Fault::kTimedOut;
  } else if (const auto* scan = std::get_if<Scan>(&flight.request)) {
    collect(flight, *scan, completion);
  } else if (const auto* load = std::get_if<Load>(&flight.request)) {
    if (flight.fault == Fault::kNone) completion.fault = verify(flight, *load);
  }
  return completion;
}

Fault Flights::verify(const Flight& flight, const Load& load) const {
  SlotHeader header;
  const Fault fault = decode_header(layout_, load.slot, flight.headers[0], header);
  if (fault != Fault::kNone) return fault;
  if (header.generation != load.generation) return Fault::kOverwritten;
  if (header.key != load.key) return Fault::kOtherKey;
  for (std::size_t i = 0; i < load.groups.size(); ++i) {
    if (sum_(load.groups[i]) != header.sums[load.first_group + i]) return Fault::kCorruptPayload;
  }
  return Fault::kNone;
}

void Flights::collect(const Flight& flight, const Scan& scan, Completion& completion) const {
  for (std::uint32_t i = 0; i < scan.count; ++i) {
    const DiskSlot slot(scan.first.value + i);
    SlotHeader header;
    Fault fault = flight.of_headers[i];
    if (fault == Fault::kNone) fault = decode_header(layout_, slot, flight.headers[i], header);
    if (fault == Fault::kNone) {
      completion.found.push_back({slot, header.generation, header.key});
    } else if (fault != Fault::kEmpty) {
      completion.bad.push_back(fault);
    }
  }
}

void Flights::expire(TimePoint now, std::vector<Completion>& completions) {
  for (const auto& flight : flights_) {
    if (flight == nullptr || flight->timed_out || now < flight->deadline) continue;
    flight->timed_out = true;
    completions.push_back({ticket_of(flight->request), Fault::kTimedOut, true, {}, {}});
  }
}

}  // namespace kvd::disk
