#include "kvd/daemon/service/metrics_mapping.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::daemon {
namespace {

using core::ControllerStatus;
using core::Counters;
using core::EngineStatus;
using core::RequestStatus;
using Labels = std::vector<std::string>;

constexpr std::size_t kMaxNameLength = 64;
constexpr std::array kDirectionNames = {"h2d", "d2h"};  // kernels::Direction order

class Samples {
 public:
  explicit Samples(std::vector<metrics::Sample>& out) : out_(out) {}

  void add(std::string_view metric, Labels labels, double value) {
    out_.push_back({metric, std::move(labels), value});
  }
  void add(std::string_view metric, Labels labels, std::uint64_t value) {
    add(metric, std::move(labels), static_cast<double>(value));
  }
  void add(std::string_view metric, Labels labels, Bytes value) {
    add(metric, std::move(labels), static_cast<double>(value.value));
  }
  void add(std::string_view metric, const core::Distribution& values) {
    add(metric, {}, values.counts, values.sum);
  }
  void add(std::string_view metric, Labels labels, std::vector<std::uint64_t> counts, double sum) {
    out_.push_back({metric, std::move(labels), sum, std::move(counts)});
  }
  void info(std::string_view metric, Labels labels) { add(metric, std::move(labels), 1.0); }

 private:
  std::vector<metrics::Sample>& out_;
};

void add_daemon(const admin::DaemonInfo& info, Samples& out) {
  out.info("kvd_build_info", {info.version, info.backend});
  out.add("kvd_uptime_seconds", {}, to_seconds(info.uptime));
  if (info.gpu) out.info("kvd_gpu_info", {info.gpu->name, info.gpu->uuid});
  out.add("kvd_gpu_context_bytes", {}, info.gpu ? info.gpu->context_bytes : Bytes(0));
  for (std::size_t t = 0; t < kTiers; ++t) {
    out.info("kvd_pool_page_info", {name(static_cast<Tier>(t)), info.page_kinds[t]});
  }
}

/// `device`: empty for DRAM, which is one.
void add_tier(Tier tier, const std::string& device, const pool::TierStats& stats, Samples& out) {
  const Labels labels = {name(tier), device};
  out.add("kvd_pool_capacity_bytes", labels, stats.capacity);
  out.add("kvd_pool_free_bytes", labels, stats.free);
  out.add("kvd_pool_missing_bytes", labels, stats.missing);
  out.add("kvd_pool_region_bytes", labels, stats.region);
  out.add("kvd_pool_quarantined_bytes", labels, stats.quarantined);
  out.add("kvd_slab_retiring", labels, std::uint64_t{stats.slabs_retiring});
  out.add("kvd_slab_stranded_bytes", labels, stats.stranded);
  for (std::size_t s = 0; s < stats.slots_by_state.size(); ++s) {
    const char* state = pool::name(static_cast<pool::SlotState>(s));
    out.add("kvd_pool_slots", {labels[0], state, device}, stats.slots_by_state[s]);
  }
}

void add_slabs(Tier tier, const std::string& device, const std::vector<pool::SlabView>& slabs,
               Samples& out) {
  std::map<std::string, std::uint64_t> by_use;
  for (const auto& slab : slabs) ++by_use[pool::name(slab.use)];
  for (const auto& [use, count] : by_use) {
    out.add("kvd_pool_slabs", {name(tier), use, device}, count);
  }
}

void add_device(const core::DeviceStatus& status, Samples& out) {
  const std::string device = std::to_string(status.device.value);
  add_tier(Tier::kHbm, device, status.hbm, out);
  add_slabs(Tier::kHbm, device, status.slabs, out);
  for (std::size_t d = 0; d < kDirectionNames.size(); ++d) {
    out.add("kvd_link_rate_bytes_per_second", {kDirectionNames[d], device}, status.link_rate[d]);
  }
  out.add("kvd_rotation_budget_bytes", {device}, status.b_xfer);
  out.add("kvd_step_mean_seconds", {device}, status.mean_step_s);
}

void add_memory(const ControllerStatus& status, Samples& out) {
  for (const core::DeviceStatus& device : status.devices) add_device(device, out);
  add_tier(Tier::kDram, "", status.tiers[1], out);
  add_slabs(Tier::kDram, "", status.slabs[1], out);
  out.add("kvd_blocks_compacted_total", {}, status.counters.compacted.blocks);
  out.add("kvd_compacted_bytes_total", {}, status.counters.compacted.bytes);
  out.add("kvd_orphaned_bytes", {}, status.orphaned);
  out.add("kvd_scrubbed_bytes_total", {}, status.counters.slabs.bytes_scrubbed);
  out.add("kvd_slabs_renewed_total", {}, status.counters.slabs.renewed);
  out.add("kvd_region_granted_bytes_total", {}, status.counters.region_bytes_granted);
}

void add_prefixes(const ControllerStatus& status, Samples& out) {
  const Counters::Prefixes& c = status.counters.prefixes;
  for (std::size_t t = 0; t < kTiers; ++t) {
    const std::string tier = name(static_cast<Tier>(t));
    out.add("kvd_request_bytes", {tier}, status.held[t]);
    out.add("kvd_cache_bytes", {tier}, status.cached[t]);
    out.add("kvd_available_bytes", {tier}, status.tiers[t].free + status.cached[t]);
    out.add("kvd_cache_evicted_bytes_total", {tier}, c.evicted_bytes[t]);
    out.add("kvd_prefix_tokens_total", {tier}, c.found[t]);
    out.add("kvd_kept_blocks", {tier}, c.kept.blocks[t]);
    out.add("kvd_kept_bytes", {tier}, c.kept.bytes[t]);
  }
  out.add("kvd_cache_bytes", {"disk"}, status.cached[kTiers]);
  out.add("kvd_cache_retained_bytes", {}, status.retained.bytes);
  out.add("kvd_cache_retained_evicted_bytes_total", {}, status.retained.evicted_bytes);
  out.add("kvd_cache_prefetched_bytes_total", {}, status.retained.prefetched_bytes);
  const Counters::Prefixes::Lower& disk = status.counters.prefixes.lower[core::kDiskTier];
  out.add("kvd_disk_blocks_total", {"load"}, disk.loads);
  out.add("kvd_disk_blocks_total", {"store"}, disk.stores);
  out.add("kvd_disk_bytes_total", {"load"}, disk.load_bytes);
  out.add("kvd_disk_bytes_total", {"store"}, disk.store_bytes);
  out.add("kvd_disk_failures_total", {"load"}, disk.load_failures);
  out.add("kvd_disk_failures_total", {"store"}, disk.store_failures);
  out.add("kvd_disk_late_total", {}, disk.late);
  out.add("kvd_disk_refused_total", {}, disk.refused);
  for (const char* state : {"opening", "open", "closing", "closed", "refused"}) {
    const auto is_in = [state](const core::DiskModel& model) { return model.state == state; };
    out.add("kvd_disk_models", {state},
            static_cast<std::uint64_t>(
                std::count_if(status.disk_models.begin(), status.disk_models.end(), is_in)));
  }
  const Counters::Prefixes::Lower& remote = status.counters.prefixes.lower[core::kRemoteTier];
  out.add("kvd_remote_blocks_total", {"load"}, remote.loads);
  out.add("kvd_remote_blocks_total", {"store"}, remote.stores);
  out.add("kvd_remote_bytes_total", {"load"}, remote.load_bytes);
  out.add("kvd_remote_bytes_total", {"store"}, remote.store_bytes);
  out.add("kvd_remote_failures_total", {"load"}, remote.load_failures);
  out.add("kvd_remote_failures_total", {"store"}, remote.store_failures);
  out.add("kvd_remote_late_total", {}, remote.late);
  out.add("kvd_remote_refused_total", {}, remote.refused);
  for (const core::RemoteServer& server : status.remote_servers) {
    out.add("kvd_remote_server_up", {server.server}, std::uint64_t{server.on});
    out.add("kvd_remote_server_errors_total", {server.server}, server.errors);
    out.add("kvd_remote_server_offs_total", {server.server}, server.offs);
    out.add("kvd_remote_server_received_bytes_total", {server.server}, server.bytes_in);
    out.add("kvd_remote_server_sent_bytes_total", {server.server}, server.bytes_out);
    out.add("kvd_remote_server_round_trip_seconds", {server.server}, server.round_trip_s);
  }
  const Counters::Prefixes::Kept& kept = status.counters.prefixes.kept;
  out.add("kvd_kept_dropped_blocks", {"torn"}, kept.dropped.torn);
  out.add("kvd_kept_dropped_blocks", {"altered"}, kept.dropped.altered);
  out.add("kvd_kept_dropped_blocks", {"misfit"}, kept.dropped.misfit);
  out.add("kvd_kept_dropped_blocks", {"domain"}, kept.dropped.nobodys);
  out.add("kvd_kept_dropped_blocks", {"parent"}, kept.dropped.headless);
  out.add("kvd_prefix_tokens_total", {"computed"}, c.asked - c.found[0] - c.found[1]);
}

void add_copies(const ControllerStatus& status, Samples& out) {
  const Counters& c = status.counters;
  for (std::size_t d = 0; d < kDirectionNames.size(); ++d) {
    const std::string direction = kDirectionNames[d];
    out.add("kvd_copies_total", {direction}, c.copies[d]);
    out.add("kvd_copy_bytes_total", {direction}, c.copy_bytes[d]);
    out.add("kvd_copy_busy_seconds_total", {direction},
            static_cast<double>(c.copy_busy_ns[d]) * 1e-9);
  }
  out.add("kvd_copy_failures_total", {}, c.copy_failures);
}

void add_layers(const Counters& c, const mover::MoverCounters& mover, Samples& out) {
  for (std::size_t d = 0; d < kDirectionNames.size(); ++d) {
    out.add("kvd_copy_run_bytes", {kDirectionNames[d]},
            {mover.runs[d].counts.begin(), mover.runs[d].counts.end()},
            static_cast<double>(mover.runs[d].sum.value));
  }
  out.add("kvd_layer_iterations_total", {}, c.streams);
  out.add("kvd_layerwise_prefills_total", {}, c.layerwise);
  out.add("kvd_pauses_total", {}, c.pauses);
  out.add("kvd_layer_fetches_total", {}, mover.layer_fetches);
  out.add("kvd_layer_fetch_retries_total", {}, mover.layer_fetch_retries);
  out.add("kvd_layer_fetch_bytes_total", {}, mover.layer_bytes);
  out.add("kvd_layer_fetch_busy_seconds_total", {}, to_seconds(mover.layer_busy));
}

void add_plans(const Solver::Counters& solver, Samples& out) {
  out.add("kvd_plan_solve_seconds", {}, solver.seconds, solver.seconds_sum);
  out.add("kvd_plan_gap_ratio", {}, solver.gap);
  out.add("kvd_plans_total", {"feasible"}, solver.feasible);
  out.add("kvd_plans_total", {"infeasible"}, solver.infeasible);
  out.add("kvd_plans_total", {"failed"}, solver.failed);
  out.add("kvd_plans_total", {"replaced"}, solver.replaced);
}

void add_rotation(const ControllerStatus& status, Samples& out) {
  const Counters& c = status.counters;
  out.add("kvd_rotations_total", {"in"}, c.rotations_in);
  out.add("kvd_rotations_total", {"out"}, c.rotations_out);
  out.add("kvd_rotations_forced_total", {}, c.rotations_forced);
  out.add("kvd_rotation_blocked_total", {"dram"}, c.rotation_blocked_dram);
  out.add("kvd_rotation_blocked_total", {"growth"}, c.rotation_blocked_growth);
  out.add("kvd_rotation_blocked_total", {"promise"}, c.rotation_blocked_promise);
  out.add("kvd_blocks_synced_total", {}, c.blocks_synced);
  out.add("kvd_promises_total", {}, c.promises);
  out.add("kvd_promises_expired_total", {}, c.promises_expired);
}

void add_requests(const ControllerStatus& status, Samples& out) {
  const Counters& c = status.counters;
  std::array<std::uint64_t, core::kRequestStates> by_state{};
  for (const RequestStatus& r : status.requests) ++by_state[static_cast<std::size_t>(r.state)];
  for (std::size_t s = 0; s < by_state.size(); ++s) {
    out.add("kvd_requests", {core::name(static_cast<core::RequestState>(s))}, by_state[s]);
  }
  out.add("kvd_requests_submitted_total", {}, c.requests_submitted);
  out.add("kvd_requests_finished_total", {}, c.requests_finished);
  out.add("kvd_requests_aborted_total", {}, c.requests_aborted);
  out.add("kvd_requests_out_of_memory_total", {}, c.ended.for_memory);
  out.add("kvd_requests_drained_total", {}, c.ended.drained);
  out.add("kvd_standstills_total", {}, c.standstills);
  const auto latest =
      std::max_element(status.requests.begin(), status.requests.end(),
                       [](const auto& a, const auto& b) { return a.vlt_s < b.vlt_s; });
  out.add("kvd_vlt_seconds", c.vlt);
  out.add("kvd_deposit_tokens", c.deposit);
  out.add("kvd_vlt_max_seconds", {}, latest == status.requests.end() ? 0.0 : latest->vlt_s);
}

void add_steps(const ControllerStatus& status, Samples& out) {
  const Counters& c = status.counters;
  out.add("kvd_schedule_calls_total", {}, c.schedule.calls);
  out.add("kvd_schedule_requests_total", {"preempted"}, c.schedule.preempted);
  out.add("kvd_schedule_requests_total", {"admitted"}, c.schedule.admitted);
  out.add("kvd_steps_total", {}, c.steps);
  out.add("kvd_tokens_total", {}, c.tokens);
  out.add("kvd_slo_intervals_total", {"ttft", "met"}, c.ttft.met);
  out.add("kvd_slo_intervals_total", {"ttft", "missed"}, c.ttft.missed);
  out.add("kvd_slo_intervals_total", {"tbt", "met"}, c.tbt.met);
  out.add("kvd_slo_intervals_total", {"tbt", "missed"}, c.tbt.missed);
  out.add("kvd_commands_refused_total", {}, c.stale_commands);
}

std::string label_of(const EngineStatus& engine) {
  std::string label = engine.name.substr(0, kMaxNameLength);
  std::replace_if(
      label.begin(), label.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return label + "-" + std::to_string(engine.id.value);
}

void add_service(const Labels& of_class, const core::ClassService& service, Samples& out) {
  const auto intervals = [&](const char* goal, const core::Intervals& counts) {
    Labels labels = of_class;
    labels.insert(labels.end(), {goal, "met"});
    out.add("kvd_engine_slo_intervals_total", labels, counts.met);
    labels.back() = "missed";
    out.add("kvd_engine_slo_intervals_total", labels, counts.missed);
  };
  intervals("ttft", service.ttft);
  intervals("tbt", service.tbt);
  out.add("kvd_engine_wait_seconds", of_class, service.wait_s.counts, service.wait_s.sum);
  out.add("kvd_engine_ttft_seconds", of_class, service.ttft_s.counts, service.ttft_s.sum);
  out.add("kvd_engine_tbt_seconds", of_class, service.tbt_s.counts, service.tbt_s.sum);
  out.add("kvd_engine_oldest_wait_seconds", of_class, service.oldest.wait_s);
  out.add("kvd_engine_oldest_wait_goals", of_class, service.oldest.goals);
}

void add_engine(const EngineStatus& e, Samples& out) {
  const Labels id = {label_of(e), e.domain};
  const auto with = [&](const char* last) { return Labels{id[0], id[1], last}; };
  out.add("kvd_engine_up", id, e.dying ? 0.0 : 1.0);
  out.add("kvd_engine_unresponsive", id, e.responsive ? 0.0 : 1.0);
  out.add("kvd_engine_draining", id, e.service.drain ? 1.0 : 0.0);
  out.add("kvd_engine_bytes", with(name(Tier::kHbm)), e.hbm);
  out.add("kvd_engine_bytes", with(name(Tier::kDram)), e.dram);
  out.add("kvd_engine_region_bytes", id, e.region);
  out.add("kvd_engine_orphaned_bytes", id, e.orphaned);
  out.add("kvd_engine_requests", id, std::uint64_t{e.requests});
  out.add("kvd_engine_steps_total", id, e.steps);
  out.add("kvd_engine_tokens_total", id, e.tokens);
  out.add("kvd_engine_rotations_total", with("in"), e.rotations.in);
  out.add("kvd_engine_rotations_total", with("out"), e.rotations.out);
  for (const core::ClassService& service : e.service.classes)
    add_service(with(service.name.c_str()), service, out);
}

void add_engines(const ControllerStatus& status, Samples& out) {
  out.add("kvd_engines", {}, std::uint64_t{status.engines.size()});
  out.add("kvd_draining", {}, status.drain ? 1.0 : 0.0);
  out.add("kvd_engines_attached_total", {}, status.counters.engines_attached);
  out.add("kvd_engines_died_total", {}, status.counters.engines_died);
  for (const EngineStatus& engine : status.engines) add_engine(engine, out);
}

void add_tuning(const core::Tuning& tuning, Samples& out) {
  for (const core::TuningKey& key : core::tuning_keys()) {
    const std::string table(key.table()), name(key.name());
    const auto* number = std::get_if<core::TuningField<double>>(&key.field);
    const auto* text = std::get_if<core::TuningField<std::string>>(&key.field);
    if (number != nullptr) out.add("kvd_policy_parameter", {table, name}, number->of(tuning));
    if (text != nullptr && name == "policy") out.info("kvd_policy_info", {table, text->of(tuning)});
  }
  out.add("kvd_tuning_b_xfer_bytes", {}, tuning.rotation.b_xfer.value_or(Bytes(0)));
  for (const auto& [slo_class, slo] : tuning.slo) {
    out.add("kvd_slo_goal_seconds", {slo_class, "ttft"}, to_seconds(slo.ttft));
    out.add("kvd_slo_goal_seconds", {slo_class, "tbt"}, to_seconds(slo.tbt));
    out.add("kvd_slo_goal_seconds", {slo_class, "tpot"}, to_seconds(slo.tpot));
    out.add("kvd_slo_goal_seconds", {slo_class, "gap"}, to_seconds(slo.longest_gap()));
  }
}

}  // namespace

void collect(const ControllerStatus& status, const ShellCounters& shell,
             const admin::DaemonInfo& info, std::vector<metrics::Sample>& out) {
  Samples samples(out);
  add_daemon(info, samples);
  add_memory(status, samples);
  add_prefixes(status, samples);
  add_copies(status, samples);
  add_layers(status.counters, shell.mover, samples);
  add_plans(shell.solver, samples);
  samples.add("kvd_schedule_seconds", shell.schedule);
  samples.add("kvd_admin_tokens_refused_total", {}, shell.refused_tokens);
  samples.add("kvd_log_lines_lost_total", {"overrun"}, shell.log.overrun);
  samples.add("kvd_log_lines_lost_total", {"repeated"}, shell.log.repeated);
  add_rotation(status, samples);
  add_requests(status, samples);
  add_steps(status, samples);
  add_engines(status, samples);
  add_tuning(status.tuning, samples);
}

}  // namespace kvd::daemon
