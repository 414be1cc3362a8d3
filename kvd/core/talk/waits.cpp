#include "kvd/core/talk/waits.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvd::core {

Waits::Waits(Ground& ground, const std::vector<RotationInput>& asked)
    : requests_(ground.requests), line_(ground.line), drains_(ground.drains) {
  for (const RotationInput& input : asked) add(input);
  for (const auto& [key, request] : ground.requests.all()) {
    if (request.promised) makes_way_.insert(requests_.session_of(request).info.domain);
  }
}

// Goes in the order of service. A request on several devices needs room on each.
void Waits::add(const RotationInput& asked) {
  const auto& requests = asked.snapshot.requests;
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(requests[a].place, requests[a].t_arr) <
           std::pair(requests[b].place, requests[b].t_arr);
  });
  Bytes left = asked.snapshot.b_hbm;
  for (const std::size_t i : order) {
    if (requests[i].state == planner::RequestState::kRunning) continue;
    Room& room = room_[asked.requests[i]];
    const bool fits = requests[i].bytes <= left;
    if (fits) left -= requests[i].bytes;
    const auto& dram = asked.snapshot.dram;
    room.in_hbm = room.in_hbm && fits;
    room.in_dram = room.in_dram && (!dram || requests[i].bytes <= dram->free);
  }
}

WaitReason Waits::of(const Request& request) const {
  const Session& session = requests_.session_of(request);
  const bool drained =
      request.verdict == Verdict::kDrained || (request.waits() && drains_.drains(session));
  if (request.verdict == Verdict::kHopeless) return WaitReason::kEnds;
  if (!session.life.responsive || session.life.dying) return WaitReason::kSilent;
  if (drained) return WaitReason::kDrained;
  if (request.forced_out()) return WaitReason::kForced;
  if (request.paused()) return WaitReason::kPaused;
  if (request.content.awaits_disk) return WaitReason::kDisk;
  if (request.order.claim != 0) {
    if (request.order.awaits_mapping) return WaitReason::kMapping;
    return makes_way_.contains(session.info.domain) ? WaitReason::kPromised : WaitReason::kMemory;
  }
  if (request.place == Location::kGoing) return WaitReason::kYields;
  if (request.place == Location::kComing) return WaitReason::kCopy;
  return request.runs() ? inside(request) : outside(request);
}

WaitReason Waits::inside(const Request& request) const {
  const Session& session = requests_.session_of(request);
  const bool runs = request.progress.last_iteration > session.iterations.finished;
  if (runs || !request.goal_passes()) return WaitReason::kNone;
  if (request.leaving || request.promised) return WaitReason::kYields;
  if (request.starved) return WaitReason::kMemory;
  const bool is_new = request.times.run_since >= session.life.last_step;
  return is_new ? WaitReason::kStep : WaitReason::kBehind;
}

WaitReason Waits::outside(const Request& request) const {
  if (request.verdict == Verdict::kHeldBack) return WaitReason::kHeldBack;
  if (request.order.curbed) return WaitReason::kCurbed;
  const auto room = room_.find(request.key);
  const bool asked = room != room_.end();
  if (asked && room->second.in_hbm) return WaitReason::kStep;
  if (!request.times.has_token && line_.serves_last(request)) return WaitReason::kLate;
  if (asked) return room->second.in_dram ? WaitReason::kMemory : WaitReason::kDram;
  return request.order.place == 0 ? WaitReason::kMemory : WaitReason::kBehind;
}

}  // namespace kvd::core
