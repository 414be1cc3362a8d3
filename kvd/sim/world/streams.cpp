#include "kvd/sim/world/streams.hpp"

#include <algorithm>
#include <utility>

namespace kvd::sim {

std::vector<Streams::Stream>::iterator Streams::find(Ticket ticket) {
  return std::find_if(streams_.begin(), streams_.end(),
                      [&](const Stream& s) { return s.order.ticket == ticket; });
}

std::optional<Streams::Ended> Streams::begin(core::StreamLayers stream, Link& link, TimePoint now) {
  const std::size_t fetches = stream.fetches.size();
  Stream added{std::move(stream), {}, {}, 0, fetches, 0, Nanoseconds(0)};
  added.issued.assign(fetches, false);
  added.complete.assign(fetches, false);
  streams_.push_back(std::move(added));
  issue(streams_.back(), link, now);
  return end_if_done(std::prev(streams_.end()));
}

std::optional<Streams::Ended> Streams::stop(Ticket ticket, Link& link, TimePoint now) {
  const auto stream = find(ticket);
  if (stream == streams_.end()) return std::nullopt;
  const std::size_t canceled = link.cancel(ticket, now);
  const auto unissued = std::count(stream->issued.begin(), stream->issued.end(), false);
  stream->issued.assign(stream->issued.size(), true);
  stream->pending -= canceled + static_cast<std::size_t>(unissued);
  return end_if_done(stream);
}

void Streams::progressed(std::uint64_t mark, Link& link, TimePoint now) {
  mark_ = std::max(mark_, mark);
  for (Stream& stream : streams_) issue(stream, link, now);
}

void Streams::issue(Stream& stream, Link& link, TimePoint now) {
  for (std::uint32_t i = 0; i < stream.order.fetches.size(); ++i) {
    const auto& fetch = stream.order.fetches[i];
    if (stream.issued[i] || fetch.after > mark_) continue;
    stream.issued[i] = true;
    Link::Job job;
    job.ticket = stream.order.ticket;
    job.part = i;
    job.group = fetch.group;
    job.priority = Link::Class::kStream;
    job.slots = static_cast<std::int64_t>(fetch.pairs.size());
    job.slot_bytes = stream.order.slot_bytes;
    link.add(Link::kH2d, job, now);
  }
}

std::optional<Streams::Ended> Streams::fetched(const Link::Ended& job) {
  const auto stream = find(job.job.ticket);
  if (stream == streams_.end()) return std::nullopt;
  stream->complete[job.job.part] = true;
  --stream->pending;
  stream->slots += job.job.slots;
  stream->busy += job.busy;
  const std::size_t all = stream->complete.size();
  while (stream->first_open < all && stream->complete[stream->first_open]) ++stream->first_open;
  return end_if_done(stream);
}

std::optional<Streams::Ended> Streams::end_if_done(std::vector<Stream>::iterator stream) {
  if (stream->pending > 0) return std::nullopt;
  const Ended ended{stream->order.ticket, stream->order.slot_bytes * stream->slots, stream->slots,
                    stream->busy};
  streams_.erase(stream);
  return ended;
}

bool Streams::ready(std::uint64_t iteration, std::uint32_t group) const {
  return std::none_of(streams_.begin(), streams_.end(), [&](const Stream& s) {
    // Fetches are in ascending order of groups.
    return s.order.iteration == iteration && s.first_open < s.order.fetches.size() &&
           s.order.fetches[s.first_open].group <= group;
  });
}

}  // namespace kvd::sim
