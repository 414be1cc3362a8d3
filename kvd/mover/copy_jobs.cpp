#include "kvd/mover/copy_jobs.hpp"

#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "kernels/device/fence.hpp"

namespace kvd::mover {

void CopyJobs::add(Order order) {
  const Ticket ticket = order.job;
  if (order.fence.word != nullptr) due_[order.fence.word].push_back({ticket, order.fence.value});
  waiting_[static_cast<std::size_t>(order.urgency)].add(order.owner, ticket);
  Job job;
  job.result.ticket = ticket;
  job.order = std::move(order);
  KVD_CHECK(jobs_.emplace(ticket, std::move(job)).second, "two copies of one ticket");
}

void CopyJobs::drop(Ticket ticket) {
  const auto found = jobs_.find(ticket);
  if (found == jobs_.end() || !found->second.waits) return;
  Job& job = found->second;
  stop_waiting(job);
  job.result.ok = false;
  job.result.dropped = true;
  if (job.order.fence.word != nullptr) give_up_fences(job.order.fence.word);
  if (job.in_flight == 0) end(job);
}

std::optional<CopyJobs::Burst> CopyJobs::next(Urgency urgency, Ticket number, Bytes limit,
                                              std::optional<DomainId> but) {
  JobTurns& turns = waiting_[static_cast<std::size_t>(urgency)];
  const auto ticket = turns.next(but);
  if (!ticket) return std::nullopt;
  Job& job = jobs_.at(*ticket);
  Order& order = job.order;
  Burst burst;
  burst.in_place = order.in_place;
  turns.took(order.owner.domain, order.runs.take(limit, burst.extents));
  const bool whole = !job.begun && order.runs.done();
  job.begun = true;
  ++job.in_flight;
  if (order.runs.done()) stop_waiting(job);
  if (whole && order.fence.word != nullptr && due_.at(order.fence.word).front().job == *ticket) {
    burst.fence = order.fence;
  }
  flying_.emplace(number, *ticket);
  return burst;
}

// The lists of what it copies are no longer needed, and may be long.
void CopyJobs::stop_waiting(Job& job) {
  waiting_[static_cast<std::size_t>(job.order.urgency)].remove(job.order.owner, job.order.job);
  job.order.runs = RunCursor();
  job.waits = false;
}

void CopyJobs::finished(Ticket burst, bool ok, Bytes bytes, Nanoseconds busy) {
  const auto found = flying_.find(burst);
  if (found == flying_.end()) return;
  Job& job = jobs_.at(found->second);
  flying_.erase(found);
  --job.in_flight;
  job.result.ok = job.result.ok && ok;
  if (ok) job.result.bytes += bytes;
  job.result.busy += busy;
  if (!ok && job.order.fence.word != nullptr) give_up_fences(job.order.fence.word);
  if (!job.waits && job.in_flight == 0) end(job);
}

void CopyJobs::end(Job& job) {
  if (job.order.fence.word != nullptr) publish_due(job);
  ended_.push_back(job.result);
  jobs_.erase(job.result.ticket);
}

// Publishing again what the device has published is harmless: a fence never goes back.
void CopyJobs::publish_due(const Job& job) {
  const auto found = due_.find(job.order.fence.word);
  if (found == due_.end()) return;
  auto& due = found->second;
  for (Due& fence : due) {
    if (fence.job == job.result.ticket) fence.complete = true;
  }
  while (!due.empty() && due.front().complete) {
    kernels::publish({job.order.fence.word, due.front().value});
    due.pop_front();
  }
  if (due.empty()) due_.erase(found);
}

void CopyJobs::give_up_fences(std::atomic<std::uint64_t>* word) {
  const auto found = due_.find(word);
  if (found == due_.end()) return;
  for (const Due& fence : found->second) {
    if (const auto job = jobs_.find(fence.job); job != jobs_.end()) job->second.order.fence = {};
  }
  due_.erase(found);
}

void CopyJobs::take_ended(std::vector<core::CopyFinished>& ended) {
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

}  // namespace kvd::mover
