#include <algorithm>

#include "kvd/core/door/inputs.hpp"
#include "kvd/sim/world/scrub_time.hpp"
#include "kvd/sim/world/world.hpp"
#include "planner/baselines/all_policies.hpp"

/// What the Controller asks of its shell, carried out in virtual time.
namespace kvd::sim {
namespace {

/// The rate of one core that copies from DRAM to DRAM: a figure of ours, used only where slabs are
/// made whole.
constexpr double kMoveBytesPerSecond = 8e9;
/// Making host memory means populating it: 64 MiB took 200 ms on the machine where it was measured.
constexpr double kRenewBytesPerSecond = 3.2e8;

/// Budgets count nodes, so nothing may depend on a clock.
class NoClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(0); }
};

// The request to pause, where the setting chooses it instead of the policy.
std::size_t victim(Setting::Victim whom, std::mt19937& random,
                   const planner::PlacementSnapshot& snapshot, std::size_t chosen) {
  const auto& requests = snapshot.requests;
  switch (whom) {
    case Setting::Victim::kPolicys:
      return chosen;
    case Setting::Victim::kShortest:
      return static_cast<std::size_t>(
          std::min_element(requests.begin(), requests.end(),
                           [](const auto& a, const auto& b) { return a.blocks < b.blocks; }) -
          requests.begin());
    case Setting::Victim::kRandom:
      return random() % requests.size();
  }
  return chosen;
}

}  // namespace

World::Driver& World::driver_of(EngineId engine) {
  return *std::find_if(drivers_.begin(), drivers_.end(),
                       [&](const Driver& d) { return d.id == engine; });
}

void World::feed(const core::Event& event) {
  effects_.clear();
  controller_->on(event, now_, effects_);
  for (core::Effect& effect : effects_) {
    std::visit([&](auto& e) { take(e); }, effect);
  }
}

// Gives the answers that take no time, but not while effects are being carried out.
void World::pump() {
  while (!pending_.empty()) {
    const core::Event event = std::move(pending_.front());
    pending_.pop_front();
    feed(event);
    kick_all();
  }
}

template <class Body>
core::Reply World::command(EngineId engine, Body body) {
  reply_.reset();
  const core::ReplyTo to(++last_reply_to_);
  feed(core::Command{engine, to, now_ + std::chrono::seconds(1), std::move(body)});
  KVD_CHECK(reply_ && reply_->reply_to == to, "submit and step are answered at once");
  core::Reply reply = std::move(*reply_);
  pump();
  return reply;
}
template core::Reply World::command(EngineId, core::Submit);
template core::Reply World::command(EngineId, core::Step);
template core::Reply World::command(EngineId, core::NameBlocks);

void World::take(core::Reply& reply) { reply_ = std::move(reply); }

void World::take(const core::CopySlots& copy) {
  const auto slots = static_cast<std::int64_t>(copy.pairs.size());
  const Copy entry{copy.slot_bytes * slots, slots, !copy.background};
  copies_.emplace(copy.ticket, entry);
  const auto direction = copy.to_hbm ? Link::kH2d : Link::kD2h;
  totals_.moved[direction] += entry.bytes;
  const bool ahead = copy.background && !copy.to_hbm;
  (ahead ? totals_.blocks_synced : totals_.blocks_moved) += static_cast<std::uint64_t>(slots);
  if (entry.swap) meter_.swap_begins(entry.bytes);
  Link::Job job;
  job.ticket = copy.ticket;
  job.priority = copy.background ? Link::Class::kBackground : Link::Class::kSwap;
  job.slots = slots;
  job.slot_bytes = copy.slot_bytes;
  machine_.link.add(direction, job, now_);
}

// A copy within DRAM takes time, but nothing of the link.
void World::take(const core::MoveSlots& move) {
  const Bytes bytes = move.slot_bytes * std::ssize(move.pairs);
  const Nanoseconds took = whole(Seconds(static_cast<double>(bytes.value) / kMoveBytesPerSecond));
  timed_.push_back({now_ + took, core::CopyFinished{move.ticket, true, bytes, took}});
}

void World::take(core::StreamLayers& stream) {
  Driver& driver = driver_of(stream.engine);
  const auto ended = driver.streams.begin(std::move(stream), machine_.link, now_);
  if (ended) stream_ended(*ended);
}

void World::take(const core::EndStream& end) {
  for (Driver& driver : drivers_) {
    if (const auto ended = driver.streams.stop(end.ticket, machine_.link, now_))
      stream_ended(*ended);
  }
}

void World::stream_ended(const Streams::Ended& ended) {
  totals_.moved[Link::kH2d] += ended.bytes;
  totals_.streamed += ended.bytes;
  totals_.blocks_moved += static_cast<std::uint64_t>(ended.slots);
  pending_.emplace_back(core::CopyFinished{ended.ticket, true, ended.bytes, ended.busy});
}

void World::take(core::SolvePlacement& solve) {
  auto decision = decide(solve);
  const std::int64_t nodes = decision.ok() ? decision->nodes : 0;
  const Profile& profile = driver_of(solve.engine).engine.profile();
  const Seconds took = profile.solver_call + profile.solver_node * static_cast<double>(nodes);
  ++totals_.plans;
  totals_.planner += took;
  timed_.push_back({now_ + whole(took),
                    core::PlanReady{solve.engine, solve.number, solve.query, std::move(decision)}});
}

Result<planner::PlacementDecision> World::decide(core::SolvePlacement& solve) {
  solve.config.budget_time.reset();
  // FlexGen+ is told the mean over the whole trace. Source: OrbitFlow's published code.
  solve.config.mean_tokens = driver_of(solve.engine).mean_tokens;
  if (!solve.config.budget_nodes) solve.config.budget_nodes = core::kPlaceNodes;
  auto known = placement_.find(solve.policy);
  if (known == placement_.end()) {
    KVD_ASSIGN_OR_RETURN(auto made, planner::all_policies().placement(solve.policy));
    known = placement_.emplace(solve.policy, std::move(made)).first;
  }
  auto decision = known->second->decide(solve.snapshot, solve.config, NoClock());
  if (decision.ok() && decision->victim)
    decision->victim = victim(setting_.victim, random_, solve.snapshot, *decision->victim);
  return decision;
}

void World::take(const core::Scrub& scrub) {
  const Bytes slab = scrub.tier == Tier::kHbm ? slab_bytes_[0] : slab_bytes_[1];
  const Bytes bytes = slab * static_cast<std::int64_t>(scrub.slabs.size()) +
                      scrub.slot_bytes * static_cast<std::int64_t>(scrub.slots.size());
  const Nanoseconds took = scrub_time(bytes);
  timed_.push_back({now_ + took, core::CopyFinished{scrub.ticket, true, bytes, took}});
}

void World::take(const core::RenewSlab& renew) {
  const Seconds took(static_cast<double>(slab_bytes_[0].value) / kRenewBytesPerSecond);
  timed_.push_back({now_ + whole(took), core::SlabRenewed{renew.slab}});
}

void World::take(const core::SendSlab& slab) {
  pending_.emplace_back(core::SlabMapped{slab.engine, slab.slab});
}

void World::take(const core::AskUnmap& ask) {
  pending_.emplace_back(core::SlabUnmapped{ask.engine, ask.slab});
}

void World::take(const Rare& order) {
  std::optional<Disk>& disk = machine_.disk;
  if (const auto* open = std::get_if<core::OpenDisk>(&order)) {
    pending_.emplace_back(core::DiskOpened{open->disk, disk->slots(open->shape)});
    pending_.emplace_back(core::DiskFound{open->disk, {}, true});
  }
  if (const auto* close = std::get_if<core::CloseDisk>(&order)) {
    pending_.emplace_back(core::DiskClosed{close->disk});
  }
  std::optional<Disk::Answer> answer;
  if (const auto* write = std::get_if<core::WriteDisk>(&order)) answer = disk->write(*write, now_);
  if (const auto* read = std::get_if<core::ReadDisk>(&order)) answer = disk->read(*read, now_);
  if (answer) timed_.push_back({answer->due, answer->finished});
}

void World::take(const core::Note& note) {
  if (note.level != core::Note::Level::kInfo) last_note_ = note.text;
}

}  // namespace kvd::sim
