#include "kvd/sim/world/link.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ipc/vocabulary/layer_mark.hpp"
#include "kvd/sim/world/streams.hpp"
#include "planner/model/latency.hpp"

namespace kvd::sim {
namespace {

using std::chrono::milliseconds;

Link::Job job(std::uint64_t ticket, std::int64_t slots, Link::Class priority = Link::Class::kSwap) {
  Link::Job made;
  made.ticket = Ticket(ticket);
  made.priority = priority;
  made.slots = slots;
  made.slot_bytes = Bytes(1'000'000);
  return made;
}

/// Every end until nothing is left: (ticket, milliseconds to the microsecond).
std::vector<std::pair<std::uint64_t, double>> ends(Link& link) {
  std::vector<std::pair<std::uint64_t, double>> out;
  std::vector<Link::Ended> ended;
  for (TimePoint at = link.next(); at != TimePoint::max(); at = link.next()) {
    ended.clear();
    link.advance(at, ended);
    for (const auto& end : ended)
      out.emplace_back(end.job.ticket.value, std::round(to_seconds(at) * 1e6) / 1e3);
  }
  return out;
}

using Ends = std::vector<std::pair<std::uint64_t, double>>;

// 1 MB at 1 GB/s is 1 ms.
constexpr LinkModel kPlain{1e9, 0.5e9, 0, Seconds(0), Seconds(0)};

TEST(Link, ServesEachDirectionInOrderAtItsOwnRate) {
  Link link(kPlain);
  link.add(Link::kH2d, job(1, 2), TimePoint(0));
  link.add(Link::kH2d, job(2, 1), TimePoint(0));
  link.add(Link::kD2h, job(3, 2), TimePoint(0));
  EXPECT_EQ(ends(link), (Ends{{1, 2}, {2, 3}, {3, 4}}));
  EXPECT_DOUBLE_EQ(link.busy(Link::kH2d).count(), 0.003);
  EXPECT_DOUBLE_EQ(link.busy(Link::kD2h).count(), 0.004);
}

TEST(Link, ChargesEveryCopyAndEverySlot) {
  Link link({1e9, 1e9, 0, Seconds(0.004), Seconds(0.002)});
  link.add(Link::kH2d, job(1, 3), TimePoint(0));
  EXPECT_EQ(ends(link), (Ends{{1, 4 + 3 * (2 + 1)}}));
}

TEST(Link, SharesWhatDramMovesWhileBothDirectionsAreBusy) {
  // 2 GB/s wanted, 1 possible: both at half speed until the first ends.
  Link link({1e9, 1e9, 1e9, Seconds(0), Seconds(0)});
  link.add(Link::kH2d, job(1, 2), TimePoint(0));
  link.add(Link::kD2h, job(2, 4), TimePoint(0));
  EXPECT_EQ(ends(link), (Ends{{1, 4}, {2, 6}}));
}

TEST(Link, WhatNobodyWaitsForGoesLastAndYieldsToLaterSwaps) {
  Link link(kPlain);
  link.add(Link::kH2d, job(1, 4, Link::Class::kBackground), TimePoint(0));
  link.add(Link::kH2d, job(2, 2), milliseconds(1));
  EXPECT_EQ(ends(link), (Ends{{2, 3}, {1, 6}}));
}

TEST(Link, TheEarliestLayerGroupGoesFirst) {
  Link link(kPlain);
  Link::Job late = job(1, 2, Link::Class::kStream), early = job(2, 1, Link::Class::kStream);
  late.group = 7;
  early.group = 3;
  link.add(Link::kH2d, job(3, 1), TimePoint(0));
  link.add(Link::kH2d, late, TimePoint(0));
  link.add(Link::kH2d, early, milliseconds(1));
  EXPECT_EQ(ends(link), (Ends{{2, 2}, {1, 3}, {3, 4}}));
}

TEST(Link, CancelsOnlyWhatNothingWasMovedOf) {
  Link link(kPlain);
  Link::Job first = job(1, 2, Link::Class::kStream);
  link.add(Link::kH2d, first, TimePoint(0));
  link.add(Link::kH2d, first, TimePoint(0));
  EXPECT_EQ(link.cancel(Ticket(1), milliseconds(1)), 1u);
  EXPECT_EQ(ends(link), (Ends{{1, 2}}));
}

// ---- streamed layers against the planner's model ----

struct Placed {
  std::int64_t blocks;
  std::vector<std::int32_t> offloaded;  // 1-based
};

/// One iteration of `layers` layers of 1 ms each, the link moving 3 blocks a millisecond: fetches
/// of a request wait for its offloaded layer before.
core::StreamLayers stream_of(const std::vector<Placed>& batch, std::uint32_t layers) {
  core::StreamLayers stream;
  stream.ticket = Ticket(1);
  stream.iteration = 5;
  stream.groups = layers;
  stream.slot_bytes = Bytes(1'000'000);
  for (const Placed& request : batch) {
    std::uint32_t before = 0;
    for (const std::int32_t layer : request.offloaded) {
      core::StreamLayers::Fetch fetch;
      fetch.group = static_cast<std::uint32_t>(layer - 1);
      fetch.after = layer_mark(5, before);
      fetch.pairs = std::vector<core::CopySlots::Pair>(static_cast<std::size_t>(request.blocks));
      stream.fetches.push_back(fetch);
      before = static_cast<std::uint32_t>(layer);
    }
  }
  std::stable_sort(stream.fetches.begin(), stream.fetches.end(),
                   [](const auto& a, const auto& b) { return a.group < b.group; });
  return stream;
}

double played_ms(const std::vector<Placed>& batch, std::uint32_t layers) {
  Link link({3e9, 1e9, 0, Seconds(0), Seconds(0)});
  Streams streams;
  TimePoint now(0);
  std::vector<Link::Ended> ended;
  const auto take = [&] {
    for (const auto& end : ended) (void)streams.fetched(end);
    ended.clear();
  };
  streams.progressed(layer_mark(5, 0), link, now);
  EXPECT_FALSE(streams.begin(stream_of(batch, layers), link, now).has_value());
  for (std::uint32_t group = 0; group < layers; ++group) {
    while (!streams.ready(5, group)) {
      now = link.next();
      if (now == TimePoint::max()) return -1;  // waits for what never comes
      link.advance(now, ended);
      take();
    }
    now += milliseconds(1);
    link.advance(now, ended);
    take();
    streams.progressed(layer_mark(5, group + 1), link, now);
  }
  return to_seconds(now) * 1e3;
}

double planned_ms(const std::vector<Placed>& batch, std::uint32_t layers) {
  planner::StepModel model;
  model.compute.assign(layers, planner::Seconds(0.001));
  model.per_block = planner::Seconds(0.001 / 3);
  std::vector<planner::StreamedRequest> requests;
  requests.reserve(batch.size());
  for (const Placed& request : batch) {
    requests.push_back({Blocks(request.blocks), request.offloaded});
  }
  return planner::edf_latency(model, requests).total.count() * 1e3;
}

// OrbitFlow Fig. 3: placements A and C at both steps; stalls of 9, 12, 0 and 2 blocks.
TEST(Streams, StallAsTheFigureSays) {
  const auto stall_blocks = [](const std::vector<Placed>& batch) {
    return (played_ms(batch, 9) - 9) * 3;
  };
  EXPECT_NEAR(stall_blocks({{3, {3, 6, 9}}, {6, {3, 6, 9}}}), 9, 1e-4);
  EXPECT_NEAR(stall_blocks({{4, {3, 6, 9}}, {6, {3, 6, 9}}}), 12, 1e-4);
  EXPECT_NEAR(stall_blocks({{3, {4, 8}}, {6, {3, 6, 9}}}), 0, 1e-4);
  EXPECT_NEAR(stall_blocks({{4, {4, 8}}, {6, {3, 6, 9}}}), 2, 1e-4);
}

TEST(Streams, TakeAsLongAsThePlannerExpects) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Placed> batch;
    for (std::uint64_t r = 0; r < 1 + random() % 4; ++r) {
      Placed one{static_cast<std::int64_t>(1 + random() % 9), {}};
      const auto distance = static_cast<std::int32_t>(2 + random() % 7);
      for (std::int32_t layer = distance; layer <= 16; layer += distance) {
        one.offloaded.push_back(layer);
      }
      batch.push_back(std::move(one));
    }
    EXPECT_NEAR(played_ms(batch, 16), planned_ms(batch, 16), 1e-4) << "round " << round;
  }
}

TEST(Streams, StoppedOnesEndOnceNothingIsInFlight) {
  Link link({3e9, 1e9, 0, Seconds(0), Seconds(0)});
  Streams streams;
  streams.progressed(layer_mark(5, 0), link, TimePoint(0));
  (void)streams.begin(stream_of({{3, {3, 6, 9}}, {6, {3, 6, 9}}}, 9), link, TimePoint(0));
  std::vector<Link::Ended> ended;
  link.advance(std::chrono::microseconds(500), ended);
  ASSERT_TRUE(ended.empty());
  // The first fetch has begun, the second one waits behind it, and four had not reached the link
  // yet.
  EXPECT_FALSE(streams.stop(Ticket(1), link, std::chrono::microseconds(500)).has_value());
  link.advance(milliseconds(1), ended);
  ASSERT_EQ(ended.size(), 1u);
  const auto end = streams.fetched(ended.front());
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->slots, 3);
  EXPECT_EQ(link.next(), TimePoint::max());
}

TEST(Streams, OneWithoutFetchesEndsAtOnce) {
  Link link(kPlain);
  Streams streams;
  EXPECT_TRUE(streams.begin(stream_of({}, 9), link, TimePoint(0)).has_value());
  EXPECT_FALSE(streams.any());
}

}  // namespace
}  // namespace kvd::sim
