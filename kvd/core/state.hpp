#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/vocabulary/deposit.hpp"
#include "kvd/core/controller.hpp"
#include "kvd/core/inputs.hpp"
#include "kvd/store/blocks.hpp"
#include "kvd/store/orders.hpp"
#include "kvd/store/staging.hpp"
#include "kvd/store/tiers.hpp"
#include "kvd/store/transfers.hpp"
#include "planner/model/fitted_line.hpp"
#include "planner/policy/admission.hpp"
#include "planner/policy/catalogue.hpp"
#include "planner/policy/length_predictor.hpp"
#include "planner/policy/placement.hpp"
#include "planner/policy/rotation.hpp"

/// The Controller's inside: records and the steps it is made of. Included by kvd/core only.
namespace kvd::core {

/// What a victim on another engine is to give. kForBytes: any bytes will do, so the promise ends
/// when as many are free elsewhere. kForSlots: only its own slots will do, because they stand in a
/// slab that has to change class, or a running request starves for them.
enum class Promise : std::uint8_t { kForBytes, kForSlots };

/// What an answer about a request's layers was worked out from; while it is the same, so is the
/// answer.
struct LayersSeen {
  std::uint64_t table = 0;    ///< store::BlockTable::changes
  std::uint64_t staging = 0;  ///< store::Staging::changes
  std::uint32_t sealed = 0;
  bool paused = false;
  bool fetching = false;
  std::vector<bool> away;
  friend bool operator==(const LayersSeen&, const LayersSeen&) = default;
};
/// An answer, and what it was worked out from.
template <class T>
struct Remembered {
  std::optional<LayersSeen> seen;
  T answer{};
};

/// Of one request.
struct LayerAnswers {
  Remembered<RowSlots> row;                              ///< of a published table
  Remembered<std::vector<StreamLayers::Fetch>> fetches;  ///< of an iteration; `after` is not set
  Remembered<std::int64_t> spare;                        ///< copies in DRAM it can do without
  std::optional<LayersSeen> evicted, fetched, staged;    ///< nothing was left to do
};

/// A request between submit and finish.
///
/// Any block may be in HBM, in DRAM or in both, whatever the state, but for two rules: a rotary one
/// has nothing in HBM, and blocks that are not full are in HBM while it runs. Blocks that are
/// missing in HBM when it runs are streamed through `staging`. `tokens` is what the engine has
/// reported as complete, `planned` adds what the last granted iteration will append: with a
/// pipelined engine the two differ by the iteration that is still running.
struct Request {
  RequestKey key;
  Tokens prompt;
  Tokens max_new;
  Slo slo;
  std::optional<PredictedLength> predicted;
  RequestState state = RequestState::kWaiting;

  Tokens tokens;
  Tokens planned;
  std::uint64_t last_iteration = 0;  ///< the last one it was granted in
  Tokens granted;                    ///< tokens of that grant

  store::BlockTable table;
  std::uint32_t sealed = 0;  ///< so many leading blocks are sealed
  std::uint32_t synced = 0;  ///< so many leading blocks are in DRAM, or on their way there

  // Layer streaming (layers.cpp).
  std::vector<bool> away;      ///< layer groups whose full blocks shall be in DRAM; empty: none
  std::uint32_t distance = 0;  ///< k, where `away` follows one
  store::Staging staging;
  LayerAnswers known;
  std::uint64_t staging_free = 0;  ///< layer_mark from which on staging may be overwritten
  std::uint64_t streamed_in = 0;   ///< the last iteration that streams some of it
  std::vector<Ticket> streams;     ///< live ones with fetches of it
  bool paused = false;             ///< by the placement policy: keeps its seat, does not run
  bool layerwise = false;          ///< prefills chunk by chunk into DRAM, and leaves then

  TimePoint arrived{0};
  TimePoint last_token{0};  ///< valid once a token was made
  bool has_token = false;
  std::optional<TokenDeposit<Nanoseconds>> deposit;  ///< from the first token on
  TimePoint run_since{0};
  TimePoint out_since{0};    ///< valid once it was rotated out
  TimePoint first_token{0};  ///< valid once a token was made
  double vlt_s = 0;
  std::uint32_t skips = 0;
  std::uint64_t rotations = 0;

  std::uint64_t pause_order = 0;  ///< of those paused
  std::uint64_t claim = 0;        ///< order of its claim on memory; 0: none
  bool awaits_mapping = false;    ///< its claim waits for a slab acknowledgement
  bool starved = false;           ///< runs, but has no block for its next token or for staging
  bool promised = false;          ///< victim of another's need, until its engine's next step
  Promise promise = Promise::kForBytes;
  bool leaving = false;     ///< victim whose running iteration has not finished yet
  bool held_back = false;   ///< waits: the admission policy would not have it prefill now
  bool in_line = false;     ///< listed among those that wait (queues.cpp)
  bool hopeless = false;    ///< ends at its engine's next step, for want of memory
  bool forced_out = false;  ///< by a rotate command, until one brings it back
  bool fresh = false;       ///< came in or could not leave, no token made since: not a victim
  Ticket in_ticket;         ///< the swap-in the engine has to wait for at its next run
  Ticket copy;              ///< the rotation under way; at most one
  Ticket sync;              ///< the background copy to DRAM under way; at most one
  Ticket fetch;             ///< the fetch of layers that shall stay under way; at most one

  [[nodiscard]] std::int64_t hbm_slots() const { return table.in(Tier::kHbm) + staging.count(); }
  [[nodiscard]] std::int64_t dram_slots() const { return table.in(Tier::kDram); }
  [[nodiscard]] bool holds_hbm() const { return hbm_slots() > 0; }
  [[nodiscard]] LayersSeen layers_seen() const {
    return {table.changes(), staging.changes(), sealed, paused, static_cast<bool>(fetch), away};
  }
  [[nodiscard]] bool runs() const {
    return state == RequestState::kPrefill || state == RequestState::kRunning;
  }
  /// What it must have room for in order to run: one token more than it has, so that what comes in
  /// can always make one; never more than it asked for.
  [[nodiscard]] Tokens room_to_run() const {
    const bool has_prompt = state != RequestState::kWaiting && state != RequestState::kPrefill;
    const Tokens present = has_prompt ? tokens : prompt;
    return std::min(present + Tokens(1), prompt + max_new);
  }
  /// Tokens of the answer made so far.
  [[nodiscard]] Tokens answer() const;
  /// Wants HBM and has no claim on it yet.
  [[nodiscard]] bool queues() const {
    return (state == RequestState::kWaiting || state == RequestState::kRotary) && claim == 0 &&
           !forced_out && !paused;
  }
};

/// In the order in which they came.
struct ByArrival {
  bool operator()(const Request* a, const Request* b) const {
    return a->arrived != b->arrived ? a->arrived < b->arrived : a->key < b->key;
  }
};
using Line = std::set<Request*, ByArrival>;
struct ByKey {
  bool operator()(const Request* a, const Request* b) const { return a->key < b->key; }
};

/// What an event must find of a domain without walking all its requests; kept at each change.
struct Domain {
  Line line;  ///< requests that wait: without memory, without a claim on any
  std::map<std::uint64_t, Request*> claims;  ///< in the order in which they are served
  std::size_t requests = 0;
};

struct Region {
  RegionId id;
  std::vector<SlabIndex> slabs;
};
/// A region that could not be had for want of memory.
struct RefusedRegion {
  TimePoint at{0};
  Bytes bytes;
};

/// Which layers of a session's requests stay: the plan in force, and the one being made.
struct LayerPlan {
  std::uint64_t number = 0;  ///< of the last problem given to the solver
  bool asked = false;        ///< its answer is awaited
  std::string policy;        ///< that was asked
  std::string adopted;       ///< that made the plan in force
  std::vector<RequestKey> asked_for;
  std::optional<RequestKey> resuming;  ///< the paused one among them

  std::vector<RequestKey> batch;  ///< of the plan in force; empty: none
  std::int64_t steps_left = 0;
  double step_s = 0;      ///< predicted
  double stall_s = 0;     ///< of it, waiting for layers
  bool mismatch = false;  ///< steps take another time than predicted
  double gap = 0;         ///< between the plan's step time and its proved lower bound, relative
  bool ended_since_pause = false;
};

/// A `place` command that waits for the solver.
struct PendingPlace {
  ReplyTo reply_to;
  std::string policy;
  PlacementInput input;
};

/// What a tensor-parallel group has been told to do next: decided for the first rank that asks,
/// kept until all ranks took it. A rank may ask for the next answer before the others took this one
/// (with a pipelined engine it does); it waits then.
struct RankAnswer {
  std::uint64_t finished = 0, running = 0;  ///< the iterations named by whoever asked
  StepReply reply;
  std::vector<bool> taken;  ///< by rank
};
struct Ranks {
  std::vector<std::uint64_t> finished;  ///< by rank: the last iteration it says it has finished
  std::optional<RankAnswer> answer;     ///< none before the first step
  std::optional<RankAnswer> previous;   ///< the one before, for a rank whose reply was lost
  std::vector<Command> ahead;           ///< steps that wait for the others, in order of arrival
};

/// Somebody of a domain wants memory, nobody runs, and nothing is under way.
struct Standstill {
  TimePoint since{0};
  bool told = false;
};

/// Blocks of a session's requests that are copied to DRAM before they have to leave.
struct CopiesAhead {
  std::set<Request*, ByKey> wanting;  ///< those with a sealed block that DRAM may lack
  Bytes under_way;
  bool short_of_dram = false;  ///< layers that shall leave found no room there
};

/// An engine's session: of one process, or of all ranks of a tensor-parallel group.
struct Session {
  EngineId id;
  Attach info;
  Generation generation;
  ClassId class_id;  ///< none: level 1
  ModelClass shape;
  bool dying = false;
  bool parting = false;  ///< dying by the goodbye of a rank; the others are still to follow
  bool responsive = true;

  std::uint64_t iteration = 0;  ///< last granted
  std::uint64_t finished = 0;   ///< last the engine, with all its ranks, reported as finished
  std::uint64_t reported = 0;   ///< last whose tokens are counted; of ranks, the first to say so
  std::optional<Ranks> ranks;   ///< of a tensor-parallel group
  std::uint64_t table_version = 0;
  bool stepping = false;  ///< its last step reply had something to run
  TimePoint last_step{0};
  Tokens granted_prefill;   ///< prompt tokens of the last granted iteration
  Tokens reported_prefill;  ///< prompt tokens of the last reported one
  LayerPlan plan;
  std::optional<PendingPlace> place;
  bool streaming = false;  ///< its layers may stream: a placement policy decides (as of its step)
  CopiesAhead ahead;
  bool crowded = false;  ///< a prompt that comes in chunk by chunk found no room
  /// Compute time of an iteration without prefill, over the tokens of its batch. Slow to forget: a
  /// batch's tokens change by little from step to step.
  planner::FittedLine compute{0.998};
  planner::FittedLine prefill{0.97};  ///< iteration time over its prompt tokens
  double decode_s = 0;                ///< mean time of an iteration without prefill; 0: not yet
  double prefill_token_s = 0;         ///< what a prompt token adds to one; 0: not yet
  std::optional<Tokens> chunk;        ///< prompt tokens an iteration may have; none: any number
  planner::LengthPredictor lengths;   ///< of its answers
  TimePoint last_beat{0};

  std::vector<Request*> active;     ///< its requests, by id
  std::vector<Request*> inside;     ///< of these, all that do not wait in line
  Line line;                        ///< the others
  std::vector<RequestId> given_up;  ///< ended by us; the next reply says so

  std::map<RegionId, Region> regions;
  std::optional<RefusedRegion> refused;    ///< the last one
  std::optional<TimePoint> awaited_since;  ///< silent, and others wait for what it holds

  std::uint64_t steps = 0, rotations_in = 0, rotations_out = 0, tokens = 0;

  [[nodiscard]] std::uint32_t groups() const { return shape.groups(); }
  [[nodiscard]] store::Taker taker() const {
    return {class_id, info.domain, id, shape.slot_bytes()};
  }
  [[nodiscard]] std::int64_t blocks_for(Tokens count) const {
    return pieces(count, Tokens(shape.block_tokens));
  }
  [[nodiscard]] Bytes bytes_for(Tokens count) const {
    return shape.slot_bytes() * (blocks_for(count) * groups());
  }
};

/// A region command that waits for slabs to be scrubbed, or for requests to make way.
struct PendingRegion {
  EngineId engine;
  ReplyTo reply_to;
  TimePoint deadline;
  Bytes bytes;
};

/// Below three groups, staging and open blocks take what streaming would save.
inline constexpr std::uint32_t kLeastGroups = 3;
/// One part in so many of HBM is kept for prompts that prefill layer by layer. Source: LayerKV's
/// threshold of free blocks (its number is not published; ours).
inline constexpr std::int64_t kLayerwiseShare = 20;

struct Controller::State {
  State(Config configuration);

  Config config;
  Tuning tuning;
  std::unique_ptr<planner::RotationPolicy> rotation;
  std::unique_ptr<planner::AdmissionPolicy> admission;
  std::unique_ptr<planner::PlacementPolicy> placement;  ///< asked for its traits; the shell decides
  store::Orders orders;
  store::Tiers tiers;
  store::Blocks blocks;
  store::Transfers transfers;
  const pool::TierPool& hbm;  ///< of tiers, to read
  const pool::TierPool& dram;

  std::map<EngineId, Session> sessions;
  std::map<RequestKey, Request> requests;  ///< ordered, so that every walk is deterministic
  std::map<DomainId, Domain> domains;      ///< those that have requests
  std::map<ModelClass, ClassId> classes;
  std::deque<PendingRegion> pending_regions;  ///< served in this order within a domain
  std::set<DomainId> yielding;                ///< domains that have slabs retire for a region
  std::map<DomainId, Standstill> still;
  Counters counters;

  /// The last one given out of each kind.
  struct {
    std::uint32_t engine = 0, model_class = 0;
    std::uint64_t generation = 0, region = 0, claim = 0, pause = 0;
  } last;

  double link_rate[2] = {0, 0};
  double mean_step_s = 0;
  double mean_absence_s = 0;  ///< of requests that were rotated out and came back
  TimePoint bucket_filled{0};
  double bucket_bytes = 0;

  TimePoint now{0};
  std::vector<Effect>* effects = nullptr;  ///< of the event in hand

  // ---- small tools (state.cpp) ----
  template <class E>
  void emit(E effect) {
    pass_on_orders();
    effects->emplace_back(std::move(effect));
  }
  /// What the store has ordered meanwhile comes first.
  void pass_on_orders();
  void note(Note::Level level, EngineId engine, std::string text);
  void reply(const Command& command, decltype(Reply::body) body);
  void refuse(const Command& command, ErrorCode code, std::string message);
  [[nodiscard]] Request* find(EngineId engine, RequestId request);
  [[nodiscard]] Session& session_of(const Request& request) {
    return sessions.at(request.key.engine);
  }
  /// In order of their ids. `visit` neither adds nor removes any.
  template <class F>
  void each_request_of(EngineId engine, F visit);
  template <class F>
  void each_request_in(DomainId domain, F visit);
  /// The same without those that wait in line, which hold nothing.
  template <class F>
  void each_inside_of(EngineId engine, F visit);
  template <class F>
  void each_inside_in(DomainId domain, F visit);
  /// Of its blocks and its staging.
  template <class F>
  void each_hbm_slot(const Request& request, F visit) const;
  [[nodiscard]] Bytes hbm_bytes(const Request& request) const;
  [[nodiscard]] Bytes need_bytes(const Request& request) const;  ///< HBM it needs to run
  /// Tokens of one request of the session that HBM holds with everything else out of the way.
  [[nodiscard]] Tokens most_tokens(const Session& session) const;
  /// Slots of the session's class that its domain can come to have in the tier.
  [[nodiscard]] static std::int64_t most_slots(const pool::TierPool& tier, const Session& session);

  // ---- who waits, who has a claim (queues.cpp) ----
  void enlist(Request& request);   ///< a new one
  void delist(Request& request);   ///< one that ends
  void requeue(Request& request);  ///< after its state or claim has changed
  void make_claim(Request& request);
  void drop_claim(Request& request);
  [[nodiscard]] std::size_t requests_of(DomainId domain) const;
  [[nodiscard]] std::string validate_queues() const;

  // ---- commands (commands.cpp) ----
  void on_command(const Command& command);
  void on_submit(const Command& command, const Submit& submit);
  void on_rotate(const Command& command, const Rotate& rotate);
  void on_blocks(const Command& command, const AllocateBlocks& wanted);
  void on_stats(const Command& command);
  /// Which silent engine of the domain holds blocks, and what to do about it; empty: none.
  [[nodiscard]] std::string silent_holder(DomainId domain);

  // ---- regions (regions.cpp) ----
  void on_region(const Command& command, const AllocateRegion& region);
  void on_release_region(const Command& command, const ReleaseRegion& release);
  [[nodiscard]] bool grant_region(const PendingRegion& pending);
  [[nodiscard]] bool make_way(const PendingRegion& pending);
  [[nodiscard]] std::vector<SlabIndex> emptiest_slabs(DomainId domain);
  void serve_regions();
  void end_yielding(const std::set<DomainId>& still_waiting);
  void expire_regions();
  [[nodiscard]] std::string obstacle(const PendingRegion& pending);
  void drop_regions(EngineId engine);
  /// Rotates out, as far as they may leave now, the requests with blocks in retiring slabs.
  void yield_to_regions(DomainId domain, EngineId caller);
  [[nodiscard]] bool in_retiring_slab(const Request& request) const;

  // ---- the step (step.cpp) ----
  void on_step(const Command& command, const Step& step);
  /// Takes what the engine did and decides what it does next.
  [[nodiscard]] Result<StepReply> next_step(Session& session, const Step& step);
  [[nodiscard]] Status check_step(const Session& session, const Step& step);
  void take_reports(Session& session, const Step& step);
  void take_report(Session& session, Request& request, const StepReport& report);
  void count_deposit(Request& request, Tokens made);
  [[nodiscard]] StepReply build_reply(Session& session);
  [[nodiscard]] static Tokens prefill_tokens(const Session& session, const Request& request);
  [[nodiscard]] TableRow table_row(const Session& session, Request& request) const;
  [[nodiscard]] std::vector<SlotId> row_slots(const Request& request) const;
  [[nodiscard]] static Hold hold_reason(const Request& request, bool promises);

  // ---- what the policies know (knowledge.cpp) ----
  void note_end(Session& session, const Request& request);
  void note_return(const Request& request);
  [[nodiscard]] planner::LengthEstimate expected_length(const Request& request) const;
  [[nodiscard]] std::int64_t saved_up(Request& request);  ///< its deposit now
  void measure_step(Session& session, double took);
  void measure_plan(Session& session, double took);

  // ---- who may prefill (admission.cpp) ----
  void admit(Session& session);
  [[nodiscard]] AdmissionInput admission_input(Session& session);
  [[nodiscard]] planner::PrefillCosts prefill_costs(const Session& session) const;
  [[nodiscard]] double link_or_default() const;  ///< bytes a second, the slower direction
  [[nodiscard]] double fetch_rate() const;       ///< bytes a second into HBM

  // ---- which layers stay (placement.cpp) ----
  [[nodiscard]] bool layers_may_stream(const Session& session) const;
  [[nodiscard]] bool layers_stream(const Session& session) const;
  /// HBM it needs to run with all its layers streamed.
  [[nodiscard]] Bytes streamed_bytes(const Request& request) const;
  [[nodiscard]] Bytes yieldable(DomainId domain);
  void plan_layers(Session& session);
  [[nodiscard]] std::vector<RequestKey> batch_of(Session& session);
  void ask_plan(Session& session, const std::string& policy);
  void on_plan(const PlanReady& ready);
  void adopt_plan(Session& session, const planner::PlacementDecision& decision);
  void pause(Session& session, Request& request);
  void evict_paused(Session& session, const planner::PlacementDecision& decision, Blocks have);
  void forget_plan(Session& session);
  void on_place(const Command& command, const Place& place);
  void answer_place(Session& session, const Result<planner::PlacementDecision>& decision);
  [[nodiscard]] PlacementInput placement_input(Session& session,
                                               const std::vector<RequestKey>& keys);
  [[nodiscard]] static std::vector<std::int32_t> offloaded_layers(const Request& request);
  [[nodiscard]] planner::PlacementConfig placement_config() const;

  // ---- who runs (rotation.cpp) ----
  void decide(Session& caller);
  /// The waiting requests that may come in without promising more than HBM and DRAM hold together.
  [[nodiscard]] std::vector<Request*> admissible(DomainId domain);
  [[nodiscard]] planner::RotationRequest as_rotation(Request& request);
  [[nodiscard]] planner::RotationConfig rotation_config() const;
  /// `index` gets the request behind each entry.
  [[nodiscard]] planner::RotationSnapshot rotation_snapshot(DomainId domain,
                                                            std::vector<Request*>& index);
  [[nodiscard]] bool stands_still(DomainId domain);
  void renew_for_queue(DomainId domain);
  void bring_in_head(Session& caller);
  void prefill_layerwise(Session& caller, const planner::RotationDecision& decision,
                         const std::vector<Request*>& index);
  [[nodiscard]] bool prefills_layerwise(const Session& session) const;
  [[nodiscard]] Bytes layerwise_reserve(DomainId domain);
  [[nodiscard]] Bytes hbm_limit(DomainId domain) const;  ///< what the domain may have at most
  [[nodiscard]] Bytes dram_limit(DomainId domain) const;
  void carry_out(Session& caller, const planner::RotationDecision& decision,
                 const std::vector<Request*>& index);
  [[nodiscard]] Bytes supply(DomainId domain);  ///< free HBM that nobody has a claim on yet
  /// HBM that victims will give back to requests: nothing of slabs that retire for a region.
  [[nodiscard]] Bytes incoming(DomainId domain);
  [[nodiscard]] Bytes kept(const Request& request) const;  ///< of its HBM, in retiring slabs
  [[nodiscard]] Bytes claimed(DomainId domain);
  void expire_promises(DomainId domain);
  void acknowledge_promises(Session& session);
  void preempt(Request& request, EngineId caller, Promise why);
  [[nodiscard]] Bytes transfer_budget() const;
  void refill_bucket();

  // ---- when nobody gets on (standstill.cpp) ----
  void watch_standstills();
  [[nodiscard]] bool is_stuck(DomainId domain);
  void tell_standstill(DomainId domain, const Standstill& standstill);
  void give_up_latest(DomainId domain);
  void end_given_up(Session& session);

  // ---- layers that come and go (layers.cpp) ----
  [[nodiscard]] std::uint32_t full_blocks(const Request& request) const;
  [[nodiscard]] static bool complete(const Request& request);
  void sync_blocks(Session& session);
  [[nodiscard]] bool short_of_dram(DomainId domain) const;
  [[nodiscard]] Bytes sync_request(Session& session, Request& request, bool away_only,
                                   Bytes budget);
  void install_layers(Session& session);
  void evict_layers(Session& session, Request& request);
  void fetch_layers(Session& session, Request& request);
  [[nodiscard]] bool stage(Session& session, Request& request);
  void release_staging(Request& request);
  void add_fetches(Request& request, std::uint64_t iteration, StreamLayers& stream) const;
  [[nodiscard]] std::vector<StreamLayers::Fetch> fetches_of(const Request& request) const;
  void start_stream(Session& session, StreamLayers stream, const std::vector<Request*>& streamed);
  void end_streams(Session& session);
  void finish_stream(Ticket ticket, const store::Stream& stream);
  [[nodiscard]] Bytes spare_dram(DomainId domain);  ///< free, or a copy of what HBM has
  [[nodiscard]] bool dram_takes(Request& request);  ///< what of it is in HBM alone
  [[nodiscard]] std::int64_t spare_copies(Request& request) const;
  [[nodiscard]] std::vector<std::uint32_t> spare_places(const Request& request) const;
  void drop_copies(DomainId domain, Bytes needed);

  // ---- memory of requests (memory.cpp) ----
  void serve_claims(DomainId domain);
  [[nodiscard]] ErrorCode serve_claim(Request& request);
  [[nodiscard]] ErrorCode grow(Request& request, Tokens tokens);
  [[nodiscard]] ErrorCode grow_prefill(Request& request);
  [[nodiscard]] ErrorCode grow_next(Request& request);
  void feed_starved(Session& session);
  void grow_running(Session& session);
  bool relieve_class_pressure(const Request& request);
  void release_unwritten(Session& session, Request& request);
  void swap_out(Request& request);
  [[nodiscard]] ErrorCode swap_in(Request& request);
  void start_leaving(Session& session);
  void seal_full_blocks(Request& request);
  void remove(Request& request);

  // ---- copies that ended (copies.cpp) ----
  void on_copy(const CopyFinished& finished);
  void finish(const store::Transfer& transfer, bool ok);
  void finish_out(Request& request, const store::Transfer& transfer, bool ok);
  void finish_in(Request& request, const store::Transfer& transfer, bool ok);
  void finish_sync(Request& request, const store::Transfer& transfer, bool ok);
  void finish_fetch(Request& request);
  void measure_link(Tier to, const CopyFinished& finished);
  [[nodiscard]] Ticket start(const Session& session, const Request& request, store::Purpose purpose,
                             std::vector<std::uint32_t> places);
  /// Gives up HBM slots of the request that no copy touches.
  void release_slots(const Request& request, std::vector<SlotId> hbm_slots);
  [[nodiscard]] store::Hold hold_for(const Request& request) const;
  void abandon(Request& request, Ticket transfer);
  void on_slab_renewed(SlabIndex slab);
  void serve_everyone();
  [[nodiscard]] pool::SlotGrant take_dram(const Session& session, std::uint32_t count);

  // ---- tensor-parallel groups (ranks.cpp) ----
  void on_rank_step(const Command& command, const Step& step);
  [[nodiscard]] Status check_rank_step(const Session& session, std::uint32_t rank,
                                       const Step& step) const;
  void take_answer(Session& session, const Command& command);
  void note_finished(Session& session, std::uint32_t rank, std::uint64_t iteration);
  void serve_ahead(Session& session);
  void expire_ahead(Session& session);
  void refuse_ahead(const Session& session, const Command& command);

  // ---- sessions (sessions.cpp) ----
  [[nodiscard]] Result<AttachGrant> attach(const Attach& attach);
  [[nodiscard]] Result<ClassId> class_for(const ModelClass& shape);
  /// Forgets the classes that no session, and no slab of either tier, has any more.
  void forget_classes();
  void on_detach(EngineId engine);
  void on_dying(EngineId engine, bool parting);
  void on_dead(EngineId engine);
  void on_tick();
  void on_beat(EngineId engine);
  void on_slab_mapped(EngineId engine, SlabIndex slab);
  void on_slab_unmapped(EngineId engine, SlabIndex slab);
  void on_slab_unsent(const SlabUnsent& unsent);
  void drop_claims(Session& session);
  void check_responsive(Session& session);

  // ---- silent engines that others wait for (eviction.cpp) ----
  [[nodiscard]] Bytes held_hbm(const Session& session) const;
  [[nodiscard]] std::optional<Bytes> unmet_need(const Session& session);
  [[nodiscard]] bool would_help(DomainId holder, DomainId waiting, Bytes need) const;
  [[nodiscard]] bool is_awaited(const Session& holder);
  void evict_silent(Session& session);

  void retune(const Tuning& tuning);
  void requota(const Requota& wanted);

  // ---- what others may see (status.cpp) ----
  void add_inputs(ControllerStatus& out);
  [[nodiscard]] EngineStatus engine_status(const Session& session) const;
  [[nodiscard]] RequestStatus request_status(const Request& request) const;
  [[nodiscard]] PlanStatus plan_status(const Session& session) const;
  [[nodiscard]] Bytes region_bytes(const Session& session) const;

  [[nodiscard]] std::string validate() const;
  [[nodiscard]] std::string validate(const Request& request) const;
};

template <class F>
void Controller::State::each_request_of(EngineId engine, F visit) {
  const auto session = sessions.find(engine);
  if (session == sessions.end()) return;
  for (Request* request : session->second.active) visit(*request);
}

template <class F>
void Controller::State::each_request_in(DomainId domain, F visit) {
  for (auto& [id, session] : sessions) {
    if (session.info.domain != domain) continue;
    for (Request* request : session.active) visit(*request);
  }
}

template <class F>
void Controller::State::each_inside_of(EngineId engine, F visit) {
  const auto session = sessions.find(engine);
  if (session == sessions.end()) return;
  for (Request* request : session->second.inside) visit(*request);
}

template <class F>
void Controller::State::each_inside_in(DomainId domain, F visit) {
  for (auto& [id, session] : sessions) {
    if (session.info.domain != domain) continue;
    for (Request* request : session.inside) visit(*request);
  }
}

template <class F>
void Controller::State::each_hbm_slot(const Request& request, F visit) const {
  blocks.each_slot(request.table, Tier::kHbm, visit);
  for (const SlotId slot : request.staging.slots()) {
    if (!slot.none()) visit(slot);
  }
}

}  // namespace kvd::core
