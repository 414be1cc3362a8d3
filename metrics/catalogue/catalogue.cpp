#include "metrics/catalogue/catalogue.hpp"

#include <algorithm>

namespace kvd::metrics {
namespace {

using Text = std::string_view;

constexpr double kWaitBounds[] = {0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};
constexpr double kTbtBounds[] = {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30};
constexpr double kVltBounds[] = {0, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60};
constexpr double kRunBounds[] = {65536,   131072,  262144,  524288,   1048576,
                                 2097152, 4194304, 8388608, 16777216, 67108864};
constexpr double kSolveBounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1};
constexpr double kDepositBounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};

constexpr double kScheduleBounds[] = {0.00001, 0.00002, 0.00005, 0.0001, 0.0002,
                                      0.0005,  0.001,   0.002,   0.01};

constexpr Text kTierNames[] = {"hbm", "dram"};
constexpr Text kCacheNames[] = {"hbm", "dram", "disk"};
constexpr Text kDiskWayNames[] = {"load", "store"};
constexpr Text kDiskStateNames[] = {"opening", "open", "closing", "closed", "refused"};
constexpr Text kDirectionNames[] = {"h2d", "d2h"};
constexpr Text kWayNames[] = {"in", "out"};
constexpr Text kSlotStateNames[] = {"free",     "filling",     "open",     "sealed",
                                    "draining", "quarantined", "scrubbing"};
constexpr Text kSlabUseNames[] = {"clean",  "dirty",       "scrubbing", "class",
                                  "region", "quarantined", "renewing",  "missing"};
constexpr Text kRequestStateNames[] = {"waiting",      "prefill", "running",
                                       "swapping_out", "rotary",  "swapping_in"};
constexpr Text kReasonNames[] = {"dram", "growth", "promise"};
constexpr Text kLogLossNames[] = {"overrun", "repeated"};
constexpr Text kGoalNames[] = {"ttft", "tbt"};
constexpr Text kAllGoalNames[] = {"ttft", "tbt", "tpot", "gap"};
constexpr Text kOutcomeNames[] = {"met", "missed"};
constexpr Text kPlanNames[] = {"feasible", "infeasible", "failed", "replaced"};
constexpr Text kDecisionNames[] = {"rotation", "placement", "admission", "load"};

constexpr Text kSourceNames[] = {"hbm", "dram", "computed"};

constexpr Label kTier{"tier", kTierNames};
constexpr Label kCache{"tier", kCacheNames};
constexpr Text kKeptFaultNames[] = {"torn", "altered", "misfit", "domain", "parent"};
constexpr Label kKeptFault{"reason", kKeptFaultNames};
constexpr Label kDiskWay{"direction", kDiskWayNames};
constexpr Label kDiskState{"state", kDiskStateNames};
constexpr Label kSource{"source", kSourceNames};
constexpr Label kDirection{"direction", kDirectionNames};
constexpr Label kWay{"direction", kWayNames};
constexpr Label kSlotState{"state", kSlotStateNames};
constexpr Label kSlabUse{"use", kSlabUseNames};
constexpr Label kRequestState{"state", kRequestStateNames};
constexpr Label kReason{"reason", kReasonNames};
constexpr Label kLogLoss{"reason", kLogLossNames};
constexpr Label kGoal{"goal", kGoalNames};
constexpr Label kAllGoals{"goal", kAllGoalNames};
constexpr Label kOutcome{"outcome", kOutcomeNames};
constexpr Label kPlan{"outcome", kPlanNames};
constexpr Label kDecision{"decision", kDecisionNames};
constexpr Text kAnswerNames[] = {"preempted", "admitted"};
constexpr Label kAnswer{"answer", kAnswerNames};
constexpr Label kEngine{"engine", {}};
constexpr Label kDomain{"domain", {}};
constexpr Label kDevice{"device", {}};
constexpr Label kServer{"server", {}};  ///< few: those of remote.servers
constexpr Label kClass{"class", {}};    ///< few an engine: core::ClassServices

constexpr Label kBackend{"backend", {}};
constexpr Label kKind{"kind", {}};
constexpr Label kName{"name", {}};
constexpr Label kParameter{"parameter", {}};
constexpr Label kPolicy{"policy", {}};
constexpr Label kUuid{"uuid", {}};
constexpr Label kVersion{"version", {}};

// The labels come last, since some metrics have none and others several.
constexpr Metric counter(Text name, Text unit, Text panel, Text help, auto... labels) {
  return {name, MetricType::kCounter, unit, {{labels...}}, help, panel};
}
constexpr Metric gauge(Text name, Text unit, Text panel, Text help, auto... labels) {
  return {name, MetricType::kGauge, unit, {{labels...}}, help, panel};
}
constexpr Metric histogram(Text name, Text unit, Text panel, std::span<const double> bounds,
                           Text help, auto... labels) {
  return {name, MetricType::kHistogram, unit, {{labels...}}, help, panel, bounds};
}

constexpr Metric kCatalogue[] = {
    counter("kvd_admin_tokens_refused_total", "", "Errors",
            "Wrong tokens that were sent to the admin interface."),
    gauge("kvd_available_bytes", "bytes", "Memory",
          "Free bytes and cached ones: what is cached makes way.", kTier),
    counter("kvd_blocks_compacted_total", "", "Memory",
            "Blocks moved within DRAM, so that a slab became empty for another class."),
    counter("kvd_blocks_synced_total", "", "Rotation",
            "Full blocks copied to DRAM ahead, in the background, by eager rotation."),
    gauge("kvd_build_info", "", "Overview", "Always 1; which kvd runs, on which device backend.",
          kVersion, kBackend),
    gauge("kvd_cache_bytes", "bytes", "Prefixes",
          "Blocks kept for requests that begin with the same tokens: in HBM and DRAM those that no "
          "request names any more, on disk all.",
          kCache),
    counter("kvd_cache_evicted_bytes_total", "bytes", "Prefixes",
            "Bytes of such blocks that made way for others.", kTier),
    counter("kvd_cache_prefetched_bytes_total", "bytes", "Prefixes",
            "Bytes of blocks that came from disk or remote servers because an engine had said that "
            "it would ask for them."),
    gauge("kvd_cache_retained_bytes", "bytes", "Prefixes",
          "Blocks in DRAM that engines had retained or pinned, as an agent's while its tool runs."),
    counter("kvd_cache_retained_evicted_bytes_total", "bytes", "Prefixes",
            "Bytes of these that made way before their time, as nothing else was left to."),
    counter("kvd_commands_refused_total", "", "Errors",
            "Commands refused for their key, generation or sequence."),
    counter("kvd_compacted_bytes_total", "bytes", "Memory", "Bytes of those blocks."),
    counter("kvd_copies_total", "", "Copies", "Finished copy batches.", kDirection),
    counter("kvd_copy_busy_seconds_total", "seconds", "Copies", "Time a copy queue worked.",
            kDirection),
    counter("kvd_copy_bytes_total", "bytes", "Copies", "Bytes moved between the tiers.",
            kDirection),
    counter("kvd_copy_failures_total", "", "Errors", "Copy batches that failed."),
    histogram(
        "kvd_copy_run_bytes", "bytes", "Copies", kRunBounds,
        "How long the contiguous runs are into which copied slots merge; longer ones move faster.",
        kDirection),
    histogram("kvd_deposit_tokens", "", "Latency", kDepositBounds,
              "Tokens made and not yet due to the user, at each report of new ones."),
    counter("kvd_disk_blocks_total", "", "Prefixes",
            "Cached blocks, each of all layer groups, read from disk and written to it.", kDiskWay),
    counter("kvd_disk_bytes_total", "bytes", "Prefixes", "Bytes of those blocks.", kDiskWay),
    counter("kvd_disk_failures_total", "", "Errors",
            "Blocks that could not be read, and were computed again, or not be written.", kDiskWay),
    counter("kvd_disk_late_total", "", "Prefixes",
            "Reads from disk that requests no longer waited for."),
    gauge("kvd_disk_models", "", "Prefixes",
          "Models by the state of their files on disk: refused ones have none, though blocks are "
          "to be written (the log says why), closed ones wait for their engines.",
          kDiskState),
    counter("kvd_disk_refused_total", "", "Prefixes",
            "Blocks not written: the day's writes are spent, or every slot is in use."),
    gauge("kvd_draining", "", "Overview",
          "1 while the whole node is out of service (kvdctl drain node)."),
    gauge("kvd_engine_bytes", "bytes", "Engines", "Bytes an engine's requests hold in slots.",
          kEngine, kDomain, kTier),
    gauge("kvd_engine_draining", "", "Engines",
          "1 while the engine is out of service (kvdctl drain), by itself or with the node.",
          kEngine, kDomain),
    gauge("kvd_engine_oldest_wait_goals", "", "SLO attainment",
          "The most goals that a request has waited that waits now, for its first token or for its "
          "next one; above 1 the goal has passed.",
          kEngine, kDomain, kClass),
    gauge("kvd_engine_oldest_wait_seconds", "seconds", "SLO attainment",
          "How long a request has waited that waits now, for its first token or for its next one: "
          "the longest.",
          kEngine, kDomain, kClass),
    gauge("kvd_engine_orphaned_bytes", "bytes", "Engines",
          "Regions of an earlier daemon that the engine still maps.", kEngine, kDomain),
    gauge("kvd_engine_region_bytes", "bytes", "Engines", "Bytes leased to the engine as regions.",
          kEngine, kDomain),
    gauge("kvd_engine_requests", "", "Engines", "Live requests of the engine.", kEngine, kDomain),
    counter("kvd_engine_rotations_total", "", "Engines",
            "Requests of the engine rotated out of or into HBM.", kEngine, kDomain, kWay),
    counter("kvd_engine_slo_intervals_total", "", "SLO attainment",
            "First tokens (ttft) and token intervals (tbt) of the engine that met their goal, and "
            "goals that passed.",
            kEngine, kDomain, kClass, kGoal, kOutcome),
    counter("kvd_engine_steps_total", "", "Engines", "Steps the engine made.", kEngine, kDomain),
    histogram("kvd_engine_tbt_seconds", "seconds", "Latency", kTbtBounds,
              "Time between tokens of a request, where the second has come.", kEngine, kDomain,
              kClass),
    counter("kvd_engine_tokens_total", "", "Engines", "Tokens whose KV the engine reported.",
            kEngine, kDomain),
    histogram("kvd_engine_ttft_seconds", "seconds", "Latency", kWaitBounds,
              "Time from a request's arrival to its first token, where that has come.", kEngine,
              kDomain, kClass),
    gauge("kvd_engine_unresponsive", "", "Engines",
          "1 while the engine neither stepped nor beat in time.", kEngine, kDomain),
    gauge("kvd_engine_up", "", "Engines",
          "1 while the engine lives, 0 from its noticed death to its removal.", kEngine, kDomain),
    histogram("kvd_engine_wait_seconds", "seconds", "Latency", kWaitBounds,
              "Time from a request's arrival until it first runs, or leaves without.", kEngine,
              kDomain, kClass),
    gauge("kvd_engines", "", "Overview", "Attached engines."),
    counter("kvd_engines_attached_total", "", "Engines", "Engines that attached."),
    counter("kvd_engines_died_total", "", "Errors", "Engines gone without goodbye."),
    gauge("kvd_gpu_context_bytes", "bytes", "Memory",
          "Memory of the GPU that kvd takes besides the pool, at most; 0 on the host backend."),
    gauge("kvd_gpu_info", "", "Overview",
          "Always 1; the GPU whose memory the fast tier is. No series on the host backend.", kName,
          kUuid),
    gauge("kvd_kept_blocks", "", "Prefixes",
          "Cached blocks, each of all layer groups, that were taken over from the daemon before.",
          kTier),
    gauge("kvd_kept_bytes", "bytes", "Prefixes", "Bytes of those blocks.", kTier),
    gauge(
        "kvd_kept_dropped_blocks", "", "Prefixes",
        "Blocks that the daemon before had kept and that were of no use: written down half, their "
        "bytes altered, another configuration, no such domain, or the block before them gone.",
        kKeptFault),
    counter("kvd_layer_fetch_busy_seconds_total", "seconds", "Layer streaming",
            "Time the copy queue into HBM worked on streamed layers."),
    counter("kvd_layer_fetch_bytes_total", "bytes", "Layer streaming",
            "Bytes of streamed layers brought into HBM."),
    counter("kvd_layer_fetch_retries_total", "", "Errors",
            "Copies of streamed layers that failed and were tried again."),
    counter("kvd_layer_fetches_total", "", "Layer streaming",
            "Layer groups of requests brought into HBM while their iteration ran."),
    counter("kvd_layer_iterations_total", "", "Layer streaming",
            "Iterations of engines in which layers streamed."),
    counter("kvd_layerwise_prefills_total", "", "Layer streaming",
            "Prompts that prefilled into DRAM, layer by layer."),
    gauge("kvd_link_rate_bytes_per_second", "bytes_per_second", "Copies",
          "Measured rate of a device's link between the tiers; 0 until measured.", kDirection,
          kDevice),
    counter(
        "kvd_log_lines_lost_total", "", "Errors",
        "Lines missing from the log: nobody read it fast enough, or the same line came too often.",
        kLogLoss),
    gauge("kvd_orphaned_bytes", "bytes", "Memory",
          "Regions of an earlier daemon still mapped by engines; they count against the ceiling."),
    counter("kvd_pauses_total", "", "Layer streaming",
            "Requests paused so that the others meet their SLOs."),
    gauge("kvd_plan_gap_ratio", "ratio", "Layer streaming",
          "How much slower than the proved bound the last placement plan is, at most."),
    histogram("kvd_plan_solve_seconds", "seconds", "Layer streaming", kSolveBounds,
              "Time one placement plan took the solver."),
    counter("kvd_plans_total", "", "Layer streaming",
            "Placement problems by what came of them; replaced: given up for a newer one of the "
            "engine.",
            kPlan),
    gauge("kvd_policy_info", "", "Tuning", "Always 1; the policy in force for each decision.",
          kDecision, kPolicy),
    gauge("kvd_policy_parameter", "", "Tuning",
          "Weights of the policies in force, as /v1/policy shows them.", kDecision, kParameter),
    gauge("kvd_pool_capacity_bytes", "bytes", "Memory", "Size of the pool.", kTier, kDevice),
    gauge("kvd_pool_free_bytes", "bytes", "Memory", "Unassigned slabs and free slots.", kTier,
          kDevice),
    gauge("kvd_pool_missing_bytes", "bytes", "Memory",
          "Part of the pool that had no memory yet: made as it comes free.", kTier, kDevice),
    gauge("kvd_pool_page_info", "", "Memory",
          "Always 1; the pages behind a tier: hugetlb, thp, 4k or device.", kTier, kKind),
    gauge("kvd_pool_quarantined_bytes", "bytes", "Memory",
          "Memory of dead engines that may still be written.", kTier, kDevice),
    gauge("kvd_pool_region_bytes", "bytes", "Memory", "Leased to engines as whole slabs.", kTier,
          kDevice),
    gauge("kvd_pool_slabs", "", "Memory", "Slabs by use.", kTier, kSlabUse, kDevice),
    gauge("kvd_pool_slots", "", "Slots", "Slots by state.", kTier, kSlotState, kDevice),
    counter(
        "kvd_prefix_tokens_total", "", "Prefixes",
        "Prompt tokens of requests whose engine told what they are, by where their KV came from.",
        kSource),
    counter("kvd_promises_expired_total", "", "Rotation",
            "Promises that lapsed before their engine gave the memory up."),
    counter("kvd_promises_total", "", "Rotation", "Victims asked of another engine."),
    counter("kvd_region_granted_bytes_total", "bytes", "Memory", "Bytes leased as regions."),
    counter(
        "kvd_remote_blocks_total", "", "Remote",
        "Cached blocks, each of all layer groups, read from remote servers and written to them.",
        kDiskWay),
    counter("kvd_remote_bytes_total", "bytes", "Remote", "Bytes of those blocks.", kDiskWay),
    counter("kvd_remote_failures_total", "", "Remote",
            "Blocks that remote servers did not give although they were said to be there, or did "
            "not take.",
            kDiskWay),
    counter("kvd_remote_late_total", "", "Remote",
            "Reads from remote servers that requests no longer waited for."),
    counter("kvd_remote_refused_total", "", "Remote",
            "Blocks that made way in DRAM before remote.budget let them be written."),
    counter("kvd_remote_server_errors_total", "", "Remote",
            "Requests to the server that failed, and wrong values found there.", kServer),
    counter("kvd_remote_server_offs_total", "", "Remote",
            "How often kvd stopped asking the server because it failed or was late.", kServer),
    counter("kvd_remote_server_received_bytes_total", "bytes", "Remote",
            "Bytes that came from the server.", kServer),
    gauge("kvd_remote_server_round_trip_seconds", "seconds", "Remote",
          "Time that a small request takes, smoothed; 0 before the first.", kServer),
    counter("kvd_remote_server_sent_bytes_total", "bytes", "Remote",
            "Bytes that went to the server.", kServer),
    gauge("kvd_remote_server_up", "", "Remote",
          "1 while kvd asks the server; 0: it is off, and kvd tries it again by itself.", kServer),
    gauge("kvd_request_bytes", "bytes", "Memory",
          "Blocks that requests name; those that several share, once.", kTier),
    gauge("kvd_requests", "", "Requests", "Requests by state.", kRequestState),
    counter("kvd_requests_aborted_total", "", "Requests", "Requests given up by their engine."),
    counter("kvd_requests_drained_total", "", "Requests",
            "Requests that kvd ended because their engine was taken out of service."),
    counter("kvd_requests_finished_total", "", "Requests", "Requests that ended in order."),
    counter("kvd_requests_out_of_memory_total", "", "Requests",
            "Requests that kvd ended because nobody of their domain could go on."),
    counter("kvd_requests_submitted_total", "", "Requests", "Requests submitted."),
    counter("kvd_rotation_blocked_total", "", "Rotation",
            "Rotations that could not happen: no room in DRAM to leave to, no block to grow into, "
            "or, once for each step of the waiting engine, another engine has yet to give what it "
            "promised.",
            kReason),
    gauge("kvd_rotation_budget_bytes", "bytes", "Rotation",
          "Bytes a step may rotate over a device's link (b_xfer), as of the last decision.",
          kDevice),
    counter("kvd_rotations_forced_total", "", "Rotation", "Rotations asked for by command."),
    counter("kvd_rotations_total", "", "Rotation", "Requests rotated out of or into HBM.", kWay),
    counter("kvd_schedule_calls_total", "", "Engines that place",
            "Steps of engines that place their blocks themselves and asked who is to run."),
    counter("kvd_schedule_requests_total", "", "Engines that place",
            "Requests that such engines were told to preempt, or to admit.", kAnswer),
    histogram("kvd_schedule_seconds", "seconds", "Engines that place", kScheduleBounds,
              "Time in kvd from such a question to its answer."),
    counter("kvd_scrubbed_bytes_total", "bytes", "Memory", "Bytes zeroed before another use."),
    gauge("kvd_slab_retiring", "", "Memory", "Slabs that requests make way in for a region.", kTier,
          kDevice),
    gauge("kvd_slab_stranded_bytes", "bytes", "Memory",
          "Free slots in slabs that also hold used ones: other classes cannot have them.", kTier,
          kDevice),
    counter("kvd_slabs_renewed_total", "", "Memory",
            "Slabs that got new memory because they changed domain."),
    gauge("kvd_slo_goal_seconds", "seconds", "Tuning",
          "Latency goals in force, as /v1/slo shows them.", kClass, kAllGoals),
    counter(
        "kvd_slo_intervals_total", "", "SLO attainment",
        "First tokens (ttft) and token intervals (tbt) that met their goal, and goals that passed.",
        kGoal, kOutcome),
    counter("kvd_standstills_total", "", "Requests",
            "Times that requests of a domain waited for memory while nobody of it ran."),
    gauge("kvd_step_mean_seconds", "seconds", "Steps",
          "Mean time of an iteration of the engines on the device.", kDevice),
    counter("kvd_steps_total", "", "Steps", "Steps of all engines."),
    counter("kvd_tokens_total", "", "Steps", "Tokens whose KV was reported."),
    gauge("kvd_tuning_b_xfer_bytes", "bytes", "Tuning",
          "Configured rotation budget of a step; 0: auto."),
    gauge("kvd_uptime_seconds", "seconds", "Overview", "Time since the daemon started."),
    gauge("kvd_vlt_max_seconds", "seconds", "Rotation",
          "Largest virtual lag time of any request; 0 or less: nobody is late."),
    histogram("kvd_vlt_seconds", "seconds", "Latency", kVltBounds,
              "Lag of the requests in each decision; up to 0: in time."),
};

}  // namespace

std::span<const Metric> catalogue() { return kCatalogue; }

const Metric* find(std::string_view name) {
  const auto all = catalogue();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const Metric& m, Text wanted) { return m.name < wanted; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

}  // namespace kvd::metrics
