#include "kvd/sim/engine/engine.hpp"

#include <algorithm>
#include <limits>

namespace kvd::sim {

Engine::Engine(const Profile& profile, std::int64_t prefill_tokens, const Workload& workload,
               std::vector<RequestRecord>& records, Seating seating)
    : profile_(profile),
      prefill_tokens_(prefill_tokens > 0 ? prefill_tokens
                                         : std::numeric_limits<std::int64_t>::max()),
      seating_(seating),
      workload_(workload),
      records_(records),
      live_(workload.size()) {
  for (std::size_t i = 0; i < workload.size(); ++i) {
    live_[i].prompt = workload[i].prompt.value;
    live_[i].output = workload[i].output.value;
  }
}

std::int64_t Engine::seat_tokens(std::uint32_t index) const {
  const Arrival& arrival = workload_[index];
  return (arrival.prompt + arrival.announced.value_or(arrival.output)).value;
}

double Engine::seat_order(std::uint32_t index) const {
  const Arrival& arrival = workload_[index];
  if (seating_.shortest_first) return static_cast<double>(arrival.output.value);
  return (arrival.time + arrival.ttft_slo.value_or(*seating_.ttft)).count();
}

std::deque<std::uint32_t>::iterator Engine::next_in_queue() {
  if (!seating_.shortest_first && !seating_.ttft) return queue_.begin();
  return std::min_element(queue_.begin(), queue_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return seat_order(a) < seat_order(b);
  });
}

std::optional<std::uint32_t> Engine::seat() {
  if (queue_.empty() || open_ >= profile_.limits.max_num_seqs) return std::nullopt;
  const auto next = next_in_queue();
  const std::uint32_t index = *next;
  const std::int64_t most = profile_.limits.max_total_tokens;
  // A request that alone exceeds the limit still gets its turn, by itself.
  if (most > 0 && open_ > 0 && open_tokens_ + seat_tokens(index) > most) return std::nullopt;
  queue_.erase(next);
  return index;
}

void Engine::submitted(std::uint32_t index, TimePoint now, bool accepted) {
  records_[index].submitted = Seconds(now);
  if (!accepted) {
    records_[index].refused = true;
    return;
  }
  ++open_;
  open_tokens_ += seat_tokens(index);
}

Batch Engine::plan(const core::StepReply& reply) {
  items_.clear();
  Batch batch;
  std::int64_t left = prefill_tokens_;
  for (const core::RunEntry& entry : reply.run) {
    const auto index = static_cast<std::uint32_t>(entry.request.value - 1);
    Live& live = live_[index];
    live.out = false;
    if (live.done) continue;
    // The request has more than was ever granted: blocks that were found when it began or while it
    // was computed.
    if (entry.present.value > live.granted) {
      records_[index].found += entry.present - Tokens(live.tokens);
      live.tokens = entry.present.value;
    }
    live.granted = (entry.present + entry.tokens).value;
    // The list may have been made before the last iteration ended. What counts is how far the
    // request may get, not where it was thought to be.
    const std::int64_t most = entry.present.value + entry.tokens.value - live.tokens;
    if (live.tokens < live.prompt) {
      const std::int64_t part = std::min({most, live.prompt - live.tokens, left});
      if (part <= 0) continue;
      left -= part;
      batch.prompt_tokens += part;
      batch.prompt_pairs += static_cast<double>(part) * (static_cast<double>(live.tokens) +
                                                         (static_cast<double>(part) + 1) / 2);
      items_.push_back({index, part});
    } else if (most > 0) {
      ++batch.decoding;
      batch.context_tokens += live.tokens;
      items_.push_back({index, 1});
    }
  }
  return batch;
}

void Engine::begin(Seconds now) {
  for (const Item& item : items_) {
    RequestRecord& record = records_[item.index];
    if (record.scheduled < Seconds(0)) record.scheduled = now;
    let_run(item.index, now);
  }
}

void Engine::let_run(std::uint32_t index, Seconds now) {
  Seconds& since = live_[index].held_since;
  if (since >= Seconds(0)) records_[index].held += now - since;
  since = Seconds(-1);
}

void Engine::close(Seconds now) {
  for (std::uint32_t i = 0; i < live_.size(); ++i) let_run(i, now);
}

std::size_t Engine::complete(Seconds now) {
  std::size_t done = 0;
  for (const Item& item : items_) {
    Live& live = live_[item.index];
    live.tokens += item.tokens;
    if (live.tokens >= live.prompt) {
      live.held_since = Seconds(-1);
      records_[item.index].tokens.push_back(now);
      live.done = live.tokens - live.prompt + 1 >= live.output;
    }
    reports_.push_back({RequestId(item.index + 1), Tokens(live.tokens), live.done});
    if (!live.done) continue;
    ++done;
    end(item.index, now);
  }
  items_.clear();
  return done;
}

void Engine::end(std::uint32_t index, Seconds now) {
  records_[index].finish = now;
  --open_;
  open_tokens_ -= seat_tokens(index);
}

void Engine::note_holds(const core::StepReply& reply, Seconds now) {
  for (const core::HoldEntry& hold : reply.hold) {
    const auto index = static_cast<std::uint32_t>(hold.request.value - 1);
    Live& live = live_[index];
    const bool prompt = records_[index].tokens.empty() && hold.reason != core::Hold::kComplete;
    if (prompt && live.held_since < Seconds(0)) live.held_since = now;
    const bool paused = hold.reason == core::Hold::kPaused;
    if (!paused && hold.reason != core::Hold::kSwappedOut) continue;
    if (live.out || live.done || records_[index].scheduled < Seconds(0)) continue;
    live.out = true;
    ++(paused ? records_[index].pauses : records_[index].rotations);
  }
}

}  // namespace kvd::sim
