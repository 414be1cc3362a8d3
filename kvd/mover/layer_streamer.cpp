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
  session.domain = order.domain;
  engines_[order.ticket] = engine;
  Stream stream{std::move(order), {}};
  stream.parts.resize(stream.order.fetches.size());
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
    if (!session.awaits) continue;
    session.progress = session.words.progress->load(std::memory_order_acquire);
    if (session.progress >= *session.awaits) find_next_wait(session);
  }
}

bool LayerStreamer::Stream::any_due(std::uint64_t progress) const {
  for (std::size_t i = first; i < parts.size(); ++i) {
    if (due(i, progress)) return true;
  }
  return false;
}

/// The stream of the session to serve now, null for none. Fetches of a stopped stream may still
/// write slots that a later one fills, so the later one waits.
LayerStreamer::Stream* LayerStreamer::with_work(Session& session) {
  for (Stream& stream : session.streams) {
    if (stream.stopped() && stream.in_flight > 0) return nullptr;
    if (stream.stopped()) continue;
    if (!stream.again.empty() || stream.any_due(session.progress)) return &stream;
  }
  return nullptr;
}

std::optional<LayerStreamer::Next> LayerStreamer::next(Ticket number, Bytes limit) {
  EngineId engine;
  Session* chosen = nullptr;
  Stream* stream = nullptr;
  for (auto& [id, session] : sessions_) {
    if (chosen && !earlier(session, *chosen)) continue;
    if (Stream* found = with_work(session)) {
      engine = id;
      chosen = &session;
      stream = found;
    }
  }
  if (!chosen) return std::nullopt;
  chosen->served = served_[chosen->domain] = ++turns_;
  ++stream->in_flight;
  const auto [flying, added] = flying_.emplace(
      number, Flying{engine, stream->order.ticket, cut(*stream, chosen->progress, limit)});
  KVD_CHECK(added, "two bursts of one number");
  find_next_wait(*chosen);
  return Next{flying->second.burst.extents, chosen->domain};
}

bool LayerStreamer::earlier(const Session& a, const Session& b) const {
  const auto of = [&](const Session& session) {
    const auto found = served_.find(session.domain);
    return std::pair(found == served_.end() ? 0 : found->second, session.served);
  };
  return of(a) < of(b);
}

// Precondition: the stream has work.
LayerStreamer::Burst LayerStreamer::cut(Stream& stream, std::uint64_t progress, Bytes limit) {
  if (!stream.again.empty()) {
    Burst again = std::move(stream.again.front());
    stream.again.pop_front();
    return again;
  }
  // A burst takes as many fetches as fit: one alone, of one group of one request, is often short.
  Burst burst;
  Bytes room = limit;
  for (std::size_t i = stream.first; i < stream.parts.size() && room > Bytes(0); ++i) {
    if (!stream.due(i, progress)) continue;
    room -= cut_fetch(stream, i, room, burst);
    if (!stream.parts[i].cut) break;
  }
  while (stream.first < stream.parts.size() && stream.parts[stream.first].cut) ++stream.first;
  return burst;
}

Bytes LayerStreamer::cut_fetch(Stream& stream, std::size_t fetch, Bytes room, Burst& burst) {
  Part& part = stream.parts[fetch];
  if (!part.cursor) {
    auto runs = runs_of(*slabs_, stream.order.fetches[fetch].pairs, stream.order.slot_bytes, true);
    for (const kernels::CopyExtent& run : runs) counters_->runs[0].add(run.length);
    part.cursor.emplace(std::move(runs));
  }
  const Bytes taken = part.cursor->take(room, burst.extents);
  part.cut = part.cursor->done();
  if (part.cut) part.cursor.reset();
  if (taken > Bytes(0) || part.cut) {
    burst.fetches.push_back(fetch);
    ++part.open;
  }
  return taken;
}

void LayerStreamer::finished(Ticket number, bool ok, Bytes bytes, Nanoseconds busy) {
  const auto found = flying_.find(number);
  if (found == flying_.end()) return;
  Flying flying = std::move(found->second);
  flying_.erase(found);
  Session& session = sessions_.at(flying.engine);
  Stream& stream = *std::find_if(
      session.streams.begin(), session.streams.end(),
      [&](const Stream& candidate) { return candidate.order.ticket == flying.stream; });
  --stream.in_flight;
  if (ok) {
    for (const std::size_t fetch : flying.burst.fetches) --stream.parts[fetch].open;
    stream.bytes += bytes;
    stream.busy += busy;
    counters_->layer_bytes += bytes;
    counters_->layer_busy += busy;
    advance(stream);
  } else if (++flying.burst.tries < kTries) {
    ++counters_->layer_fetch_retries;
    stream.again.push_back(std::move(flying.burst));
  } else if (!stream.ended) {
    // All streams fail together: the mark of a later one would release whoever waits for this one.
    for (Stream& each : session.streams) each.failed = true;
  }
  settle(flying.engine);
}

void LayerStreamer::advance(Stream& stream) {
  while (stream.complete < stream.parts.size() && stream.parts[stream.complete].cut &&
         stream.parts[stream.complete].open == 0) {
    ++stream.complete;
    ++counters_->layer_fetches;
  }
}

/// Reports the streams that are through, and how far the first remaining one has come.
void LayerStreamer::settle(EngineId engine) {
  const auto found = sessions_.find(engine);
  Session& session = found->second;
  for (auto it = session.streams.begin(); it != session.streams.end();) {
    const bool first = it == session.streams.begin();
    if (first) raise_fence(session);
    // A stream that went well is reported after those before it, like its fence.
    if (!it->through() || !(first || it->stopped())) {
      ++it;
      continue;
    }
    ended_.push_back({it->order.ticket, !it->failed, it->bytes, it->busy});
    engines_.erase(it->order.ticket);
    it = session.streams.erase(it);
  }
  find_next_wait(session);
  if (session.streams.empty()) sessions_.erase(found);
  if (sessions_.empty()) served_.clear();
}

void LayerStreamer::raise_fence(Session& session) {
  Stream& stream = session.streams.front();
  if (stream.stopped()) return;
  const bool all = stream.complete == stream.parts.size();
  const std::uint32_t groups =
      all ? stream.order.groups : stream.order.fetches[stream.complete].group;
  const std::uint64_t mark = layer_mark(stream.order.iteration, groups);
  if (mark == stream.told) return;
  stream.told = mark;
  kernels::publish({session.words.fence, mark});
}

void LayerStreamer::find_next_wait(Session& session) {
  session.awaits.reset();
  for (const Stream& stream : session.streams) {
    if (stream.stopped()) continue;
    for (std::size_t i = stream.first; i < stream.parts.size(); ++i) {
      const std::uint64_t after = stream.order.fetches[i].after;
      if (stream.parts[i].cut || after <= session.progress) continue;
      session.awaits = std::min(after, session.awaits.value_or(after));
    }
  }
}

bool LayerStreamer::awaits_progress() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& entry) { return entry.second.awaits.has_value(); });
}

bool LayerStreamer::fall_asleep() {
  for (auto& [engine, session] : sessions_) {
    if (!session.awaits) continue;
    session.words.progress_wanted->store(*session.awaits, std::memory_order_seq_cst);
    if (session.words.progress->load(std::memory_order_seq_cst) >= *session.awaits) return false;
  }
  return true;
}

void LayerStreamer::take_ended(std::vector<core::CopyFinished>& ended) {
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

}  // namespace kvd::mover
