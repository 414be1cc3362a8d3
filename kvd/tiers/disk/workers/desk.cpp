#include "kvd/tiers/disk/workers/desk.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvd::disk {
namespace {

// Stores get the depth divided by this.
constexpr std::uint32_t kStoreShare = 4;

template <class Groups>
Bytes bytes_of(const Groups& groups) {
  Bytes bytes;
  for (const auto& group : groups) bytes += Bytes(std::ssize(group));
  return bytes;
}

std::uint32_t left(std::uint32_t most, std::uint32_t used) { return most > used ? most - used : 0; }

}  // namespace

Desk::Queue& Desk::queue_of(const Request& request) {
  if (std::holds_alternative<Load>(request)) return loads_;
  return std::holds_alternative<Scan>(request) ? scans_ : stores_;
}

Status Desk::add(Request request, TimePoint deadline) {
  const Ticket ticket = ticket_of(request);
  Open open;
  if (const auto* load = std::get_if<Load>(&request)) {
    open = {bytes_of(load->groups), true, false, {}, false};
  } else if (const auto* store = std::get_if<NumberedStore>(&request)) {
    open = {bytes_of(store->store.groups), false, true, store->store.slot, false};
  }
  const std::lock_guard lock(mutex_);
  if (closed_) return make_error(ErrorCode::kUnavailable, "the disk tier closes");
  Queue& queue = queue_of(request);
  if (queue.size() >= queue_) {
    return make_error(ErrorCode::kWouldBlock, "the disk tier's queue is full: try again later");
  }
  if (open_.contains(ticket)) {
    return make_error(ErrorCode::kInvalidArgument, "the ticket is in use: draw a new one");
  }
  if (open.is_store && !written_slots_.insert(open.slot.value).second) {
    return make_error(ErrorCode::kWouldBlock, "the slot is being written: wait for its store");
  }
  open_.emplace(ticket, open);
  queue.push_back({std::move(request), deadline});
  return {};
}

void Desk::poll(std::vector<Completion>& completions) {
  const std::lock_guard lock(mutex_);
  std::move(completions_.begin(), completions_.end(), std::back_inserter(completions));
  completions_.clear();
}

void Desk::count(DiskStatus& status) {
  const std::lock_guard lock(mutex_);
  status.loads = numbers_.loads;
  status.stores = numbers_.stores;
  status.loaded = numbers_.loaded;
  status.stored = numbers_.stored;
  status.faults = numbers_.faults;
  status.under_way = numbers_.under_way;
  status.most_under_way = numbers_.most_under_way;
  status.waiting = static_cast<std::uint32_t>(loads_.size() + stores_.size() + scans_.size());
}

std::vector<Ticket> Desk::held() {
  const std::lock_guard lock(mutex_);
  std::vector<Ticket> tickets;
  for (const auto& [ticket, open] : open_) tickets.push_back(ticket);
  return tickets;
}

void Desk::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Desk::take_from(Queue& queue, std::uint32_t places, std::vector<Waiting>& taken) {
  for (; places > 0 && !queue.empty(); --places) {
    taken.push_back(std::move(queue.front()));
    queue.pop_front();
  }
}

void Desk::end_waiting(Queue& queue, TimePoint now, std::vector<Completion>& ended) {
  std::erase_if(queue, [&](const Waiting& waiting) {
    if (!closed_ && now < waiting.deadline) return false;
    const Fault fault = closed_ ? Fault::kClosed : Fault::kTimedOut;
    ended.push_back({ticket_of(waiting.request), fault, false, {}, {}});
    return true;
  });
}

std::vector<Waiting> Desk::take(const Flights& flights, TimePoint now,
                                std::vector<Completion>& ended) {
  std::vector<Waiting> taken;
  const std::lock_guard lock(mutex_);
  for (Queue* queue : {&loads_, &stores_, &scans_}) end_waiting(*queue, now, ended);
  if (flights.landed() >= depth_) return taken;  // outcomes are verified more slowly than they come
  take_from(loads_, left(depth_, flights.all()), taken);
  const std::uint32_t stores = loads_.empty() ? std::max(depth_ / kStoreShare, 1u) : 1u;
  take_from(stores_, left(stores, flights.stores()), taken);
  if (loads_.empty() && stores_.empty()) take_from(scans_, left(1, flights.scans()), taken);
  numbers_.under_way = flights.all() + static_cast<std::uint32_t>(taken.size());
  numbers_.most_under_way = std::max(numbers_.most_under_way, numbers_.under_way);
  return taken;
}

void Desk::note(const Open& open, const Completion& completion) {
  for (const Fault fault : completion.bad) ++numbers_.faults[static_cast<std::size_t>(fault)];
  if (completion.fault != Fault::kNone) {
    ++numbers_.faults[static_cast<std::size_t>(completion.fault)];
  } else if (open.is_load) {
    ++numbers_.loads;
    numbers_.loaded += open.bytes;
  } else if (open.is_store) {
    ++numbers_.stores;
    numbers_.stored += open.bytes;
  }
}

void Desk::deliver(std::vector<Completion>& completions, const Flights& flights) {
  const std::lock_guard lock(mutex_);
  for (Completion& completion : completions) {
    const auto open = open_.find(completion.ticket);
    if (!open->second.told) note(open->second, completion);
    open->second.told = true;
    if (!completion.memory_held) {
      if (open->second.is_store) written_slots_.erase(open->second.slot.value);
      open_.erase(open);
    }
    completions_.push_back(std::move(completion));
  }
  numbers_.under_way = flights.all();
  completions.clear();
}

bool Desk::finished() {
  const std::lock_guard lock(mutex_);
  return closed_ && open_.empty();
}

}  // namespace kvd::disk
