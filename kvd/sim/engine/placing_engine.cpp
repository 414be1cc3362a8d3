#include "kvd/sim/engine/placing_engine.hpp"

#include <algorithm>
#include <limits>

namespace kvd::sim {

namespace {

using State = core::Schedule::State;

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

RequestId id_of(std::uint32_t index) { return RequestId(index + 1); }

std::uint32_t index_of(RequestId id) { return static_cast<std::uint32_t>(id.value - 1); }

}  // namespace

PlacingEngine::PlacingEngine(const Profile& profile, Room room, std::int64_t tokens,
                             const Workload& workload, std::vector<RequestRecord>& records)
    : profile_(profile),
      room_(room),
      tokens_(tokens > 0 ? tokens : kAny),
      workload_(workload),
      records_(records),
      live_(workload.size()),
      balloon_(room.hbm, room.chunk > 0 ? room.chunk : std::max<std::int64_t>(1, room.hbm)) {}

void PlacingEngine::arrive(std::uint32_t index) {
  const Arrival& arrival = workload_[index];
  if (blocks_for(arrival.prompt + arrival.output) <= room_.hbm) return waiting_.push_back(index);
  records_[index].refused = true;
  ++done_;
}

Tokens PlacingEngine::all_tokens(std::uint32_t index) const {
  return workload_[index].prompt + live_[index].generated;
}

bool PlacingEngine::computes_prompt(std::uint32_t index) const {
  const Live& live = live_[index];
  return live.generated == Tokens(0) || live.computed + Tokens(1) < all_tokens(index);
}

std::int64_t PlacingEngine::blocks_for(Tokens tokens) const {
  return pieces(tokens, Tokens(profile_.shape.block_tokens));
}

bool PlacingEngine::can_park(std::uint32_t index) const {
  const Live& live = live_[index];
  return live.computed > Tokens(0) && std::ssize(live.blocks) <= room_.dram;
}

bool PlacingEngine::asks() const {
  return !waiting_.empty() || std::any_of(running_.begin(), running_.end(),
                                          [&](std::uint32_t i) { return computes_prompt(i); });
}

core::Schedule PlacingEngine::told(TimePoint origin) const {
  core::Schedule out;
  out.free_blocks = balloon_.free() + leaving_;
  out.total_blocks = balloon_.granted();
  out.block_tokens = Tokens(profile_.shape.block_tokens);
  out.block_bytes = profile_.shape.slot_bytes() * std::int64_t{profile_.shape.groups()};
  out.last_step = last_step_.took;
  out.last_step_prefill = last_step_.prefill;
  out.last_step_decodes = last_step_.decodes;
  out.max_batched_tokens = tokens_ == kAny ? Tokens(0) : Tokens(tokens_);
  out.max_running = profile_.limits.max_num_seqs;
  const auto add = [&](std::uint32_t index, State state, bool stays) {
    core::Schedule::Request request = told_of(index, origin);
    request.state = state;
    request.stays = stays;
    out.requests.push_back(request);
  };
  for (const std::uint32_t i : running_) {
    add(i, State::kRunning, !can_park(i));
    out.requests.back().blocks = std::ssize(live_[i].blocks);
  }
  for (const std::uint32_t i : loading_) add(i, State::kRunning, true);
  for (const std::uint32_t i : waiting_) {
    const bool parked = live_[i].parked > 0;
    add(i, parked ? State::kParked : State::kWaiting, false);
    if (parked) out.requests.back().blocks_to_return = blocks_for(live_[i].computed + Tokens(1));
  }
  return out;
}

core::Schedule::Request PlacingEngine::told_of(std::uint32_t index, TimePoint origin) const {
  const Arrival& arrival = workload_[index];
  const RequestRecord& record = records_[index];
  const Live& live = live_[index];
  core::Schedule::Request told;
  told.request = id_of(index);
  told.prompt = arrival.prompt;
  told.computed = live.computed;
  told.generated = live.generated;
  told.max_new = arrival.announced.value_or(arrival.output);
  told.arrived = origin + whole(arrival.time);
  told.ttft = whole(record.ttft_slo);
  told.tbt = whole(record.tbt_slo);
  if (!record.tokens.empty()) {
    told.first_token = origin + whole(record.tokens.front());
    told.last_token = origin + whole(record.tokens.back());
  }
  return told;
}

void PlacingEngine::preempt(std::uint32_t index) {
  Live& live = live_[index];
  if (can_park(index)) {
    live.leaving = std::move(live.blocks);
    live.parked = std::ssize(live.leaving);
    room_.dram -= live.parked;
    leaving_ += live.parked;
    transfers_.push_back({index, live.parked, true});
  } else {
    balloon_.give(live.blocks);
    live.computed = Tokens(0);
  }
  live.blocks.clear();
  ++records_[index].rotations;
  waiting_.push_front(index);
}

void PlacingEngine::copied(const Transfer& transfer) {
  Live& live = live_[transfer.index];
  if (transfer.out) {
    leaving_ -= transfer.blocks;
    balloon_.give(std::exchange(live.leaving, {}));
    return;
  }
  room_.dram += std::exchange(live.parked, 0);
  std::erase(loading_, transfer.index);
  running_.push_back(transfer.index);
}

std::size_t PlacingEngine::apply(const core::ScheduleReply& answer) {
  for (const RequestId id : answer.preempt) {
    const std::uint32_t index = index_of(id);
    if (std::erase(running_, index) > 0) preempt(index);
  }
  if (answer.prefill_tokens != UINT32_MAX) {
    // Tokens are given in this order, and no prompt should take those of the answers.
    std::stable_partition(running_.begin(), running_.end(),
                          [&](std::uint32_t i) { return !computes_prompt(i); });
    const auto decodes = std::count_if(running_.begin(), running_.end(),
                                       [&](std::uint32_t i) { return !computes_prompt(i); });
    const std::int64_t bound =
        std::int64_t{answer.prefill_tokens} + decodes + std::ssize(answer.admit);
    budget_ = std::min(budget_, std::max<std::int64_t>(1, bound));
  }
  return let_in(answer.admit);
}

std::size_t PlacingEngine::let_in(const std::vector<RequestId>& admitted) {
  if (admitted.empty() && open() == waiting_.size()) return kAll;  // else nothing would ever run
  std::deque<std::uint32_t> line;
  for (const RequestId id : admitted) {
    if (std::erase(waiting_, index_of(id)) > 0) line.push_back(index_of(id));
  }
  const std::size_t shown = line.size();
  line.insert(line.end(), waiting_.begin(), waiting_.end());
  waiting_ = std::move(line);
  return shown;
}

Batch PlacingEngine::plan(const core::ScheduleReply* answer, TimePoint now) {
  items_.clear();
  budget_ = tokens_;
  const std::size_t shown = answer == nullptr ? kAll : apply(*answer);
  if (serve_running(now)) serve_waiting(shown);
  return batch();
}

bool PlacingEngine::serve_running(TimePoint now) {
  bool fits = true;
  for (std::size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    const std::uint32_t index = running_[i];
    const Tokens left = all_tokens(index) - live_[index].computed;
    const Tokens tokens(std::min(budget_, left.value));
    const std::size_t before = running_.size();
    if (!make_room_for(index, tokens, now)) return false;
    fits = fits && running_.size() == before;
    items_.push_back({index, tokens, !computes_prompt(index)});
    budget_ -= tokens.value;
  }
  return fits;
}

// The latest requests in the list leave until there is room. False: the request itself was the
// latest, or memory is coming.
bool PlacingEngine::make_room_for(std::uint32_t index, Tokens tokens, TimePoint now) {
  Live& live = live_[index];
  const std::int64_t more = blocks_for(live.computed + tokens) - std::ssize(live.blocks);
  while (more > balloon_.free()) {
    if (balloon_.has_room_coming(now)) return false;
    const std::uint32_t victim = running_.back();
    running_.pop_back();
    preempt(victim);
    if (victim == index) return false;
  }
  balloon_.take(more, live.blocks);
  return true;
}

void PlacingEngine::serve_waiting(std::size_t shown) {
  for (std::size_t at = 0; shown > 0 && at < waiting_.size() && budget_ > 0; --shown) {
    if (running_.size() + loading_.size() >= profile_.limits.max_num_seqs) return;
    const std::uint32_t index = waiting_[at];
    if (!live_[index].leaving.empty()) {  // it cannot be read before it has been stored
      ++at;
      continue;
    }
    if (!come_in(index)) return;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

bool PlacingEngine::come_in(std::uint32_t index) {
  Live& live = live_[index];
  const bool parked = live.parked > 0;
  const Tokens tokens(parked ? 1 : std::min(budget_, (all_tokens(index) - live.computed).value));
  const std::int64_t blocks = blocks_for(live.computed + tokens);
  if (blocks > balloon_.free()) return false;
  balloon_.take(blocks, live.blocks);
  if (parked) {
    transfers_.push_back({index, live.parked, false});
    loading_.push_back(index);
    return true;
  }
  running_.push_back(index);
  items_.push_back({index, tokens, false});
  budget_ -= tokens.value;
  return true;
}

Batch PlacingEngine::batch() const {
  Batch batch;
  for (const Item& item : items_) {
    const auto tokens = static_cast<double>(item.tokens.value);
    const std::int64_t present = live_[item.index].computed.value;
    if (item.decodes) {
      ++batch.decoding;
      batch.context_tokens += present;
    } else {
      batch.prompt_tokens += item.tokens.value;
      batch.prompt_pairs += tokens * (static_cast<double>(present) + (tokens + 1) / 2);
    }
  }
  return batch;
}

void PlacingEngine::begin(Seconds now) {
  for (const Item& item : items_) {
    RequestRecord& record = records_[item.index];
    if (record.scheduled < Seconds(0)) record.scheduled = now;
  }
}

std::size_t PlacingEngine::complete(Seconds now, Nanoseconds took) {
  last_step_ = {took, Tokens(0), 0};
  std::size_t made = 0;
  for (const Item& item : items_) {
    Live& live = live_[item.index];
    (item.decodes ? last_step_.decodes : last_step_.prefill.value) += item.tokens.value;
    live.computed += item.tokens;
    if (live.computed < all_tokens(item.index)) continue;
    live.generated += Tokens(1);
    ++made;
    records_[item.index].tokens.push_back(now);
    if (live.generated < workload_[item.index].output) continue;
    records_[item.index].finish = now;
    balloon_.give(std::exchange(live.blocks, {}));
    std::erase(running_, item.index);
    ++done_;
  }
  items_.clear();
  return made;
}

}  // namespace kvd::sim
