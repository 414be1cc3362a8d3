#include "kvd/sim/engine/balloon.hpp"

#include <algorithm>
#include <tuple>

namespace kvd::sim {

namespace {

/// A chunk that has been retiring for longer than this blocks others, so the requests that run in
/// it are parked.
constexpr Nanoseconds kOverdue = std::chrono::milliseconds(50);
/// How long a step may wait for growth instead of preempting: until kvd has heard that it is
/// wanted, and once kvd has granted it.
constexpr Nanoseconds kUnheard = std::chrono::milliseconds(50);
constexpr Nanoseconds kGrowth = std::chrono::milliseconds(500);

}  // namespace

Balloon::Balloon(std::int64_t blocks, std::int64_t chunk_blocks)
    : blocks_(blocks),
      chunk_blocks_(chunk_blocks),
      state_(static_cast<std::size_t>((blocks + chunk_blocks - 1) / chunk_blocks), State::kHeld),
      place_(static_cast<std::size_t>(blocks)),
      use_(static_cast<std::size_t>(blocks), Use::kClaimed) {
  if (state_.empty()) return;
  let_go(0);
  state_.front() = State::kKept;
}

std::int64_t Balloon::size_of(std::uint32_t chunk) const {
  return std::min(chunk_blocks_, blocks_ - chunk * chunk_blocks_);
}

void Balloon::take(std::int64_t count, Blocks& blocks) {
  for (; count > 0; --count) {
    blocks.push_back(free_.front());
    use_[free_.front()] = Use::kUsed;
    free_.pop_front();
  }
}

void Balloon::give(const Blocks& blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (state_[chunk_of(*block)] == State::kRetiring) {
      use_[*block] = Use::kClaimed;
      --granted_;
      continue;
    }
    use_[*block] = Use::kFree;
    place_[*block] = free_.insert(free_.end(), *block);
  }
}

void Balloon::claim_free_of(std::uint32_t chunk) {
  const std::int64_t begin = chunk * chunk_blocks_;
  for (std::int64_t at = begin; at < begin + size_of(chunk); ++at) {
    const auto block = static_cast<std::size_t>(at);
    if (use_[block] != Use::kFree) continue;
    free_.erase(place_[block]);
    use_[block] = Use::kClaimed;
    --granted_;
  }
}

void Balloon::let_go(std::uint32_t chunk) {
  const std::int64_t begin = chunk * chunk_blocks_;
  for (std::int64_t at = begin; at < begin + size_of(chunk); ++at) {
    const auto block = static_cast<std::size_t>(at);
    if (use_[block] != Use::kClaimed) continue;
    use_[block] = Use::kFree;
    place_[block] = free_.insert(free_.end(), static_cast<std::uint32_t>(at));
    ++granted_;
  }
}

void Balloon::hear(const News& news) {
  for (const std::uint32_t chunk : news.gone) state_[chunk] = State::kHeld;
  for (const std::uint32_t chunk : news.grown) {
    state_[chunk] = State::kGranted;
    let_go(chunk);
    short_.reset();
  }
  allowed_ = news.allowed;
  told_ = news.told;
}

std::vector<std::uint32_t> Balloon::shrink(bool busy, TimePoint now) {
  const std::int64_t excess = busy ? have() - allowed_.value_or(have()) : have();
  const std::vector<std::uint32_t> chosen = least_missed(std::max<std::int64_t>(0, excess));
  for (auto at = retire_.begin(); at != retire_.end();) {
    if (std::find(chosen.begin(), chosen.end(), at->first) != chosen.end()) {
      ++at;
      continue;
    }
    state_[at->first] = State::kGranted;
    let_go(at->first);
    at = retire_.erase(at);
  }
  std::vector<std::uint32_t> leave;
  for (const std::uint32_t chunk : chosen) {
    state_[chunk] = State::kRetiring;
    retire_.try_emplace(chunk, now);
    claim_free_of(chunk);
    if (used_in(chunk) > 0) continue;
    state_[chunk] = State::kLeaving;
    retire_.erase(chunk);
    leave.push_back(chunk);
  }
  return leave;
}

std::int64_t Balloon::used_in(std::uint32_t chunk) const {
  const auto begin = use_.begin() + static_cast<std::ptrdiff_t>(chunk * chunk_blocks_);
  return std::count(begin, begin + static_cast<std::ptrdiff_t>(size_of(chunk)), Use::kUsed);
}

// Chunks without a used block come first, then those that already retire, then those with the
// fewest used blocks.
std::vector<std::uint32_t> Balloon::least_missed(std::int64_t count) const {
  if (count == 0) return {};
  std::vector<std::tuple<bool, bool, std::int64_t, std::int64_t>> order;
  for (std::uint32_t chunk = 0; chunk < state_.size(); ++chunk) {
    if (state_[chunk] != State::kGranted && state_[chunk] != State::kRetiring) continue;
    const std::int64_t used = used_in(chunk);
    const bool is_new = state_[chunk] == State::kGranted;
    order.emplace_back(used > 0, is_new && used > 0, used, -std::int64_t{chunk});
  }
  std::sort(order.begin(), order.end());
  std::vector<std::uint32_t> chosen;
  for (const auto& each : order) {
    if (std::ssize(chosen) == count) break;
    chosen.push_back(static_cast<std::uint32_t>(-std::get<3>(each)));
  }
  return chosen;
}

bool Balloon::in_the_way(const Blocks& blocks, TimePoint now) const {
  return std::any_of(blocks.begin(), blocks.end(), [&](std::uint32_t block) {
    const auto since = retire_.find(chunk_of(block));
    return since != retire_.end() && since->second < now - kOverdue;
  });
}

bool Balloon::has_room_coming(TimePoint now) {
  if (count(State::kHeld) == 0) return false;
  if (!short_ || now - short_->last > kGrowth) short_ = Short{now, now};
  short_->last = now;
  const bool heard = told_ > have();
  const bool likely = allowed_ && *allowed_ > have();
  const Nanoseconds patience = likely ? kGrowth : heard ? Nanoseconds(0) : kUnheard;
  return now < short_->first + patience;
}

bool Balloon::has_work() const {
  return elastic() && (have() > 0 || told_ > 0 || count(State::kLeaving) > 0);
}

std::int64_t Balloon::chunks_for(std::int64_t blocks) const {
  const std::int64_t more = std::max<std::int64_t>(0, blocks - chunk_blocks_);
  return std::min((more + chunk_blocks_ - 1) / chunk_blocks_, std::ssize(state_) - 1);
}

std::int64_t Balloon::have() const { return count(State::kGranted) + count(State::kRetiring); }

std::int64_t Balloon::count(State state) const {
  return std::count(state_.begin(), state_.end(), state);
}

}  // namespace kvd::sim
