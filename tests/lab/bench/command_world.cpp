#include "tests/lab/bench/command_world.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "ipc/digest/fingerprint.hpp"
#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/check.hpp"
#include "kvd/daemon/sessions/translate.hpp"
#include "planner/solver/placement_solver.hpp"

namespace kvd::bench {

using namespace core;  // NOLINT(google-build-using-namespace): this is a shell of it

namespace {

constexpr DomainId kFull{1}, kOther{2};
constexpr Bytes kSlab = kMiB * 64;
constexpr std::uint32_t kHbmSlabs = 1024, kDramSlabs = 68;
constexpr Bytes kBlock{4096};
constexpr std::uint32_t kCached = 1 << 20;
constexpr std::uint32_t kOnDisk = 1 << 18;
constexpr std::uint32_t kAttached = 8, kRequests = 1024, kPlacers = 4;
constexpr std::uint32_t kCount = wire::kMaxRequestsPerStep;
constexpr std::uint32_t kMoreCaches = 12;  ///< of a session; one more is left to be measured
constexpr int kTimes = 3;

Digest digest(std::uint64_t number) {
  Digest made;
  number = number * 0x9e3779b97f4a7c15u + 1;
  std::memcpy(made.bytes.data(), &number, sizeof number);
  return made;
}

std::string domain_name(DomainId domain) { return std::to_string(domain.value); }

/// Uses a secret for each domain, as the daemon does.
Digest disk_name(const std::string& domain, const Fingerprint& fingerprint, const Digest& block) {
  static std::map<std::string, digest::HmacSha256> secrets;
  const auto* secret = reinterpret_cast<const std::uint8_t*>(domain.data());
  const auto found = secrets.try_emplace(domain, digest::ByteView(secret, domain.size())).first;
  return digest::outside_name(found->second, fingerprint, block);
}

Controller::Config config() {
  Controller::Config config;
  config.disk.name = disk_name;
  config.hbm = {{Tier::kHbm, kSlab, kHbmSlabs}};
  config.dram = {Tier::kDram, kSlab, kDramSlabs};
  config.max_requests_per_engine = kRequests;
  config.max_requests_per_domain = kAttached * kRequests;
  return config;
}

}  // namespace

// ---- the fullest state --------------------------------------------------------------------------

CommandWorld::CommandWorld() {
  auto controller = Controller::create(config());
  KVD_CHECK(controller.ok(), controller.ok() ? "" : controller.error().message.c_str());
  controller_ = std::move(*controller);
}

EngineId CommandWorld::attach(DomainId domain, bool places) {
  Attach attach;
  attach.name = "engine";
  attach.domain = domain;
  attach.domain_name = domain_name(domain);
  if (!places) attach.model_class = ModelClass{1, 1, 16, Bytes(256), 1};
  const auto grant = controller_->attach(attach, now_);
  KVD_CHECK(grant.ok(), grant.ok() ? "" : grant.error().message.c_str());
  return grant->engine;
}

CacheId CommandWorld::open_cache(const Placer& placer, std::uint32_t pieces, Bytes block) {
  OpenCache open;
  open.region = placer.region;
  open.blocks = kSlab * 16 / block;
  open.block_bytes = block;
  open.block_tokens = 16;
  const Bytes part(block.value / pieces);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    open.pieces.push_back({part * (open.blocks * i), part, part});
  }
  command(placer.id, open);
  return CacheId(value_);
}

CommandWorld::Placer CommandWorld::placer(DomainId domain) {
  Placer placer;
  placer.id = attach(domain, true);
  command(placer.id, AllocateRegion{kSlab * 16});
  placer.region = RegionId(value_);
  placer.cache = open_cache(placer, 1);
  placer.pieces = open_cache(placer, 16);
  placer.large = open_cache(placer, 1, kMiB);
  return placer;
}

// Each request announces little, so that all of them run; its prompt is 64 blocks, with names.
void CommandWorld::fill_requests(EngineId engine) {
  for (std::uint32_t i = 1; i <= kRequests; ++i) {
    command(engine, Submit{RequestId(i), Tokens(1024), Tokens(2048), {}, {}, {}});
    NameBlocks names;
    for (std::uint32_t block = 0; block < 64; ++block) {
      const std::uint64_t number =
          (std::uint64_t{engine.value} << 32) + std::uint64_t{i} * 4096 + block;
      names.blocks.push_back({RequestId(i), block, digest(number)});
    }
    command(engine, names);
  }
}

std::vector<CommandCost> CommandWorld::measure() {
  std::vector<EngineId> engines;
  for (std::uint32_t i = 0; i < kAttached; ++i) {
    engines.push_back(attach(kFull, false));
    fill_requests(engines.back());
  }
  std::vector<Placer> placers;
  for (std::uint32_t i = 0; i < kPlacers; ++i) placers.push_back(placer(kFull));
  for (Placer& each : placers) {
    for (std::uint32_t i = 0; i < kMoreCaches; ++i) (void)open_cache(each, 1);
  }
  fill_cache(placers[0]);
  measure_requests(engines.front());
  compute_prompts(engines.back());
  step("step that ends all", engines.back(), true);
  for (std::size_t i = 1; i < placers.size(); ++i) occupy(placers[i]);
  measure_caches(placers[0]);
  measure_regions();
  measure_events(placers[1], placers[0], engines[1], engines[2]);
  return std::move(costs_);
}

// A quarter of the cache is parked.
void CommandWorld::fill_cache(Placer& placer) {
  for (std::uint64_t first = 0; first < kCached; first += kCount) {
    const bool park = first >= std::uint64_t{kCached} / 4 * 3;
    frame("", placer.id, cache(placer, placer.cache, wire::CacheOp::kStore, first, park));
  }
}

// Everything that its session may have under way: four stores of the same blocks, and loads of the
// same.
void CommandWorld::occupy(Placer& placer) {
  hold_ = true;
  for (int i = 0; i < 2; ++i) {
    frame("", placer.id, cache(placer, placer.cache, wire::CacheOp::kStore, kCached));
    frame("", placer.id, cache(placer, placer.pieces, wire::CacheOp::kLoad, kCached / 2));
  }
}

// ---- what is measured ---------------------------------------------------------------------------

void CommandWorld::measure_requests(EngineId engine) {
  compute_prompts(engine);
  for (int i = 0; i < kTimes; ++i) step("step", engine);  // each step makes a token
  std::vector<wire::BlockName> names;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    names.push_back({i / 64 % kRequests + 1, 64 + i % 64, 0, {}});
    names.back().digest = digest(i + 7).bytes;
  }
  wire::NameCommand name;
  name.blocks = names;
  frame("name", engine, name);
  frame("place", engine, wire::PlaceCommand());
  frame("rotate", engine, wire::RotateBody{1, 1, 0});
  frame("allocate blocks", engine, wire::AllocateBody{2, 0, 2, 2000});
  frame("stats", engine, wire::StatsCommand());
  for (std::uint64_t request = 3; request < 3 + kTimes; ++request) {
    frame("abort", engine, wire::AbortCommand{{request, 1, 0}});
    frame("submit", engine, wire::SubmitBody{request, 1024, 1024, 0, 0});
  }
}

// Has its prompts computed and named.
void CommandWorld::compute_prompts(EngineId engine) {
  run_.clear();
  iteration_ = 0;
  for (int i = 0; i < 3; ++i) step("step with prompts", engine);
}

void CommandWorld::step(const std::string& name, EngineId engine, bool ends) {
  std::vector<wire::StepReport> reports;
  for (const RunEntry& entry : run_) {
    const Tokens tokens = entry.present + entry.tokens;
    reports.push_back({entry.request.value, static_cast<std::uint64_t>(tokens.value), ends, 0});
  }
  wire::StepCommand step;
  step.body.iteration_finished = iteration_;
  step.reports = reports;
  frame(name, engine, step);
}

void CommandWorld::measure_caches(Placer& placer) {
  using Op = wire::CacheOp;
  hold_ = true;
  const std::uint64_t fresh = kCached + kCount;
  frame("lookup", placer.id, cache(placer, placer.cache, Op::kLookup, kCached / 2));
  frame("store", placer.id, cache(placer, placer.cache, Op::kStore, fresh));
  wire::CommandBody large = cache(placer, placer.large, Op::kStore, fresh);
  blocks_.resize(512);
  for (std::uint32_t i = 0; i < blocks_.size(); ++i) blocks_[i].block = i;
  std::get<wire::CacheCommand>(large).blocks = blocks_;
  frame("store of large", placer.id, large);
  frame("store of known", placer.id, cache(placer, placer.cache, Op::kStore, kCached / 2));
  frame("load", placer.id, cache(placer, placer.pieces, Op::kLoad, kCached / 2 + kCount));
  frame("drop under stores", placer.id, cache(placer, placer.cache, Op::kDrop, kCached));
  frame("drop under loads", placer.id, cache(placer, placer.cache, Op::kDrop, kCached / 2));
  frame("drop parked", placer.id, cache(placer, placer.cache, Op::kDrop, kCached - kCount));
  std::vector<wire::BlockPiece> pieces;
  for (std::uint64_t i = 0; i < kCount; ++i) pieces.push_back({i, kCount, 1});
  wire::CacheOpenCommand open;
  open.body.region = placer.region.value;
  open.body.blocks = 1024;
  open.body.block_bytes = kCount;
  open.body.block_tokens = 1;
  open.pieces = pieces;
  frame("cache open", placer.id, open);
  frame("cache close", placer.id, wire::FinishCommand{{value_, 4, 0}});
  std::vector<wire::ScheduleRequest> requests;
  for (std::uint64_t i = 1; i <= wire::kMaxScheduleRequests; ++i) {
    wire::ScheduleRequest request;
    request.request = i;
    request.state = static_cast<std::uint32_t>(i % 3) + 1;
    request.prompt_tokens = 1024;
    request.computed_tokens = i % 3 == 0 ? 0 : 1024;
    request.max_new_tokens = 1024;
    request.blocks = i % 3 == 2 ? 64 : 0;
    request.age_ns = i * 1000;
    requests.push_back(request);
  }
  wire::ScheduleCommand schedule;
  schedule.body.free_blocks = 1000;
  schedule.body.total_blocks = 100'000;
  schedule.body.block_bytes = static_cast<std::uint64_t>(kBlock.value);
  schedule.body.block_tokens = 16;
  schedule.requests = requests;
  for (int i = 0; i < kTimes; ++i) frame("schedule", placer.id, schedule);
}

// Measures regions of another domain, for which the cache of the full domain has to make way.
void CommandWorld::measure_regions() {
  const EngineId engine = attach(kOther, true);
  std::vector<RegionId> spaces;
  for (int i = 0; i < 16; ++i) {
    frame("space open", engine, wire::SpaceCommand{{0, 0, kHbmSlabs, 0}, {}});
    spaces.emplace_back(value_);
  }
  frame("allocate region", engine, wire::AllocateBody{1, 0, 0, (kSlab * 256).size()});
  const std::uint64_t region = value_;
  std::vector<std::uint32_t> positions(256);
  std::iota(positions.begin(), positions.end(), 0);
  frame("space place", engine, wire::SpaceCommand{{spaces[0].value, region, 0, 0}, positions});
  for (const RegionId space : spaces) {
    const std::uint64_t bytes = (kSlab * 512).size();
    frame("space share", engine, wire::ShareBody{space.value, 0, bytes, bytes, 1, 1000});
  }
  frame("free region", engine, wire::FinishCommand{{region, 2, 0}});
  frame("space close", engine, wire::FinishCommand{{spaces[1].value, 5, 0}});
}

void CommandWorld::measure_events(const Placer& fullest, const Placer& parks, EngineId requests,
                                  EngineId named) {
  // These are copies of the fullest domain. The first is a store that keeps everything.
  for (int i = 0; i < 4 && !held_.empty(); ++i) {
    const Ticket ticket = held_.front();
    held_.erase(held_.begin());
    measured("copy finished", CopyFinished{ticket, true, Bytes(1), Nanoseconds(1), false});
  }
  measured("tick", Tick{});
  const planner::ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  (void)controller_->status(now_);
  count("snapshot", to_seconds(clock.now() - begin) * 1e3);
  measured("drain", Drain{fullest.id, false, {}});
  measured("dying", Dying{fullest.id, false});
  measured("dead", Dead{fullest.id});
  measured("dying with parked", Dying{parks.id, false});
  measured("tick with parked", Tick{});
  measured("dying with requests", Dying{requests, false});
  measured("dead with requests", Dead{requests});
  compute_prompts(named);
  measured("dying with named", Dying{named, false});
  while (controller_->is_behind()) measured("tick that goes on", Tick{});
  measured("dead with named", Dead{named});
  measured("clear cache", ClearCache{});
  while (controller_->is_behind()) measured("tick that clears", Tick{});
}

// ---- the shell ----------------------------------------------------------------------------------

wire::CommandBody CommandWorld::cache(Placer& placer, CacheId cache, wire::CacheOp op,
                                      std::uint64_t first, bool park) {
  const bool copies = op == wire::CacheOp::kStore || op == wire::CacheOp::kLoad;
  blocks_.clear();
  for (std::uint32_t i = 0; i < kCount; ++i) {
    blocks_.push_back({digest(first + i).bytes, copies ? (i * 7919) % 16384 : 0, 0});
  }
  wire::CacheCommand command;
  command.body.cache = cache.value;
  command.body.op = static_cast<std::uint32_t>(op);
  if (park) command.body.flags = wire::kCachePark;
  if (copies) command.body.ticket = ++placer.ticket;
  command.blocks = blocks_;
  return command;
}

void CommandWorld::frame(const std::string& name, EngineId engine, wire::CommandBody body) {
  wire::Command command;
  command.header.frame.version = wire::kVersionMax;
  command.header.generation = command.header.sequence = 1;
  command.header.timeout_ns = 1'000'000'000;
  command.body = body;
  wire::FrameBuffer buffer;
  const Status encoded = wire::encode_command(command, buffer);
  KVD_CHECK(encoded.ok(), encoded.ok() ? "" : encoded.error().message.c_str());
  now_ += std::chrono::milliseconds(1);
  const planner::ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  const auto decoded = wire::decode_command(buffer.bytes());
  KVD_CHECK(decoded.ok(), decoded.ok() ? "" : decoded.error().message.c_str());
  auto core = daemon::to_core(decoded->body, now_);
  KVD_CHECK(core.ok(), core.ok() ? "" : core.error().message.c_str());
  const Event event =
      Command{engine, ReplyTo(++last_reply_to_), now_ + std::chrono::seconds(1), std::move(*core)};
  const double decoding = to_seconds(clock.now() - begin) * 1e3;
  refused_.clear();
  const double ms = decoding + timed(event);
  if (!refused_.empty()) std::fprintf(stderr, "%s: %s\n", name.c_str(), refused_.c_str());
  if (!name.empty()) count(name, ms);
  settle();
}

void CommandWorld::measured(const std::string& name, const Event& event) {
  count(name, timed(event));
  settle();
}

double CommandWorld::timed(const Event& event) {
  effects_.clear();
  const planner::ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  controller_->on(event, now_, effects_);
  const double ms = to_seconds(clock.now() - begin) * 1e3;
  take_all();
  return ms;
}

void CommandWorld::count(const std::string& name, double ms) {
  const auto found = std::find_if(costs_.begin(), costs_.end(),
                                  [&](const CommandCost& cost) { return cost.name == name; });
  if (found == costs_.end()) {
    costs_.push_back({name, ms});
  } else {
    found->ms = std::max(found->ms, ms);
  }
}

void CommandWorld::command(EngineId engine, decltype(Command::body) body) {
  (void)timed(
      Command{engine, ReplyTo(++last_reply_to_), now_ + std::chrono::seconds(1), std::move(body)});
  settle();
}

void CommandWorld::take_all() {
  for (const Effect& effect : effects_) {
    std::visit([&](const auto& e) { take(e); }, effect);
  }
}

void CommandWorld::settle() {
  while (!pending_.empty()) {
    const Event event = std::move(pending_.front());
    pending_.pop_front();
    const double ms = timed(event);
    if (!std::holds_alternative<DiskFound>(event)) continue;
    count("files found", ms);
    while (controller_->is_behind()) count("tick that learns", timed(Tick{}));
  }
}

void CommandWorld::take(const Reply& reply) {
  if (const auto* value = std::get_if<ValueReply>(&reply.body)) value_ = value->value;
  if (const auto* region = std::get_if<RegionReply>(&reply.body)) value_ = region->region.value;
  if (const auto* error = std::get_if<Error>(&reply.body)) refused_ = error->message;
  if (const auto* step = std::get_if<StepReply>(&reply.body)) {
    run_ = step->run;
    iteration_ = step->iteration;
  }
}

// The files are full of what an earlier kvd wrote for the full domain.
void CommandWorld::take(const OpenDisk& order) {
  pending_.emplace_back(DiskOpened{order.disk, kOnDisk, {}, Bytes(0), Bytes(0)});
  std::vector<DiskFound::Block> blocks;
  const Digest label = disk_name(domain_name(kFull), {}, {});
  for (std::uint32_t slot = 0; slot < kOnDisk; ++slot) {
    blocks.push_back({slot, 1, label, digest(slot + (std::uint64_t{1} << 40))});
  }
  pending_.emplace_back(DiskFound{order.disk, std::move(blocks), true});
}

void CommandWorld::take(const CopyRanges& copy) {
  if (hold_) {
    held_.push_back(copy.ticket);
  } else {
    ended(copy.ticket);
  }
}

}  // namespace kvd::bench
