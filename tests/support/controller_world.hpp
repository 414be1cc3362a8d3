#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ipc/vocabulary/layer_mark.hpp"
#include "kvd/core/controller.hpp"
#include "planner/baselines/all_policies.hpp"
#include "tests/support/block_contents.hpp"
#include "tests/support/disk_files.hpp"

namespace kvd::test {

using namespace kvd::core;  // NOLINT(google-build-using-namespace): test support of this namespace

/// A shell around the Controller without device or sockets: slots hold `Content`, copies take time
/// and may end in any order between the directions, engines check every block at every run.
class World {
 public:
  explicit World(Controller::Config config, std::uint64_t seed = 1) : random(seed) {
    config.policies = &planner::all_policies();
    config.validate_each_event = true;
    for (const auto& device : config.hbm) device_slabs.push_back(device.slabs);
    auto made = Controller::create(std::move(config));
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().to_string());
    controller = std::move(made).value();
  }

  struct EngineRequest {
    std::int64_t prompt = 0;
    std::int64_t max_new = 0;
    std::int64_t tokens = 0;  ///< written into blocks
    bool done = false;
    std::uint32_t told = 0;  ///< blocks of its text
  };
  /// One process of a tensor-parallel group.
  struct Rank {
    StepReply reply;                  ///< what it has run, or runs next
    bool ran = true;                  ///< the first
    std::vector<StepReport> reports;  ///< of the iteration it finished last
    std::optional<ReplyTo> asked;     ///< a step that it waits for
    std::uint64_t progress = 0;       ///< layer_mark
  };
  struct Engine {
    EngineId id;
    ModelClass shape;
    Devices devices;
    std::vector<Rank> ranks;  ///< a group's ranks; then the replies and reports below are not used
    std::map<PlanVersion, std::vector<TableRow>> tables;  ///< the newest few
    std::map<std::uint64_t, EngineRequest> requests;
    StepReply reply;                ///< what runs, or runs next
    std::vector<TableRow> table;    ///< of that
    std::optional<StepReply> next;  ///< pipelined: granted while `reply` ran
    std::vector<TableRow> next_table;
    std::vector<StepReport> reports;  ///< of the iteration that finished last
    std::uint64_t progress = 0;       ///< layer_mark
    bool pipelined = false;
    std::vector<SlabIndex> mapped;
    bool alive = true;
    std::uint64_t ran = 0;
  };

  EngineId attach(ModelClass shape, DomainId domain = DomainId(1), bool level1 = false,
                  const Devices& devices = {}) {
    Attach attach;
    attach.name = "engine";
    attach.domain = domain;
    attach.streams_layers = streams_layers;
    attach.devices = Devices(devices.of_rank(0));
    if (!level1) attach.model_class = shape;
    auto grant = controller->attach(attach, now);
    EXPECT_TRUE(grant.ok()) << (grant.ok() ? "" : grant.error().to_string());
    engines[grant->engine].id = grant->engine;
    engines[grant->engine].devices = devices;
    if (!level1) engines[grant->engine].shape = shape;
    if (!level1 && shape.ranks > 1) engines[grant->engine].ranks.resize(shape.ranks);
    if (devices.named() > 0) feed(RanksPlaced{grant->engine, devices, streams_layers});
    return grant->engine;
  }

  /// Sends a command and returns the last reply to it, if it came at once.
  template <class Body>
  std::optional<Reply> command(EngineId engine, Body body,
                               Nanoseconds timeout = std::chrono::seconds(1),
                               std::uint32_t rank = 0) {
    const ReplyTo to(++last_reply_to);
    feed(Command{engine, to, now + timeout, body, rank});
    const auto it = replies.find(to);
    if (it == replies.end()) return std::nullopt;
    return it->second;
  }

  ErrorCode code(const std::optional<Reply>& reply) const {
    if (!reply) return ErrorCode::kWouldBlock;
    const Error* error = std::get_if<Error>(&reply->body);
    return error ? error->code : ErrorCode::kOk;
  }

  ErrorCode submit(EngineId engine, std::uint64_t id, std::int64_t prompt, std::int64_t max_new,
                   const Text& text) {
    return submit(engine, Submit{RequestId(id), Tokens(prompt), Tokens(max_new), {}, {}}, max_new,
                  text);
  }
  ErrorCode submit(EngineId engine, const Submit& body, std::int64_t makes, const Text& text) {
    const std::uint64_t id = body.request.value;
    const ErrorCode submitted = submit(engine, body, makes);
    if (submitted != ErrorCode::kOk) return submitted;
    texts[{engine, RequestId(id)}] = text;
    EXPECT_EQ(tell(engine, id, body.prompt_tokens.value), ErrorCode::kOk);
    return submitted;
  }
  /// What the blocks hold that this many tokens of the request fill.
  ErrorCode tell(EngineId engine, std::uint64_t id, std::int64_t tokens) {
    EngineRequest& request = engines.at(engine).requests.at(id);
    const auto full = static_cast<std::uint32_t>(tokens / engines.at(engine).shape.block_tokens);
    NameBlocks names;
    for (; request.told < full; ++request.told) {
      const Digest digest = texts.at({engine, RequestId(id)}).digest(request.told);
      names.blocks.push_back({RequestId(id), request.told, digest});
    }
    return code(command(engine, names));
  }

  /// The request makes all tokens that it announces.
  ErrorCode submit(EngineId engine, std::uint64_t id, std::int64_t prompt, std::int64_t max_new) {
    return submit(engine, Submit{RequestId(id), Tokens(prompt), Tokens(max_new), {}, {}}, max_new);
  }
  /// It makes less.
  ErrorCode submit(EngineId engine, const Submit& body, std::int64_t makes) {
    const auto reply = command(engine, body);
    if (code(reply) == ErrorCode::kOk) {
      engines.at(engine).requests[body.request.value] = {body.prompt_tokens.value, makes, 0, false};
    }
    return code(reply);
  }

  /// Runs what the last reply granted: checks every block, writes the new tokens, and steps. A
  /// pipelined engine steps first.
  void run_and_step(EngineId id) {
    Engine& engine = engines.at(id);
    if (!engine.ranks.empty()) {
      return run_rank(engine, static_cast<std::uint32_t>(random() % engine.ranks.size()));
    }
    if (engine.pipelined && !engine.reply.run.empty()) {
      step_ahead(id);
      execute(id);
      take_next(engine);
      return;
    }
    execute(id);
    step(id);
  }

  /// The same for one rank of a group, as far as it can go while it waits for the others.
  void run_rank(Engine& engine, std::uint32_t index) {
    Rank& rank = engine.ranks.at(index);
    if (rank.asked) return take_answer(engine, rank);
    const bool ahead = engine.pipelined && !rank.reply.run.empty();
    if (!ahead) execute_share(engine, index);
    ask(engine, index, ahead);
    if (ahead) execute_share(engine, index);
    take_answer(engine, rank);
  }

  /// Runs this many iterations of 10 ms, and ends every copy after each.
  void iterate(EngineId id, int times = 1) {
    for (int i = 0; i < times; ++i) {
      pass(std::chrono::milliseconds(10));
      run_and_step(id);
      finish_copies();
    }
  }

  void execute(EngineId id) {
    Engine& engine = engines.at(id);
    for (std::uint32_t group = 0; group < engine.shape.groups() && !engine.reply.run.empty();
         ++group) {
      fetch(id, 0, engine.reply, group, engine.progress);
      for (const RunEntry& entry : engine.reply.run) {
        const TableRow& row = engine.table.at(entry.row);
        check(engine, entry.request, row, group, entry.present.value);
        write(engine, entry.request, row, group, entry.present.value,
              (entry.present + entry.tokens).value);
      }
      engine.progress = layer_mark(engine.reply.iteration, group + 1);
    }
    for (const RunEntry& entry : engine.reply.run) {
      if (!engine.requests.contains(entry.request.value)) continue;  // ended in the step before
      EngineRequest& request = engine.requests.at(entry.request.value);
      EXPECT_EQ(engine.table.at(entry.row).request, entry.request);
      const bool begins = request.tokens == 0 && request.told > 0;
      if (begins) found += entry.present.value;
      EXPECT_TRUE(begins || entry.present.value == request.tokens);
      request.tokens = entry.present.value + entry.tokens.value;
      request.done = request.tokens >= request.prompt + request.max_new;
      if (request.told > 0 && (request.done || random() % 4 == 0)) {
        EXPECT_EQ(tell(id, entry.request.value, request.tokens), ErrorCode::kOk);
      }
      engine.reports.push_back({entry.request, Tokens(request.tokens), request.done});
      ++engine.ran;
    }
  }

  void step(EngineId id) {
    Engine& engine = engines.at(id);
    Step body;
    body.iteration_finished = engine.reply.iteration;
    body.reports = std::exchange(engine.reports, {});
    if (const auto reply = send_step(id, body)) {
      engine.reply = *reply;
      engine.table = engine.next_table;
    }
  }

  /// While `reply` runs: reports what was before it, and learns what comes after it.
  void step_ahead(EngineId id) {
    Engine& engine = engines.at(id);
    Step body;
    body.iteration_running = engine.reply.iteration;
    body.iteration_finished = engine.reply.iteration - 1;
    body.reports = std::exchange(engine.reports, {});
    engine.next = send_step(id, body);
  }

  /// Steps until something is granted: a new slab must be acknowledged first.
  void step_until_granted(EngineId id) {
    for (int i = 0; i < 3 && engines.at(id).reply.run.empty(); ++i) step(id);
  }

  void finish_disk(std::size_t count = SIZE_MAX) {
    disk.finish(
        dram, [&](std::size_t below) { return random() % below; },
        [&](const Event& event) { feed(event); }, count);
  }

  /// Ends up to `count` copies, chosen by the seed. Copies of different directions, urgencies and
  /// engines end independently of each other.
  void finish_copies(std::size_t count = SIZE_MAX) {
    finish_streams();
    finish_renewals();
    if (count == SIZE_MAX) {
      finish_kept();
      catch_up();
    }
    finish_disk(count);
    for (std::size_t ended = 0; count-- > 0 && !copies.empty(); ++ended) {
      ASSERT_LT(ended, 10'000u) << "the end of each copy begins another one";
      std::vector<std::size_t> heads;
      std::set<std::tuple<DeviceId, std::size_t, EngineId>> seen;
      for (std::size_t i = 0; i < copies.size(); ++i) {
        const EngineId engine = copies[i].slots.engine;
        if (seen.emplace(device_of(copies[i]), copies[i].queue(), engine).second) {
          heads.push_back(i);
        }
      }
      const std::size_t pick = heads[random() % heads.size()];
      PendingCopy copy = copies[pick];
      copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(pick));
      const bool ok = fail_copies == 0 || --fail_copies > 0;
      const bool dropped = copy.dropped && random() % 4 > 0;  // or it comes too late
      if (dropped) copy.slots.pairs.resize(copy.slots.pairs.size() / 2);
      if (ok) carry_out(copy);
      CopyFinished end = finished(copy.ticket, ok && !dropped);
      end.dropped = dropped;
      feed(end);
    }
  }

  /// Checks that rows which are being written down for the next daemon are in their slots, unless
  /// they were forgotten.
  void finish_kept() {
    for (const KeepRows& order : std::exchange(kept, {})) {
      for (const KeptBlocks& blocks : order.rows) {
        for (const SlotId slot : blocks.row.slots) {
          reading.erase({blocks.row.tier, slot});
          const auto wanted = keeping.find({blocks.row.tier, slot});
          if (wanted == keeping.end() || wanted->second != order.ticket) continue;
          keeping.erase(wanted);
          written_down[{blocks.row.tier, slot}] = blocks;
        }
      }
      feed(RowsKept{order.ticket});
    }
  }
  /// Takes over what the other world has recorded, as if that one had been killed.
  void adopt(const World& before) {
    AdoptRows left;
    for (const auto& [first, blocks] : before.written_down) {
      const store::KeptRow& row = blocks.row;
      const bool whole = std::all_of(row.slots.begin(), row.slots.end(), [&](SlotId slot) {
        const auto other = before.written_down.find({row.tier, slot});
        return other != before.written_down.end() && other->second.row.digest == row.digest;
      });
      if (!whole || first.second != row.slots.front()) continue;
      left.rows.push_back(blocks);
      left.rows.back().row.space.model_class = {};
      const bool in_hbm = row.tier == Tier::kHbm;
      for (const SlotId slot : row.slots) {
        (in_hbm ? hbm : dram)[slot] = (in_hbm ? before.hbm : before.dram).at(slot);
        written_down[{row.tier, slot}] = blocks;
        left.slabs[in_hbm ? 0 : 1].push_back(slot.slab());
      }
    }
    for (std::vector<SlabIndex>& slabs : left.slabs) {
      std::sort(slabs.begin(), slabs.end());
      slabs.erase(std::unique(slabs.begin(), slabs.end()), slabs.end());
    }
    feed(left);
  }

  /// New memory holds zeros.
  void finish_renewals() {
    for (const SlabIndex slab : std::exchange(renewing, {})) {
      std::erase_if(hbm, [&](const auto& entry) { return entry.first.slab() == slab; });
      check_unwritten(Tier::kHbm, slab);
      ++renewed[slab];
      feed(SlabRenewed{slab});
    }
  }

  /// Releases the oldest region, unless its engine is gone.
  void release_oldest_region() {
    const auto [engine, region] = regions.front();
    regions.erase(regions.begin());
    if (!engines.contains(engine) || !engines.at(engine).alive) return;
    EXPECT_EQ(code(command(engine, ReleaseRegion{region})), ErrorCode::kOk);
  }
  /// Whether slabs are kept for a region that waits.
  [[nodiscard]] bool retires() const {
    const auto slabs = controller->status(now).slabs[0];
    return std::any_of(slabs.begin(), slabs.end(), [](const auto& slab) { return slab.retiring; });
  }

  void die(EngineId id) {
    engines.at(id).alive = false;
    feed(Dying{id});
  }
  void bury(EngineId id) {
    feed(Dead{id});
    engines.erase(id);
  }

  /// Feeds events until none leaves work for the next.
  void catch_up() {
    while (controller->is_behind()) feed(Tick{});
  }

  /// As in the daemon, the events that an effect causes come after all effects of the event before.
  void feed(const Event& event) {
    events.push_back(event);
    if (events.size() > 1) return;  // an effect caused it
    for (; !events.empty(); events.pop_front()) {
      std::vector<Effect> effects;
      controller->on(events.front(), now, effects);
      for (const Effect& effect : effects) {
        std::visit([&](const auto& e) { take(e); }, effect);
      }
    }
  }

  void pass(Nanoseconds time) { now += time; }

  [[nodiscard]] DeviceId device_of(SlabIndex slab) const {
    std::uint32_t device = 0;
    for (std::uint32_t end = device_slabs[0]; slab.value >= end; end += device_slabs.at(device))
      ++device;
    return DeviceId(device);
  }

  std::unique_ptr<Controller> controller;
  std::deque<Event> events;  ///< not taken yet; the first is being taken
  std::map<EngineId, Engine> engines;
  std::map<ReplyTo, Reply> replies;
  std::optional<Reply> latest;
  std::vector<std::pair<EngineId, RegionId>> regions;  ///< leased, oldest first
  std::vector<SendSlab> sent;
  std::vector<Note> notes;
  std::vector<EngineId> evicted;
  std::vector<KeepRows> kept;                         ///< asked for
  std::set<std::pair<Tier, SlotId>> reading;          ///< for that
  std::map<std::pair<Tier, SlotId>, Ticket> keeping;  ///< of these, not forgotten since
  /// Slots whose content is written down, so nobody writes there.
  std::map<std::pair<Tier, SlotId>, KeptBlocks> written_down;
  std::vector<std::uint32_t> device_slabs;  ///< of HBM, by device
  std::map<SlotId, Content> hbm, dram;
  DiskFiles<Content> disk;
  std::map<SlabIndex, int> scrubbed;
  std::map<SlabIndex, int> renewed;
  std::vector<SlabIndex> renewing;   ///< asked for
  std::uint32_t renewed_in_use = 0;  ///< blocks beside which an engine may compute
  std::mt19937_64 random;
  TimePoint now{1};
  std::size_t fail_copies = 0;  ///< n: the n-th copy from now fails
  std::map<RequestKey, Text> texts;
  std::int64_t found = 0;            ///< tokens that requests did not have to compute
  std::size_t streamed_by_rank = 0;  ///< groups that ranks but the first waited for
  std::size_t errors = 0;            ///< blocks that did not hold what they should
  bool corrupt_next = false;         ///< the control: the next copy brings wrong bytes
  bool acknowledge = true;
  bool streams_layers = true;         ///< of engines that attach
  std::size_t moved = 0;              ///< slots that moved, or are to move, within DRAM
  std::size_t last_copied = 0;        ///< slots of the last copy between the tiers
  double link_bytes_per_s = 1 << 30;  ///< as the device reports it
  bool solve_late = false;            ///< plans come with finish_plans(), not at once

  void finish_plans() {
    for (const SolvePlacement& problem : std::exchange(problems, {})) solve(problem);
  }

 private:
  struct PendingCopy {
    Ticket ticket;
    CopySlots slots;
    Scrub scrubbing;
    bool scrub = false;
    MoveSlots moving{};
    bool dropped = false;

    [[nodiscard]] std::size_t queue() const {
      if (scrub) return 4;
      if (!moving.pairs.empty()) return 5;
      return (slots.to_hbm ? 0u : 1u) + (slots.background ? 2u : 0u);
    }
  };

  // Copies without HBM are in the queues of the first device.
  [[nodiscard]] DeviceId device_of(const PendingCopy& copy) const {
    if (!copy.slots.pairs.empty()) return device_of(copy.slots.pairs[0].hbm.slab());
    const Scrub& scrub = copy.scrubbing;
    if (!copy.scrub || scrub.tier != Tier::kHbm) return DeviceId(0);
    return device_of(scrub.slabs.empty() ? scrub.slots[0].slab() : scrub.slabs[0]);
  }

  void take(const Reply& reply) {
    EXPECT_TRUE(replies.emplace(reply.reply_to, reply).second) << "answered twice";
    latest = reply;
    const auto* region = std::get_if<RegionReply>(&reply.body);
    if (region != nullptr) regions.emplace_back(reply.engine, region->region);
  }
  void take(const PublishTable& table) {
    Engine& engine = engines.at(table.engine);
    engine.next_table = table.rows;
    engine.tables[table.version] = table.rows;
    // The daemon has room for this many (shm::kTableBuffers): no rank may read an older table.
    if (engine.tables.size() > 3) engine.tables.erase(engine.tables.begin());
  }

  void ask(Engine& engine, std::uint32_t index, bool ahead) {
    Rank& rank = engine.ranks[index];
    Step body;
    body.iteration_finished = rank.reply.iteration - (ahead ? 1 : 0);
    body.iteration_running = ahead ? rank.reply.iteration : 0;
    body.reports = std::exchange(rank.reports, {});
    std::erase_if(body.reports, [&](const StepReport& report) {
      return !engine.requests.contains(report.request.value);  // aborted, or its end is known
    });
    rank.asked = ReplyTo(++last_reply_to);
    feed(Command{engine.id, *rank.asked, now + std::chrono::hours(1), body, index});
    // The other ranks have also finished what the first rank reports as finished.
    for (const StepReport& report : body.reports) {
      if (report.finished) engine.requests.erase(report.request.value);
    }
  }

  void take_answer(Engine& engine, Rank& rank) {
    const auto reply = replies.find(*rank.asked);
    if (reply == replies.end()) return;
    rank.asked.reset();
    const auto* ok = std::get_if<StepReply>(&reply->second.body);
    EXPECT_NE(ok, nullptr) << std::get<Error>(reply->second.body).to_string();
    if (ok == nullptr) return;
    rank.reply = *ok;
    rank.ran = false;
    drop_given_up(engine, *ok);
  }

  void execute_share(Engine& engine, std::uint32_t index) {
    Rank& rank = engine.ranks[index];
    if (std::exchange(rank.ran, true) || rank.reply.run.empty()) return;
    ASSERT_TRUE(engine.tables.contains(rank.reply.table_version)) << "its table is overwritten";
    const std::vector<TableRow>& table = engine.tables.at(rank.reply.table_version);
    const std::uint32_t share = engine.shape.rank_groups();
    for (std::uint32_t layer = 0; layer < share; ++layer) {
      fetch(engine.id, index, rank.reply, layer, rank.progress);
      const std::uint32_t group = index * share + layer;
      for (const RunEntry& entry : rank.reply.run) {
        const TableRow& row = table.at(entry.row);
        EXPECT_EQ(row.request, entry.request);
        check(engine, entry.request, row, group, entry.present.value);
        write(engine, entry.request, row, group, entry.present.value,
              (entry.present + entry.tokens).value);
      }
      rank.progress = layer_mark(rank.reply.iteration, layer + 1);
    }
    for (const RunEntry& entry : rank.reply.run) {
      const std::int64_t after = (entry.present + entry.tokens).value;
      const auto request = engine.requests.find(entry.request.value);
      if (request == engine.requests.end()) continue;  // aborted
      const bool done = after >= request->second.prompt + request->second.max_new;
      rank.reports.push_back({entry.request, Tokens(after), done});
      ++engine.ran;
    }
  }
  void take(const StreamLayers& stream) {
    streams.push_back({stream, false});
    for (const auto& fetch : stream.fetches) EXPECT_LT(fetch.group, stream.groups);
  }
  void take(const EndStream& end) {
    for (PendingStream& pending : streams) {
      if (pending.stream.ticket == end.ticket) pending.stream.fetches.clear();
    }
  }
  void take(const SolvePlacement& problem) {
    if (solve_late) {
      problems.push_back(problem);
    } else {
      solve(problem);
    }
  }
  void take(const CopySlots& copy) {
    copies.push_back({copy.ticket, copy, {}, false});
    last_copied = copy.pairs.size();
  }
  void take(const MoveSlots& move) {
    copies.push_back({move.ticket, {}, {}, false, move});
    moved += move.pairs.size();
  }
  void take(const Scrub& scrub) { copies.push_back({scrub.ticket, {}, scrub, true}); }
  void take(const DropCopy& drop) {
    for (PendingCopy& copy : copies) copy.dropped |= copy.ticket == drop.ticket;
  }
  void take(const CopyRanges&) { FAIL() << "no engine here places by itself"; }
  void take(const SetTicket&) {}
  void take(const RenewSlab& renew) {
    renewing.push_back(renew.slab);
    renewed_in_use += renew.in_use ? 1 : 0;
  }
  void take(const SendSlab& slab) {
    sent.push_back(slab);
    EXPECT_TRUE(engines.at(slab.engine).devices.has(device_of(slab.slab)));
    if (acknowledge && slab.region == RegionId(0)) feed(SlabMapped{slab.engine, slab.slab});
  }
  void take(const AskUnmap& ask) { feed(SlabUnmapped{ask.engine, ask.slab}); }
  void take(const OpenDisk& order) { disk.open(order); }
  void take(const ResizeDisk& order) { disk.resize(order); }
  void take(const CloseDisk& order) { disk.close(order); }
  void take(const WriteDisk& order) { disk.write(order); }
  void take(const ReadDisk& order) { disk.read(order); }
  void take(const FindRemote&) {}  // there is no remote store
  void take(const ReadRemote&) {}
  void take(const WriteRemote&) {}
  void take(const KeepRows& order) {
    for (const KeptBlocks& blocks : order.rows) {
      for (const SlotId slot : blocks.row.slots) {
        keeping[{blocks.row.tier, slot}] = order.ticket;
        reading.emplace(blocks.row.tier, slot);
      }
    }
    kept.push_back(order);
  }
  void take(const ForgetKept& order) {
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      for (const SlotId slot : order.slots[static_cast<std::size_t>(tier)]) {
        keeping.erase({tier, slot});
        written_down.erase({tier, slot});
      }
    }
  }
  void check_unwritten(Tier tier, SlotId slot) {
    EXPECT_FALSE(written_down.contains({tier, slot}))
        << "a slot is written that is said to hold a row";
    EXPECT_FALSE(reading.contains({tier, slot})) << "a slot is written that is being read";
  }
  void check_unwritten(Tier tier, SlabIndex slab) {
    for (const auto& [where, blocks] : written_down) {
      if (where.first == tier && where.second.slab() == slab) check_unwritten(tier, where.second);
    }
  }
  void take(const Evict& evict) { evicted.push_back(evict.engine); }
  void take(const Note& note) { notes.push_back(note); }

  [[nodiscard]] CopyFinished finished(Ticket ticket, bool ok) const {
    constexpr std::int64_t kBytes = 1 << 20;
    const double seconds = kBytes / link_bytes_per_s;
    return {ticket, ok, Bytes(kBytes), Nanoseconds(static_cast<std::int64_t>(seconds * 1e9))};
  }

  struct PendingStream {
    StreamLayers stream;
    bool failed = false;
  };

  void solve(const SolvePlacement& problem) {
    class NoClock final : public Clock {
      [[nodiscard]] TimePoint now() const override { return TimePoint(0); }
    };
    const auto policy = planner::all_policies().placement(problem.policy).value();
    feed(PlanReady{problem.engine, problem.number, problem.query,
                   policy->decide(problem.snapshot, problem.config, NoClock())});
  }

  /// Ends the copies that the rank needs before it touches its group and, by chance, some that may
  /// come already.
  void fetch(EngineId engine, std::uint32_t rank, const StepReply& reply, std::uint32_t group,
             std::uint64_t progress) {
    const auto stages = [&](const RunEntry& entry) { return entry.streamed; };
    const bool waits = std::any_of(reply.run.begin(), reply.run.end(), stages);
    const auto mine = [&](const PendingStream& pending) {
      return pending.stream.engine == engine && pending.stream.rank == rank;
    };
    const auto runs = [&](const PendingStream& pending) {
      return mine(pending) && pending.stream.iteration == reply.iteration;
    };
    if (waits) streamed_by_rank += rank > 0 ? 1 : 0;
    if (waits && group == 0 && std::none_of(streams.begin(), streams.end(), runs)) {
      EXPECT_GT(ended_streams.count({engine, rank, reply.iteration}), 0U)
          << "its layers are waited for, and nobody fetches them";
    }
    for (PendingStream& pending : streams) {
      if (!mine(pending)) continue;
      std::erase_if(pending.stream.fetches, [&](const StreamLayers::Fetch& fetch) {
        const bool needed =
            waits && pending.stream.iteration == reply.iteration && fetch.group == group;
        if (fetch.after > progress) {
          EXPECT_FALSE(needed) << "a fetch waits for what comes after it";
          return false;
        }
        if (!needed && random() % 2 == 0) return false;
        for (const CopySlots::Pair& pair : fetch.pairs) {
          check_unwritten(Tier::kHbm, pair.hbm);
          hbm[pair.hbm] = std::exchange(corrupt_next, false) ? Content{} : dram[pair.dram];
        }
        return true;
      });
    }
  }

  void finish_streams() {
    std::vector<Ticket> ended;
    std::erase_if(streams, [&](const PendingStream& pending) {
      if (!pending.stream.fetches.empty()) return false;
      ended.push_back(pending.stream.ticket);
      ended_streams.emplace(pending.stream.engine, pending.stream.rank, pending.stream.iteration);
      return true;
    });
    for (const Ticket ticket : ended) {
      feed(finished(ticket, true));
    }
  }

  std::optional<StepReply> send_step(EngineId id, const Step& body) {
    const auto reply = command(id, body);
    EXPECT_TRUE(reply.has_value());
    if (!reply) return std::nullopt;
    const auto* ok = std::get_if<StepReply>(&reply->body);
    EXPECT_NE(ok, nullptr) << std::get<Error>(reply->body).to_string();
    if (!ok) return std::nullopt;
    for (const StepReport& report : body.reports) {
      if (report.finished) engines.at(id).requests.erase(report.request.value);
    }
    drop_given_up(engines.at(id), *ok);
    return *ok;
  }

  /// kvd has ended them: nobody of their domain could go on.
  static void drop_given_up(Engine& engine, const StepReply& reply) {
    for (const HoldEntry& entry : reply.hold) {
      if (entry.reason != Hold::kOutOfMemory) continue;
      engine.requests.erase(entry.request.value);
      std::erase_if(engine.reports,
                    [&](const StepReport& r) { return r.request == entry.request; });
    }
  }

  static void take_next(Engine& engine) {
    if (!engine.next) return;
    engine.reply = *std::exchange(engine.next, std::nullopt);
    engine.table = engine.next_table;
    // What stopped in the iteration before is dropped from this one.
    std::erase_if(engine.reply.run, [&](const RunEntry& entry) {
      const auto it = engine.requests.find(entry.request.value);
      return it == engine.requests.end() || it->second.done;
    });
  }

  void carry_out(const PendingCopy& copy) {
    if (copy.scrub) {
      for (const SlotId slot : copy.scrubbing.slots) {
        check_unwritten(Tier::kHbm, slot);
        hbm.erase(slot);
      }
      for (const SlabIndex slab : copy.scrubbing.slabs) {
        check_unwritten(copy.scrubbing.tier, slab);
        std::erase_if(copy.scrubbing.tier == Tier::kHbm ? hbm : dram,
                      [&](const auto& entry) { return entry.first.slab() == slab; });
        ++scrubbed[slab];
      }
      return;
    }
    for (const MoveSlots::Pair& pair : copy.moving.pairs) {
      check_unwritten(Tier::kDram, pair.to);
      dram[pair.to] = std::exchange(corrupt_next, false) ? Content{} : dram[pair.from];
    }
    for (const CopySlots::Pair& pair : copy.slots.pairs) {
      auto& from = copy.slots.to_hbm ? dram : hbm;
      auto& to = copy.slots.to_hbm ? hbm : dram;
      const SlotId source = copy.slots.to_hbm ? pair.dram : pair.hbm;
      copy.slots.to_hbm ? check_unwritten(Tier::kHbm, pair.hbm)
                        : check_unwritten(Tier::kDram, pair.dram);
      to[copy.slots.to_hbm ? pair.hbm : pair.dram] =
          std::exchange(corrupt_next, false) ? Content{} : from[source];
    }
  }

  static std::int64_t in_block(const ModelClass& shape, std::uint32_t block, std::int64_t tokens) {
    const std::int64_t start = std::int64_t{block} * shape.block_tokens;
    return std::clamp<std::int64_t>(tokens - start, 0, shape.block_tokens);
  }

  Content content(const Engine& engine, RequestId id, std::uint32_t group, std::uint32_t block,
                  std::int64_t tokens) const {
    const RequestKey key{engine.id, id};
    const auto text = texts.find(key);
    if (text == texts.end() || text->second.document == 0) return {key, 0, 0, group, block, tokens};
    const ModelClass& shape = engine.shape;
    const std::int64_t bytes = shape.slot_bytes().value * 64 + shape.groups();
    return {{}, text->second.block(block), bytes * 64 + shape.ranks, group, block, tokens};
  }

  void check(const Engine& engine, RequestId id, const TableRow& row, std::uint32_t group,
             std::int64_t present) {
    // Nobody sees the answer of a request that has ended meanwhile. Blocks of it that others may
    // find belong to the others by now.
    const bool ended = !engine.requests.contains(id.value) && texts.contains({engine.id, id});
    for (std::uint32_t block = 0; block < row.blocks; ++block) {
      const std::int64_t tokens = in_block(engine.shape, block, present);
      if (tokens == 0 || (ended && tokens == engine.shape.block_tokens)) continue;
      const SlotId slot = row.slots[std::size_t{group} * row.blocks + block];
      if (hbm[slot] != content(engine, id, group, block, tokens)) ++errors;
    }
  }

  /// The tokens from `present` on; blocks that are full already are never written.
  void write(const Engine& engine, RequestId id, const TableRow& row, std::uint32_t group,
             std::int64_t present, std::int64_t tokens) {
    EXPECT_GE(std::int64_t{row.blocks} * engine.shape.block_tokens, tokens);
    for (std::uint32_t block = 0; block < row.blocks; ++block) {
      const std::int64_t there = in_block(engine.shape, block, tokens);
      if (there == in_block(engine.shape, block, present)) continue;
      const SlotId slot = row.slots[std::size_t{group} * row.blocks + block];
      check_unwritten(Tier::kHbm, slot);
      hbm[slot] = content(engine, id, group, block, there);
    }
  }

  std::vector<PendingStream> streams;
  std::set<std::tuple<EngineId, std::uint32_t, std::uint64_t>> ended_streams;
  std::vector<SolvePlacement> problems;
  std::vector<PendingCopy> copies;
  std::uint64_t last_reply_to = 0;
};

/// 4 layers in 2 groups of 2, 4 tokens a block, 64 B a token and layer: slots of 512 B.
inline ModelClass small_model() { return {4, 2, 4, Bytes(64)}; }

inline Controller::Config small_pool(std::uint32_t hbm_slabs = 4, std::uint32_t dram_slabs = 64,
                                     std::uint32_t devices = 1) {
  Controller::Config config;
  config.hbm.assign(devices, {Tier::kHbm, Bytes(4096), hbm_slabs});
  config.dram = {Tier::kDram, Bytes(4096), dram_slabs};
  config.tuning.rotation.b_xfer = Bytes(8192);
  return config;
}

/// Steps until every request of every live engine is done; false when that takes too long.
inline bool run_to_end(World& world, int limit = 20000) {
  for (int i = 0; i < limit; ++i) {
    bool open = false;
    std::vector<EngineId> ids;
    for (auto& [id, engine] : world.engines) {
      if (engine.alive && engine.shape.layers > 0) ids.push_back(id);
      open |= engine.alive && !engine.requests.empty();
    }
    if (!open) return true;
    for (const EngineId id : ids) {
      world.pass(std::chrono::milliseconds(10));
      world.run_and_step(id);
    }
    world.finish_copies();
  }
  return false;
}

}  // namespace kvd::test
