#include "kvd/sim/world/world.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "kvd/sim/world/configuration.hpp"
#include "kvd/sim/world/placing_world.hpp"
#include "planner/baselines/all_policies.hpp"

namespace kvd::sim {
namespace {

/// If no token has come for this long and nothing is under way, none will ever come.
constexpr Nanoseconds kPatience = std::chrono::seconds(600);

double repeated_prefixes(const Workload& workload) {
  std::unordered_set<std::uint64_t> seen;
  std::size_t all = 0;
  for (const Arrival& arrival : workload) {
    all += arrival.prefix.size();
    seen.insert(arrival.prefix.begin(), arrival.prefix.end());
  }
  return all == 0 ? 0 : 1 - static_cast<double>(seen.size()) / static_cast<double>(all);
}

/// A digest like any other, but quick to make. Source: splitmix64 (Steele, Lea, Flood 2014).
Digest digest_of(std::uint64_t id, std::uint64_t token) {
  std::uint64_t state = id * static_cast<std::uint64_t>(kPrefixTokens.value) + token;
  Digest digest;
  for (std::size_t at = 0; at < digest.bytes.size(); at += sizeof state) {
    std::uint64_t word = state += 0x9e3779b97f4a7c15;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    word ^= word >> 31;
    std::memcpy(&digest.bytes[at], &word, sizeof word);
  }
  return digest;
}

/// Equal ids stand for equal tokens, with equal tokens before them.
core::NameBlocks names_of(RequestId request, const Arrival& arrival, std::int64_t block_tokens) {
  const std::int64_t known = kPrefixTokens.value * std::ssize(arrival.prefix);
  const std::int64_t blocks = std::min(known, arrival.prompt.value) / block_tokens;
  core::NameBlocks names;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t token = block * block_tokens;
    const std::uint64_t id = arrival.prefix[static_cast<std::size_t>(token / kPrefixTokens.value)];
    const auto within = static_cast<std::uint64_t>(token % kPrefixTokens.value);
    names.blocks.push_back({request, static_cast<std::uint32_t>(block), digest_of(id, within)});
  }
  return names;
}

/// The mean length of prompt and answer of one engine's requests; without requests: 0.
Tokens mean_tokens(const Workload& workload, std::size_t engine) {
  std::int64_t sum = 0, count = 0;
  for (const Arrival& arrival : workload) {
    if (arrival.engine != engine) continue;
    sum += (arrival.prompt + arrival.output).value;
    ++count;
  }
  return Tokens(count == 0 ? 0 : sum / count);
}

// A real engine asks for all its requests in the order that kvd says.
Seating seating_of(const Setting& setting) {
  Seating seating{setting.shortest_first};
  const auto policy = planner::all_policies().rotation(setting.policy.tuning.rotation.policy);
  if (policy.ok() && (*policy)->traits().serves_the_late) seating.ttft = Seconds(setting.slo.ttft);
  return seating;
}

}  // namespace

World::World(const Setting& setting, const core::Controller::Config& config)
    : setting_(setting),
      machine_{Link(setting.engines.front().profile.link), {}},
      slab_bytes_{config.hbm.front().slab_bytes, config.dram.slab_bytes},
      meter_(config.hbm.front().slab_bytes * std::int64_t{config.hbm.front().slabs}),
      records_(new_records(setting)) {
  if (setting.disk && setting.prefixes) machine_.disk.emplace(*setting.disk, kOrigin);
  for (const EngineSetting& engine : setting.engines) {
    drivers_.emplace_back(Engine(engine.profile, prefill_budget(setting, engine.profile),
                                 setting.workload, records_, seating_of(setting)));
  }
}

Result<std::unique_ptr<World>> World::create(const Setting& setting) {
  KVD_TRY(check_setting(setting));
  core::Controller::Config config = controller_config(setting);
  std::unique_ptr<World> world(new World(setting, config));
  KVD_ASSIGN_OR_RETURN(world->controller_, core::Controller::create(std::move(config)));
  KVD_TRY(world->attach());
  return world;
}

Status World::attach() {
  for (std::size_t i = 0; i < drivers_.size(); ++i) {
    core::Attach attach;
    attach.streams_layers = true;
    attach.name = "engine" + std::to_string(i);
    attach.domain = DomainId(setting_.engines[i].domain);
    attach.domain_name = std::to_string(setting_.engines[i].domain);
    attach.model_class = setting_.engines[i].profile.shape;
    auto grant = controller_->attach(attach, now_);
    if (!grant.ok()) return std::move(grant).error();
    drivers_[i].id = grant->engine;
    drivers_[i].mean_tokens = mean_tokens(setting_.workload, i);
  }
  return {};
}

Result<RunResult> World::play() {
  const TimePoint end = setting_.until ? kOrigin + whole(*setting_.until) : TimePoint::max();
  for (TimePoint next = next_time(); next != TimePoint::max(); next = next_time()) {
    if (next > end) {
      totals_.note = "ended at " + std::to_string(setting_.until->count()) + " s";
      return close(*setting_.until);
    }
    now_ = std::max(now_, next);
    meter_.pass(now_);
    happen();
    if (!fault_.ok()) return fault_.error();
    if (stuck()) return stuck_error();
  }
  // Nothing will ever happen again although some requests wait.
  for (const Driver& driver : drivers_) {
    if (driver.engine.open() > 0) return stuck_error();
  }
  return close(Seconds(0));
}

TimePoint World::next_time() const {
  TimePoint next = machine_.link.next();
  if (next_arrival_ < setting_.workload.size()) {
    const Seconds at = setting_.workload[next_arrival_].time;
    next = std::min(next, kOrigin + whole(at));
  }
  for (const Driver& driver : drivers_) next = std::min(next, driver.wake);
  for (const Timed& timed : timed_) next = std::min(next, timed.due);
  return next;
}

// Handles one instant: first what came in and what the link and the solver finished, then the
// engines.
void World::happen() {
  arrivals();
  link_ends();
  timed_events();
  for (Driver& driver : drivers_) {
    if (driver.wake > now_) continue;
    driver.wake = TimePoint::max();
    wake(driver);
  }
  run_kicked();
}

void World::arrivals() {
  while (next_arrival_ < setting_.workload.size()) {
    const Arrival& arrival = setting_.workload[next_arrival_];
    if (kOrigin + whole(arrival.time) > now_) return;
    Driver& driver = drivers_[arrival.engine];
    driver.engine.arrive(static_cast<std::uint32_t>(next_arrival_++));
    seat(driver);
  }
}

void World::seat(Driver& driver) {
  while (const auto index = driver.engine.seat()) {
    const Arrival& arrival = setting_.workload[*index];
    core::Submit submit;
    submit.request = RequestId(*index + 1);
    submit.prompt_tokens = arrival.prompt;
    submit.max_new_tokens = arrival.announced.value_or(arrival.output);
    if (arrival.ttft_slo) submit.ttft_slo = whole(*arrival.ttft_slo);
    if (arrival.tbt_slo) submit.tbt_slo = whole(*arrival.tbt_slo);
    if (arrival.predicted) submit.predicted = {*arrival.predicted, *arrival.predicted};
    if (setting_.policy.oracle) submit.predicted = {arrival.output, arrival.output};
    const core::Reply reply = command(driver.id, submit);
    const auto* error = std::get_if<Error>(&reply.body);
    if (error) {
      ++totals_.refused;
      totals_.note = error->message;
      ++done_;
    }
    driver.engine.submitted(*index, now_ - kOrigin, error == nullptr);
    if (error == nullptr && setting_.prefixes) {
      const std::int64_t block_tokens = driver.engine.profile().shape.block_tokens;
      (void)command(driver.id, names_of(submit.request, arrival, block_tokens));
    }
    driver.kicked = true;
  }
}

void World::link_ends() {
  ended_.clear();
  machine_.link.advance(now_, ended_);
  for (const Link::Ended& end : ended_) {
    const Bytes bytes = end.job.slot_bytes * end.job.slots;
    if (end.job.priority == Link::Class::kStream) {
      for (Driver& driver : drivers_) {
        if (const auto stream = driver.streams.fetched(end)) stream_ended(*stream);
      }
      continue;
    }
    const auto copy = copies_.find(end.job.ticket);
    if (copy->second.swap) meter_.swap_ends(copy->second.bytes);
    copies_.erase(copy);
    feed(core::CopyFinished{end.job.ticket, true, bytes, end.busy});
    kick_all();
  }
  if (ended_.empty()) return;
  pump();
  for (Driver& driver : drivers_) {
    if (driver.phase == Phase::kAwaitsCopies || driver.phase == Phase::kAwaitsLayers) {
      driver.wake = now_;
    }
  }
}

void World::timed_events() {
  for (std::size_t i = 0; i < timed_.size();) {
    if (timed_[i].due > now_) {
      ++i;
      continue;
    }
    const core::Event event = std::move(timed_[i].event);
    timed_.erase(timed_.begin() + static_cast<std::ptrdiff_t>(i));
    feed(event);
    pump();
    kick_all();
  }
}

void World::kick_all() {
  for (Driver& driver : drivers_) driver.kicked = true;
}

void World::run_kicked() {
  const auto waits = [](const Driver& other) { return other.engine.open() > 0; };
  // The blocks of an engine's last iteration stay held until it says that the iteration has ended:
  // others may wait for them.
  const auto has_turn = [&](const Driver& driver) {
    if (waits(driver) || !driver.granted.run.empty()) return true;
    // Kept blocks, too, can be copied only then.
    return driver.reported != driver.finished &&
           (setting_.prefixes || std::any_of(drivers_.begin(), drivers_.end(), waits));
  };
  for (bool again = true; again && fault_.ok();) {
    again = false;
    for (Driver& driver : drivers_) {
      if (!driver.kicked || driver.phase != Phase::kIdle) continue;
      driver.kicked = false;
      if (!has_turn(driver)) continue;
      turn(driver);
      again = true;
    }
  }
}

bool World::stuck() const {
  if (now_ - last_progress_ < kPatience || !machine_.link.idle() || !timed_.empty()) return false;
  return std::all_of(drivers_.begin(), drivers_.end(),
                     [](const Driver& d) { return d.phase == Phase::kIdle; }) &&
         next_arrival_ == setting_.workload.size();
}

Error World::stuck_error() const {
  std::size_t open = 0;
  for (const Driver& driver : drivers_) open += driver.engine.open();
  return make_error(ErrorCode::kInternal,
                    "policy " + setting_.policy.name + " grants nothing any more: " +
                        std::to_string(open) + " requests are open, the last token was made at " +
                        std::to_string(to_seconds(last_progress_ - kOrigin)) + " s" +
                        (last_note_.empty() ? "" : "; the Controller's last note: " + last_note_));
}

RunResult World::close(Seconds at_least) {
  const core::ControllerStatus status = controller_->status(now_);
  totals_.rotations_out = status.counters.rotations_out;
  totals_.rotations_in = status.counters.rotations_in;
  totals_.layerwise = status.counters.layerwise;
  for (Driver& driver : drivers_) driver.engine.close(since_start());
  totals_.link_busy[0] = machine_.link.busy(Link::kH2d);
  totals_.link_busy[1] = machine_.link.busy(Link::kD2h);
  totals_.prefix_repeats = repeated_prefixes(setting_.workload);
  Seconds last = at_least;
  for (const RequestRecord& record : records_) {
    totals_.pauses += record.pauses;
    if (!record.tokens.empty()) last = std::max(last, record.tokens.back());
  }
  totals_.duration = last - setting_.workload.front().time;
  meter_.close(totals_.duration, totals_);
  return {std::move(records_), totals_};
}

Result<RunResult> run(const Setting& setting) {
  if (setting.engines_place) {
    KVD_ASSIGN_OR_RETURN(const auto placing, PlacingWorld::create(setting));
    return placing->play();
  }
  KVD_ASSIGN_OR_RETURN(const auto world, World::create(setting));
  return world->play();
}

}  // namespace kvd::sim
