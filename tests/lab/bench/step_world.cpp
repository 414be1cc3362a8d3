#include "tests/lab/bench/step_world.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ipc/vocabulary/check.hpp"

namespace kvd::bench {
namespace {

using namespace core;  // NOLINT(google-build-using-namespace): what this world is made of

constexpr DomainId kDomain(1);
constexpr std::int64_t kDramSlabBlocks = 64;  // a tier has at most 16,383 slabs
/// Steps that a request is out of HBM or on its way back. A request that misses this many steps
/// seals its blocks in the same steps as before.
constexpr std::uint32_t kOut = 16;
constexpr std::uint32_t kWarmUp = 64;
constexpr std::int64_t kAnswerBlocks = 128;  // at most

ModelClass model() { return {4 * StepWorld::kGroups, 4, StepWorld::kBlockTokens, Bytes(4096)}; }
Bytes block_bytes() { return model().slot_bytes() * std::int64_t{StepWorld::kGroups}; }
std::uint32_t slabs_for(std::int64_t blocks, std::int64_t of_slab) {
  return static_cast<std::uint32_t>((blocks + of_slab - 1) / of_slab);
}

}  // namespace

// ---- sizes ----

std::uint32_t StepWorld::inside() const {
  const std::uint32_t parked = kind_ == StepKind::kTight ? running_ : 0;
  return running_ + parked + (kind_ == StepKind::kRotate ? kOut : 0);
}
// With kTight slabs of HBM are larger, because a tier has a bounded number of slabs.
std::int64_t StepWorld::slab_blocks() const { return kind_ == StepKind::kTight ? 32 : 8; }
std::int64_t StepWorld::first_blocks() const { return prompt_ / kBlockTokens + 1; }
std::int64_t StepWorld::last_blocks() const { return first_blocks() + kAnswerBlocks; }
std::int64_t StepWorld::spare_blocks() const {
  return running_ / kBlockTokens * (kSteps + kWarmUp);
}

// A rotated request is on its way in for a step, so HBM holds one more request than run. With
// kTight all requests come in before half of them are parked, and that much is kept for each while
// the length of its answer is unknown.
std::int64_t StepWorld::hbm_blocks() const {
  if (kind_ == StepKind::kTight) {
    return slabs_for((inside() + 1) * last_blocks() * 3 / 4, slab_blocks()) * slab_blocks();
  }
  return slabs_for((running_ + 1) * first_blocks() + spare_blocks(), slab_blocks()) * slab_blocks();
}

// All requests inside may grow, and one may leave for that; admission asks for this much.
std::int64_t StepWorld::dram_blocks() const {
  // DRAM holds the parked requests, and has room to let one end.
  if (kind_ == StepKind::kTight) return (running_ + 2) * first_blocks() + 2 * kAnswerBlocks;
  return (inside() + 1) * last_blocks() - (hbm_blocks() - spare_blocks());
}

std::int64_t StepWorld::free_blocks() const { return status().tiers[0].free / block_bytes(); }

// Requests that need a block for their next token.
std::int64_t StepWorld::growing() const {
  const auto& table = shell_.seen().table;
  return std::count_if(table.begin(), table.end(), [](const TableRow& row) {
    return row.tokens.value == row.blocks * kBlockTokens;
  });
}

std::int64_t StepWorld::largest() const {
  std::uint32_t most = 0;
  for (const TableRow& row : shell_.seen().table) most = std::max(most, row.blocks);
  return most;
}

Controller::Config StepWorld::config() const {
  Controller::Config config;
  config.hbm = {
      {Tier::kHbm, block_bytes() * slab_blocks(), slabs_for(hbm_blocks(), slab_blocks())}};
  config.dram = {Tier::kDram, block_bytes() * kDramSlabBlocks,
                 slabs_for(dram_blocks(), kDramSlabBlocks)};
  config.max_requests_per_engine = inside() + kWaiting;
  Tuning& tuning = config.tuning;
  tuning.placement.policy = "orbitflow";
  tuning.admission.policy = "layerkv";
  if (kind_ == StepKind::kStream) tuning.rotation.policy = "fcfs";
  if (kind_ == StepKind::kRotate) tuning.rotation.policy = "lvf";
  return config;
}

// ---- the way to the steady state ----

StepWorld::StepWorld(StepKind kind, std::uint32_t running, std::int64_t prompt)
    : kind_(kind), running_(running), prompt_(prompt), shell_(config()), engine_(attach(true)) {
  KVD_CHECK(running % kBlockTokens == 0 && prompt % kBlockTokens == 0 && prompt >= kLeastPrompt,
            "whole blocks, and enough of them");
  if (kind == StepKind::kRotate) lease(spare_blocks());
  map_all();
  submit();
  if (kind == StepKind::kTight) park();
  settle();
}

EngineId StepWorld::attach(bool blocks) {
  Attach attach;
  attach.name = "engine";
  attach.domain = kDomain;
  attach.streams_layers = kind_ == StepKind::kStream;
  if (blocks) attach.model_class = model();
  return shell_.attach(attach);
}

void StepWorld::lease(std::int64_t blocks) {
  lender_ = attach(false);
  for (std::uint32_t i = 0; i < slabs_for(blocks, slab_blocks()); ++i) {
    shell_.command(lender_, AllocateRegion{block_bytes() * slab_blocks()});
  }
}

// Maps all memory with a prompt that fills HBM: later no request waits for a slab to be mapped.
void StepWorld::map_all() {
  const Tokens all(free_blocks() * kBlockTokens);
  shell_.command(engine_, Submit{RequestId(1), all - Tokens(2), Tokens(1), {}, {}, {}});
  (void)shell_.step(engine_, {});
  shell_.command(engine_, Abort{RequestId(1)});
  shell_.seen().reply.run.clear();
  shell_.seen().table.clear();
}

void StepWorld::submit() {
  for (std::uint32_t i = 0; i < inside() + kWaiting; ++i) {
    const Tokens prompt(prompt_ + i % kBlockTokens);  // so that one in 16 seals a block
    const Tokens most((i < inside() ? last_blocks() : hbm_blocks() * 3 / 4) * kBlockTokens);
    const Nanoseconds soon = std::chrono::milliseconds(1);  // `lvf` takes requests that are late
    // Each request is said to make all it announces; otherwise the waiting ones would come in.
    std::optional<PredictedLength> said = PredictedLength{most - prompt, most - prompt};
    if (kind_ == StepKind::kTight && i < inside()) said.reset();
    shell_.command(engine_, Submit{RequestId(i + 1), prompt, most - prompt, soon, {}, said});
  }
}

// Parks the requests that came last, so that whole slabs become free. The others then have all the
// room they grow by, and later none waits for a slab to be mapped.
void StepWorld::park() {
  constexpr std::uint32_t kComeIn = 128;
  const auto decoding = [&] {
    const auto& run = shell_.seen().reply.run;
    return std::count_if(run.begin(), run.end(), [](const RunEntry& e) { return !e.prefill; });
  };
  for (std::uint32_t i = 0; i < kComeIn && decoding() < inside(); ++i) (void)step();
  KVD_CHECK(decoding() == inside(), "all have room to come in");
  for (std::uint32_t i = 1; i <= running_; ++i) {
    shell_.command(engine_,
                   AllocateBlocks{RequestId(i), Tokens(std::int64_t{2} * (kSteps + kWarmUp))});
  }
  for (std::uint32_t i = 1; i <= running_; ++i) {
    shell_.command(engine_, Rotate{RequestId(running_ + i), true});
  }
  for (std::uint32_t i = 0; i < kComeIn && shell_.seen().reply.run.size() > running_; ++i) {
    (void)step();
  }
  lease(free_blocks() - 4 * slab_blocks());
}

void StepWorld::settle() {
  constexpr std::uint32_t kLongest = 512, kSteady = 24;
  std::uint32_t steady = 0;
  for (std::uint32_t i = 0; i < kLongest && steady < kSteady; ++i) {
    (void)step();
    steady = fault().empty() ? steady + 1 : 0;
    before_ = status().counters;
    steps_ = 0;
    sealed_ = 0;
    tokens_ = 0;
    fault_.clear();
  }
  KVD_CHECK(steady == kSteady, "the load of kvd-bench step does not become steady");
}

// ---- a step ----

StepCost StepWorld::step() {
  if (kind_ == StepKind::kRotate) {
    keep_full();
    budget_one();
  }
  const std::uint64_t ran = shell_.seen().reply.iteration;
  const StepCost cost =
      shell_.step(engine_, {.iteration_finished = ran, .table_version = {}, .reports = reports()});
  ++steps_;
  if (fault_.empty()) fault_ = reply_fault();
  return cost;
}

// What the last reply granted is computed by now.
std::vector<StepReport> StepWorld::reports() {
  std::vector<StepReport> reports;
  for (const RunEntry& entry : shell_.seen().reply.run) {
    const Tokens tokens = entry.present + entry.tokens;
    reports.push_back({entry.request, tokens, false});
    sealed_ += tokens.value % kBlockTokens == 0 ? 1 : 0;
    ++tokens_;
  }
  return reports;
}

// The engine asks for everything that is free. It is given the slabs to map, and does not ask
// again.
void StepWorld::map_free() {
  const TableRow& row = shell_.seen().table.front();
  const Tokens room((row.blocks + free_blocks()) * kBlockTokens);
  shell_.command(engine_, AllocateBlocks{row.request, room - row.tokens});
}

// Free memory stays above what the requests grow by next, and below what one more request would
// need. The one that leaves may be a little smaller than the one that comes back.
void StepWorld::keep_full() {
  constexpr std::int64_t kMargin = 4;
  StepShell::Seen& seen = shell_.seen();
  for (;;) {
    const std::int64_t free = free_blocks();
    if (free >= growing() + kMargin || seen.regions.empty() || seen.table.empty()) return;
    shell_.command(lender_, ReleaseRegion{seen.regions.back()});
    seen.regions.pop_back();
    map_free();
  }
}

// A step may rotate one request, the largest.
void StepWorld::budget_one() {
  Tuning tuning = shell_.tuning();
  const Bytes budget = block_bytes() * (largest() + 1);
  if (std::exchange(tuning.rotation.b_xfer, budget) != budget) {
    shell_.feed(Retune{std::move(tuning)});
  }
}

void StepWorld::abort_one() {
  auto& run = shell_.seen().reply.run;
  shell_.command(engine_, Abort{run.back().request});
  run.pop_back();
}

// ---- what step_world.hpp says of the load ----

std::string StepWorld::reply_fault() const {
  const StepReply& reply = shell_.seen().reply;
  const auto decoding = std::count_if(reply.run.begin(), reply.run.end(),
                                      [](const RunEntry& entry) { return !entry.prefill; });
  if (decoding != running_ || reply.run.size() != running_) {
    return std::to_string(reply.run.size()) + " requests run, " + std::to_string(decoding) +
           " of them decode";
  }
  const auto waiting = std::count_if(reply.hold.begin(), reply.hold.end(), [](const auto& entry) {
    return entry.reason == Hold::kWaiting;
  });
  if (waiting != kWaiting) return std::to_string(waiting) + " requests wait";
  return stream_fault();
}

std::string StepWorld::stream_fault() const {
  std::int64_t full = 0, streams = 0;
  for (const RunEntry& entry : shell_.seen().reply.run) {
    full += entry.present.value / kBlockTokens;
    streams += entry.streamed && entry.distance == 2 ? 1 : 0;
  }
  const std::int64_t wanted = kind_ == StepKind::kStream ? std::int64_t{running_} : 0;
  if (streams != wanted) return std::to_string(streams) + " requests stream";
  // A block that was just sealed is still on its way to DRAM.
  const std::int64_t half = full * kGroups / 2, blocks = shell_.seen().streamed;
  const std::int64_t least = half - running_ * std::int64_t{kGroups} / 2;
  if (wanted == 0 || (least <= blocks && blocks <= half)) return {};
  return std::to_string(blocks) + " blocks stream, half are " + std::to_string(half);
}

std::string StepWorld::fault() const {
  if (!fault_.empty()) return fault_;
  const Counters now = status().counters;
  const auto count = [&](const char* what, std::uint64_t seen, std::uint64_t wanted) {
    if (seen == wanted) return std::string();
    return std::to_string(seen) + what + std::to_string(steps_) + " steps";
  };
  const std::uint64_t rotations = kind_ == StepKind::kRotate ? steps_ : 0;
  const std::uint64_t streams = kind_ == StepKind::kStream ? steps_ : 0;
  for (const std::string& fault :
       {count(" requests left in ", now.rotations_out - before_.rotations_out, rotations),
        count(" requests came back in ", now.rotations_in - before_.rotations_in, rotations),
        count(" streams in ", now.streams - before_.streams, streams),
        count(" tokens in ", now.tokens - before_.tokens, tokens_)}) {
    if (!fault.empty()) return fault;
  }
  const double share = static_cast<double>(sealed_) / static_cast<double>(tokens_);
  // A step may seal a few more or less.
  const bool as_said = steps_ < kBlockTokens || std::abs(share * kBlockTokens - 1) < 0.125;
  return as_said ? std::string() : std::to_string(share) + " of the tokens seal a block";
}

}  // namespace kvd::bench
