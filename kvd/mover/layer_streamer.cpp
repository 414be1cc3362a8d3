#include "kvd/mover/layer_streamer.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/layer_mark.hpp"
#include "kernels/device/fence.hpp"
#include "kvd/mover/runs.hpp"

namespace kvd::mover {

void LayerStreamer::begin(core::StreamLayers order, LayerWords words) {
  const EngineId engine = order.engine;
  Session& session = sessions_.try_emplace(engine, Session{words}).first->second;
  engines_[order.ticket] = engine;
  Stream stream;
  stream.open.resize(order.fetches.size());
  stream.order = std::move(order);
  session.streams.push_back(std::move(stream));
  session.progress = words.progress->load(std::memory_order_acquire);
  settle(engine);
}

void LayerStreamer::end(Ticket ticket) {
  const auto found = engines_.find(ticket);
  if (found == engines_.end()) return;  // it had ended by itself
  for (Stream& stream : sessions_.at(found->second).streams) {
    if (stream.order.ticket == ticket) stream.ended = true;
  }
  settle(found->second);
}

void LayerStreamer::look() {
  for (auto& [engine, session] : sessions_) {
    if (waits(session)) session.progress = session.words.progress->load(std::memory_order_acquire);
  }
}

bool LayerStreamer::waits(const Session& session) {
  const auto* fetch = session.streams.front().next();
  return fetch != nullptr && session.progress < fetch->after;
}

bool LayerStreamer::has_work(const Session& session) {
  const Stream& stream = session.streams.front();
  if (stream.ended || stream.failed) return false;
  return !stream.again.empty() || (stream.next() != nullptr && !waits(session));
}

std::optional<std::vector<kernels::CopyExtent>> LayerStreamer::next(Ticket burst, Bytes limit) {
  auto chosen = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (!has_work(it->second)) continue;
    if (chosen == sessions_.end() || it->second.served < chosen->second.served) chosen = it;
  }
  if (chosen == sessions_.end()) return std::nullopt;
  chosen->second.served = ++turns_;
  Stream& stream = chosen->second.streams.front();
  ++stream.in_flight;
  const auto [flying, added] =
      flying_.emplace(burst, Flying{chosen->first, stream.order.ticket, cut(stream, limit)});
  KVD_CHECK(added, "two bursts of one number");
  return flying->second.burst.extents;
}

// Precondition: the stream has work.
LayerStreamer::Again LayerStreamer::cut(Stream& stream, Bytes limit) {
  if (!stream.again.empty()) {
    Again again = std::move(stream.again.front());
    stream.again.pop_front();
    return again;
  }
  const core::StreamLayers::Fetch& fetch = stream.order.fetches[stream.cut];
  if (!stream.cursor) {
    auto runs = runs_of(*slabs_, fetch.pairs, stream.order.slot_bytes, true);
    for (const kernels::CopyExtent& run : runs) counters_->runs[0].add(run.length);
    stream.cursor.emplace(std::move(runs));
  }
  Again burst{stream.cut, 0, stream.cursor->take(limit)};
  ++stream.open[stream.cut];
  if (stream.cursor->done()) {
    stream.cursor.reset();
    ++stream.cut;
  }
  return burst;
}

void LayerStreamer::finished(Ticket number, bool ok, Bytes bytes, Nanoseconds busy) {
  const auto found = flying_.find(number);
  if (found == flying_.end()) return;
  Flying flying = std::move(found->second);
  flying_.erase(found);
  Session& session = sessions_.at(flying.engine);
  Stream& stream = session.streams.front();  // no other has bursts in flight
  --stream.in_flight;
  if (ok) {
    --stream.open[flying.burst.fetch];
    stream.bytes += bytes;
    stream.busy += busy;
    counters_->layer_bytes += bytes;
    counters_->layer_busy += busy;
    advance(stream);
  } else if (++flying.burst.tries < kTries) {
    ++counters_->layer_fetch_tries;
    stream.again.push_back(std::move(flying.burst));
  } else if (!stream.ended) {
    fail_session(session);
  }
  settle(flying.engine);
}

// Its later streams as well: their marks would release whoever waits for this one.
void LayerStreamer::fail_session(Session& session) {
  for (Stream& stream : session.streams) stream.failed = true;
}

void LayerStreamer::advance(Stream& stream) {
  while (stream.complete < stream.cut && stream.open[stream.complete] == 0) {
    ++stream.complete;
    ++counters_->layer_fetches;
  }
}

/// Tells of the streams that are through, and how far the first of those left has come.
void LayerStreamer::settle(EngineId engine) {
  const auto found = sessions_.find(engine);
  Session& session = found->second;
  for (auto it = session.streams.begin(); it != session.streams.end();) {
    const bool first = it == session.streams.begin();
    if (first) raise_fence(session);
    // One behind another has nothing in flight; it waits its turn unless it shall not go on.
    if (!it->through() || !(first || it->ended || it->failed)) {
      ++it;
      continue;
    }
    ended_.push_back({it->order.ticket, !it->failed, it->bytes, it->busy});
    engines_.erase(it->order.ticket);
    it = session.streams.erase(it);
  }
  if (session.streams.empty()) sessions_.erase(found);
}

void LayerStreamer::raise_fence(Session& session) {
  Stream& stream = session.streams.front();
  if (stream.ended || stream.failed) return;
  const auto& fetches = stream.order.fetches;
  const bool all = stream.complete == fetches.size();
  const std::uint32_t groups = all ? stream.order.groups : fetches[stream.complete].group;
  const std::uint64_t mark = layer_mark(stream.order.iteration, groups);
  if (mark == stream.told) return;
  stream.told = mark;
  kernels::publish({session.words.fence, mark});
}

bool LayerStreamer::awaits_progress() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& entry) { return waits(entry.second); });
}

bool LayerStreamer::progress_made() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
    const Session& session = entry.second;
    return waits(session) && session.words.progress->load(std::memory_order_acquire) >=
                                 session.streams.front().next()->after;
  });
}

bool LayerStreamer::fall_asleep() {
  for (auto& [engine, session] : sessions_) {
    if (!waits(session)) continue;
    const std::uint64_t after = session.streams.front().next()->after;
    session.words.progress_wanted->store(after, std::memory_order_seq_cst);
    if (session.words.progress->load(std::memory_order_seq_cst) >= after) return false;
  }
  return true;
}

void LayerStreamer::take_ended(std::vector<core::CopyFinished>& ended) {
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

}  // namespace kvd::mover
