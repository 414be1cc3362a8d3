#include "kvd/mover/copy_jobs.hpp"

#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "kernels/device/fence.hpp"

namespace kvd::mover {

void CopyJobs::add(Ticket ticket, Urgency urgency, std::vector<kernels::CopyExtent> runs,
                   kernels::Fence fence, bool in_place) {
  Job job;
  job.in_place = in_place;
  job.result.ticket = ticket;
  job.runs = RunCursor(std::move(runs));
  job.fence = fence;
  if (fence.word != nullptr) due_[fence.word].push_back({ticket, fence.value});
  KVD_CHECK(jobs_.emplace(ticket, std::move(job)).second, "two copies of one ticket");
  waiting_[static_cast<std::size_t>(urgency)].push_back(ticket);
}

std::optional<CopyJobs::Burst> CopyJobs::next(Urgency urgency, Ticket number, Bytes limit) {
  auto& waiting = waiting_[static_cast<std::size_t>(urgency)];
  if (waiting.empty()) return std::nullopt;
  const Ticket ticket = waiting.front();
  Job& job = jobs_.at(ticket);
  Burst burst;
  burst.in_place = job.in_place;
  job.runs.take(limit, burst.extents);
  const bool whole = !job.begun && job.runs.done();
  job.begun = true;
  ++job.in_flight;
  if (job.runs.done()) waiting.pop_front();
  if (whole && job.fence.word != nullptr && due_.at(job.fence.word).front().job == ticket) {
    burst.fence = job.fence;
  }
  flying_.emplace(number, ticket);
  return burst;
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
  if (!ok && job.fence.word != nullptr) give_up_fences(job.fence.word);
  if (job.through()) end(job);
}

void CopyJobs::end(Job& job) {
  if (job.fence.word != nullptr) publish_due(job);
  ended_.push_back(job.result);
  jobs_.erase(job.result.ticket);
}

// Again what the device has published is harmless: a fence never goes back.
void CopyJobs::publish_due(const Job& job) {
  const auto found = due_.find(job.fence.word);
  if (found == due_.end()) return;
  auto& due = found->second;
  for (Due& fence : due) {
    if (fence.job == job.result.ticket) fence.complete = true;
  }
  while (!due.empty() && due.front().complete) {
    kernels::publish({job.fence.word, due.front().value});
    due.pop_front();
  }
  if (due.empty()) due_.erase(found);
}

void CopyJobs::give_up_fences(std::atomic<std::uint64_t>* word) {
  const auto found = due_.find(word);
  if (found == due_.end()) return;
  for (const Due& fence : found->second) {
    if (const auto job = jobs_.find(fence.job); job != jobs_.end()) job->second.fence = {};
  }
  due_.erase(found);
}

void CopyJobs::take_ended(std::vector<core::CopyFinished>& ended) {
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

}  // namespace kvd::mover
