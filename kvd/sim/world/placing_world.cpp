#include "kvd/sim/world/placing_world.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kvd/sim/world/configuration.hpp"
#include "kvd/sim/world/scrub_time.hpp"

namespace kvd::sim {
namespace {

/// How often an engine that may run nothing asks again.
constexpr Nanoseconds kAsksAgain = std::chrono::milliseconds(10);
/// If no token has come for this long and nothing is under way, none will ever come.
constexpr Nanoseconds kStandstill = std::chrono::seconds(600);

}  // namespace

PlacingWorld::PlacingWorld(const Setting& setting)
    : setting_(setting),
      records_(new_records(setting)),
      link_(setting.engines.front().profile.link) {
  for (const EngineSetting& each : setting.engines) {
    PlacingEngine::Room room = part_of(setting, each);
    if (setting.policy.stock) room.dram = 0;
    drivers_.emplace_back(PlacingEngine(each.profile, room, prefill_budget(setting, each.profile),
                                        setting.workload, records_));
  }
}

Result<std::unique_ptr<PlacingWorld>> PlacingWorld::create(const Setting& setting) {
  KVD_TRY(check_setting(setting));
  std::unique_ptr<PlacingWorld> world(new PlacingWorld(setting));
  KVD_ASSIGN_OR_RETURN(world->controller_, core::Controller::create(controller_config(setting)));
  KVD_TRY(world->attach());
  return world;
}

Status PlacingWorld::attach() {
  for (std::size_t i = 0; i < drivers_.size(); ++i) {
    core::Attach attach;
    attach.name = "engine" + std::to_string(i);
    attach.domain = DomainId(setting_.engines[i].domain);
    attach.domain_name = std::to_string(setting_.engines[i].domain);
    KVD_ASSIGN_OR_RETURN(const core::AttachGrant grant, controller_->attach(attach, now_));
    drivers_[i].id = grant.engine;
    if (shares_hbm(setting_)) KVD_TRY(open_space(drivers_[i]));
  }
  return {};
}

// Opens addresses for all there is, with memory behind the first chunk.
Status PlacingWorld::open_space(Driver& driver) {
  const EngineId id = driver.id;
  const auto ask = [this, id](decltype(core::Command::body) body, Nanoseconds patience) {
    return command(id, std::move(body), patience);
  };
  const pool::TierPool::Config hbm = controller_config(setting_).hbm.front();
  constexpr Nanoseconds kPatience = std::chrono::seconds(1);
  const auto opened = ask(core::OpenSpace{hbm.slabs}, kPatience);
  const auto leased = ask(core::AllocateRegion{hbm.slab_bytes}, kPatience);
  const auto* space = opened ? std::get_if<core::ValueReply>(&opened->body) : nullptr;
  const auto* region = leased ? std::get_if<core::RegionReply>(&leased->body) : nullptr;
  if (space == nullptr || region == nullptr) {
    return make_error(ErrorCode::kInternal, "kvd gives an engine no space");
  }
  (void)ask(core::PlaceRegion{RegionId(space->value), region->region, {0}}, kPatience);
  driver.mapper.emplace(RegionId(space->value), region->region, hbm.slabs, hbm.slab_bytes, ask);
  return {};
}

Result<RunResult> PlacingWorld::play() {
  const TimePoint end = setting_.until ? kOrigin + whole(*setting_.until) : TimePoint::max();
  for (TimePoint next = next_time(); next != TimePoint::max(); next = next_time()) {
    if (next > end) {
      totals_.note = "ended at " + std::to_string(setting_.until->count()) + " s";
      return close(*setting_.until);
    }
    now_ = std::max(now_, next);
    happen();
    if (!fault_.ok()) return fault_.error();
    if (now_ - last_progress_ > kStandstill && next_arrival_ == setting_.workload.size()) break;
  }
  for (const Driver& driver : drivers_) {
    if (driver.engine.open() > 0) return stuck_error();
  }
  return close(Seconds(0));
}

TimePoint PlacingWorld::next_time() const {
  TimePoint next = link_.next();
  if (next_arrival_ < setting_.workload.size()) {
    next = std::min(next, kOrigin + whole(setting_.workload[next_arrival_].time));
  }
  for (const Driver& driver : drivers_) {
    next = std::min(next, driver.wake);
    if (driver.mapper) next = std::min(next, driver.mapper->next());
  }
  if (!scrubs_.empty()) next = std::min(next, scrubs_.begin()->first);
  return std::min(next, tick_);
}

// Handles one instant: first what came in and what was copied, then the engines.
void PlacingWorld::happen() {
  arrivals();
  copies_end();
  map();
  for (Driver& driver : drivers_) {
    if (driver.wake > now_) continue;
    driver.wake = TimePoint::max();
    if (driver.phase == Phase::kComputes) finish(driver);
  }
  for (Driver& driver : drivers_) {
    if (driver.phase != Phase::kIdle) continue;
    if (driver.engine.open() > 0 || driver.engine.gives_back()) turn(driver);
  }
}

void PlacingWorld::map() {
  while (!scrubs_.empty() && scrubs_.begin()->first <= now_) {
    (void)feed(scrubs_.extract(scrubs_.begin()).mapped());
  }
  if (tick_ <= now_) {
    tick_ = TimePoint::max();
    (void)feed(core::Tick{});
  }
  for (Driver& driver : drivers_) {
    if (driver.mapper && driver.mapper->next() <= now_) driver.mapper->wake(now_);
  }
}

void PlacingWorld::arrivals() {
  for (; next_arrival_ < setting_.workload.size(); ++next_arrival_) {
    const Arrival& arrival = setting_.workload[next_arrival_];
    if (kOrigin + whole(arrival.time) > now_) return;
    records_[next_arrival_].submitted = arrival.time;
    drivers_[arrival.engine].engine.arrive(static_cast<std::uint32_t>(next_arrival_));
  }
}

void PlacingWorld::copies_end() {
  std::vector<Link::Ended> ended;
  link_.advance(now_, ended);
  for (const Link::Ended& end : ended) {
    const auto copy = copies_.extract(end.job.ticket).mapped();
    copy.driver->engine.copied(copy.transfer);
  }
}

// Precondition: idle, and requests are there, or something has to be given back.
void PlacingWorld::turn(Driver& driver) {
  if (driver.mapper) {
    driver.engine.hear(driver.mapper->take_news());
    driver.engine.make_way(now_);
  }
  std::optional<core::ScheduleReply> answer;
  if (!setting_.policy.stock && driver.engine.asks()) answer = ask(driver);
  if (!fault_.ok()) return;
  const Batch batch = driver.engine.plan(answer ? &*answer : nullptr, now_);
  if (driver.mapper) driver.mapper->begin(driver.engine.orders(now_, kOrigin), now_);
  begin_copies(driver);
  totals_.hbm_use += driver.engine.used();
  ++asked_;
  if (batch.decoding == 0 && batch.prompt_tokens == 0) {
    driver.wake = now_ + kAsksAgain;
    return;
  }
  driver.compute = whole(iteration_time(driver.engine.profile(), batch));
  totals_.compute += Seconds(driver.compute);
  ++totals_.iterations;
  driver.phase = Phase::kAwaitsDevice;
  if (!setting_.one_device) return compute(driver);
  device_queue_.push_back(&driver);
  if (device_queue_.front() == &driver) compute(driver);
}

std::optional<core::ScheduleReply> PlacingWorld::ask(Driver& driver) {
  auto reply = command(driver.id, driver.engine.told(kOrigin), std::chrono::seconds(1));
  if (reply) {
    if (auto* answer = std::get_if<core::ScheduleReply>(&reply->body)) return std::move(*answer);
    if (const auto* error = std::get_if<Error>(&reply->body)) fault_ = *error;
  }
  if (fault_.ok()) fault_ = make_error(ErrorCode::kInternal, "kvd does not answer an engine");
  return std::nullopt;
}

std::optional<core::Reply> PlacingWorld::command(EngineId engine,
                                                 decltype(core::Command::body) body,
                                                 Nanoseconds patience) {
  const core::ReplyTo to(++last_reply_to_);
  auto own = feed(core::Command{engine, to, now_ + patience, std::move(body)}, to);
  if (!own) tick_ = std::min(tick_, now_ + patience);
  return own;
}

std::optional<core::Reply> PlacingWorld::feed(const core::Event& event, core::ReplyTo awaited) {
  std::vector<core::Effect> effects;
  controller_->on(event, now_, effects);
  std::optional<core::Reply> found;
  for (core::Effect& effect : effects) {
    if (const auto* scrub = std::get_if<core::Scrub>(&effect)) begin_scrub(*scrub);
    auto* reply = std::get_if<core::Reply>(&effect);
    if (reply == nullptr) continue;
    if (reply->reply_to == awaited) {
      found = std::move(*reply);
      continue;
    }
    for (Driver& driver : drivers_) {
      if (driver.id == reply->engine && driver.mapper) driver.mapper->answered(*reply, now_);
    }
  }
  return found;
}

// Memory that was handed back is zeroed.
void PlacingWorld::begin_scrub(const core::Scrub& scrub) {
  const Nanoseconds took =
      scrub_time(controller_config(setting_).hbm.front().slab_bytes * std::ssize(scrub.slabs));
  scrubs_.emplace(now_ + took, core::CopyFinished{scrub.ticket, true, Bytes(0), took});
}

void PlacingWorld::begin_copies(Driver& driver) {
  const Profile& profile = driver.engine.profile();
  for (const PlacingEngine::Transfer& transfer : driver.engine.take_transfers()) {
    Link::Job job;
    job.ticket = Ticket(++last_ticket_);
    job.slots = transfer.blocks * profile.shape.groups();
    job.slot_bytes = profile.shape.slot_bytes();
    copies_.emplace(job.ticket, Copy{&driver, transfer});
    const auto direction = transfer.out ? Link::kD2h : Link::kH2d;
    totals_.moved[direction] += job.slot_bytes * job.slots;
    totals_.blocks_moved += static_cast<std::uint64_t>(job.slots);
    ++(transfer.out ? totals_.rotations_out : totals_.rotations_in);
    link_.add(direction, job, now_);
  }
}

void PlacingWorld::compute(Driver& driver) {
  driver.phase = Phase::kComputes;
  driver.engine.begin(since_start());
  driver.wake = now_ + driver.compute;
}

void PlacingWorld::finish(Driver& driver) {
  if (driver.engine.complete(since_start(), driver.compute) > 0) last_progress_ = now_;
  driver.phase = Phase::kIdle;
  if (setting_.progress) {
    std::size_t done = 0;
    for (const Driver& each : drivers_) done += each.engine.done();
    setting_.progress(done, setting_.workload.size());
  }
  if (!setting_.one_device) return;
  device_queue_.pop_front();
  if (!device_queue_.empty()) compute(*device_queue_.front());
}

Error PlacingWorld::stuck_error() const {
  std::size_t open = 0;
  for (const Driver& driver : drivers_) open += driver.engine.open();
  return make_error(ErrorCode::kInternal,
                    "policy " + setting_.policy.name + " lets nobody in any more: " +
                        std::to_string(open) + " requests are open, the last token was made at " +
                        std::to_string(to_seconds(last_progress_ - kOrigin)) + " s");
}

RunResult PlacingWorld::close(Seconds at_least) {
  totals_.link_busy[0] = link_.busy(Link::kH2d);
  totals_.link_busy[1] = link_.busy(Link::kD2h);
  Seconds last = at_least;
  for (const RequestRecord& record : records_) {
    totals_.refused += record.refused ? 1 : 0;
    if (!record.tokens.empty()) last = std::max(last, record.tokens.back());
  }
  totals_.duration = last - setting_.workload.front().time;
  if (asked_ > 0) totals_.hbm_use /= static_cast<double>(asked_);
  return {std::move(records_), totals_};
}

}  // namespace kvd::sim
