#include "kvd/sim/world/mapper.hpp"

#include <algorithm>

namespace kvd::sim {

namespace {

constexpr Nanoseconds kAsks = std::chrono::milliseconds(20);
/// Pause after there was no room, since others have not given it back yet.
constexpr Nanoseconds kNoRoom = std::chrono::milliseconds(50);
/// kvd forgets an engine's wants after 2 s without a message, and a step may take longer than that.
constexpr Nanoseconds kReminds = std::chrono::milliseconds(500);
constexpr Nanoseconds kGrows = std::chrono::milliseconds(10);
constexpr Nanoseconds kCall = std::chrono::milliseconds(500);
/// Time to map or unmap a chunk, with the calls that it takes: a figure of ours.
constexpr Nanoseconds kMapping = std::chrono::milliseconds(1);

}  // namespace

Mapper::Mapper(RegionId space, RegionId kept, std::size_t chunks, Bytes chunk, Ask ask)
    : space_(space), chunk_(chunk), ask_(std::move(ask)), parts_(chunks) {
  parts_.front() = kept;
}

void Mapper::begin(Orders orders, TimePoint now) {
  demand_ = std::move(orders.demand);
  ordered_.insert(ordered_.end(), orders.leave.begin(), orders.leave.end());
  is_told_ = true;
  if (phase_ == Phase::kSleeps) next_ = now;
}

News Mapper::take_news() {
  News taken = news_;
  news_.grown.clear();
  news_.gone.clear();
  return taken;
}

void Mapper::wake(TimePoint now) {
  switch (phase_) {
    case Phase::kSleeps:
      return begin_round(now);
    case Phase::kRests:
      if (is_told_) return begin_round(now);
      phase_ = Phase::kSleeps;
      next_ = demand_.wanted > demand_.kept || !ordered_.empty() || !leaving_.empty()
                  ? now + kReminds
                  : TimePoint::max();
      return;
    case Phase::kUnmaps:
    case Phase::kMaps:
      end_call();
      return go_on(now);
    case Phase::kAwaits:
      return;
  }
}

void Mapper::begin_round(TimePoint now) {
  is_told_ = false;
  leaving_.insert(leaving_.end(), ordered_.begin(), ordered_.end());
  ordered_.clear();
  const auto reply = ask_(core::ShareSpace{space_, demand_}, kCall);
  const auto* may = reply ? std::get_if<core::ValueReply>(&reply->body) : nullptr;
  if (may == nullptr) return rest(now + kReminds);
  const std::int64_t share = static_cast<std::int64_t>(may->value) - chunk_.value;
  news_.allowed = std::max<std::int64_t>(0, share) / chunk_.value;
  news_.told = (demand_.wanted - demand_.kept) / chunk_;
  target_ = std::min(*news_.allowed, news_.told);
  go_on(now);
}

void Mapper::end_call() {
  RegionId& part = parts_[taken_];
  if (phase_ == Phase::kUnmaps) {
    (void)ask_(core::ReleaseRegion{part}, kCall);
    part = RegionId();
    news_.gone.push_back(taken_);
  } else {
    (void)ask_(core::PlaceRegion{space_, part, {taken_}}, kCall);
    news_.grown.push_back(taken_);
  }
}

// Chunks that have to leave go first; then come those that it may have.
void Mapper::go_on(TimePoint now) {
  if (leaving_.empty()) return take_next(now);
  taken_ = leaving_.front();
  leaving_.erase(leaving_.begin());
  phase_ = Phase::kUnmaps;
  next_ = now + kMapping;
}

void Mapper::take_next(TimePoint now) {
  const auto have = std::count_if(parts_.begin() + 1, parts_.end(),
                                  [](RegionId part) { return static_cast<bool>(part); });
  if (have >= target_) return rest(now + kAsks);
  const auto free = std::find_if(parts_.begin(), parts_.end(), [](RegionId part) { return !part; });
  taken_ = static_cast<std::uint32_t>(free - parts_.begin());
  phase_ = Phase::kAwaits;
  next_ = TimePoint::max();
  if (const auto reply = ask_(core::AllocateRegion{chunk_}, kGrows)) answered(*reply, now);
}

void Mapper::answered(const core::Reply& reply, TimePoint now) {
  const auto* region = std::get_if<core::RegionReply>(&reply.body);
  if (region == nullptr) return rest(now + kNoRoom);
  parts_[taken_] = region->region;
  phase_ = Phase::kMaps;
  next_ = now + kMapping;
}

void Mapper::rest(TimePoint until) {
  phase_ = Phase::kRests;
  next_ = until;
}

}  // namespace kvd::sim
