#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvd/core/controller.hpp"
#include "kvd/core/inputs.hpp"
#include "kvd/core/request.hpp"
#include "kvd/core/session.hpp"
#include "kvd/store/blocks.hpp"
#include "kvd/store/orders.hpp"
#include "kvd/store/tiers.hpp"
#include "kvd/store/transfers.hpp"
#include "planner/policy/admission.hpp"
#include "planner/policy/catalogue.hpp"
#include "planner/policy/placement.hpp"
#include "planner/policy/rotation.hpp"

/// The Controller's inside: the steps it is made of. Included by kvd/core only.
namespace kvd::core {

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
