#include "kvd/daemon/workers/copies.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvd::daemon {

namespace {

/// How long the ends of copies may keep the loop before commands get their turn.
constexpr Nanoseconds kCopyTurn = std::chrono::milliseconds(1);

}  // namespace

std::shared_ptr<PageLease> Copies::page_of(EngineId engine) {
  if (const Group* group = uses_.groups.find(engine)) return group->fences;
  const Peer* peer = uses_.sessions.find(engine);
  return peer ? peer->lease : nullptr;
}

void Copies::start(const core::CopySlots& copy) {
  std::shared_ptr<PageLease> lease = page_of(copy.engine);
  std::atomic<std::uint64_t>* fence = nullptr;
  // Nobody waits for a background copy, so its failure ends no session.
  if (lease && !copy.background) {
    fence = copy.to_hbm ? &lease->page().fence_h2d() : &lease->page().fence_d2h();
    fences_[copy.ticket] = {copy.engine, std::move(lease)};
  }
  const Group* group = uses_.groups.find(copy.engine);
  if (group && group->apart()) return uses_.movers.copy_apart(copy, fence);
  uses_.movers.copy(copy, fence);
}

void Copies::start(const core::CopyRanges& copy) {
  ranges_[copy.ticket] = copy.domain;
  uses_.movers.copy(copy);
}

void Copies::start(const core::StreamLayers& stream) {
  // A rank of a group has a number of its own here.
  const EngineId engine(stream.engine.value + stream.rank);
  Peer* peer = uses_.sessions.find(engine);
  if (!peer) return uses_.events.feed(core::CopyFinished{stream.ticket, false, Bytes(0), {}});
  shm::ServedClientPage& page = *peer->page;
  streams_[stream.ticket] = {stream.engine, peer->lease};
  const mover::LayerWords words{&page.progress_word(), &page.progress_wanted(),
                                &page.fence_layers()};
  if (stream.rank == 0) return uses_.movers.stream(stream, words);
  core::StreamLayers own = stream;
  own.engine = engine;
  uses_.movers.stream(own, words);
}

void Copies::take_finished() {
  finished_.clear();
  uses_.movers.poll(finished_);
  for (const core::CopyFinished& copy : finished_) {
    const auto of = ranges_.find(copy.ticket);
    ended_[of == ranges_.end() ? DomainId() : of->second].push_back(copy);
  }
  if (ended_.empty()) return;
  TimePoint now = uses_.events.now();
  const TimePoint until = now + kCopyTurn;
  do {
    const auto [domain, copy] = next_ended();
    finish(copy);
    const TimePoint begin = std::exchange(now, uses_.events.now());
    if (domain) turns_.took(domain, now - begin);
  } while (!ended_.empty() && now < until);
}

// Ends that are told quickly go first: fences, zeroed memory.
std::pair<DomainId, core::CopyFinished> Copies::next_ended() {
  const auto taken = [&](DomainId domain) {
    return domain ? turns_.taken(domain) : Nanoseconds(-1);
  };
  const auto least = std::min_element(
      ended_.begin(), ended_.end(),
      [&](const auto& a, const auto& b) { return taken(a.first) < taken(b.first); });
  std::pair next(least->first, least->second.front());
  least->second.pop_front();
  if (least->second.empty()) ended_.erase(least);
  return next;
}

void Copies::finish(const core::CopyFinished& copy) {
  ranges_.erase(copy.ticket);
  auto fenced = fences_.extract(copy.ticket);
  if (fenced.empty()) fenced = streams_.extract(copy.ticket);
  if (fenced.empty()) return uses_.events.feed(copy);
  const EngineId engine = fenced.mapped().engine;
  const bool failed = !copy.ok && !copy.dropped;
  if (failed) poison(fenced.mapped());
  uses_.groups.raise_fences(engine);
  uses_.events.feed(copy);
  if (failed) uses_.ends.drop(engine, "a copy of its blocks failed");
}

// Its fence stays behind: whoever waits is released by poison or not at all (safety rule 2).
void Copies::poison(const Fenced& lost) {
  lost.page->page().poison();
  uses_.sessions.each_rank(lost.engine, [](Peer& peer) { peer.page->poison(); });
}

}  // namespace kvd::daemon
