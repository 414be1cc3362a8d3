#include "kvd/admin/documents.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "ipc/vocabulary/hex.hpp"
#include "ipc/vocabulary/wait_reason.hpp"
#include "kvd/admin/json.hpp"
#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::admin {
namespace {

using core::ControllerStatus;
using core::Counters;

Json intervals_json(const core::Intervals& counts) {
  return {{"met", counts.met}, {"missed", counts.missed}};
}

Json both(const std::uint64_t (&values)[2]) { return {{"h2d", values[0]}, {"d2h", values[1]}}; }

Json counters_json(const Counters& c) {
  const auto busy = [&](int d) { return static_cast<double>(c.copy_busy_ns[d]) * 1e-9; };
  return {{"steps", c.steps},
          {"tokens", c.tokens},
          {"requests_submitted", c.requests_submitted},
          {"requests_finished", c.requests_finished},
          {"requests_aborted", c.requests_aborted},
          {"requests_out_of_memory", c.ended.for_memory},
          {"requests_drained", c.ended.drained},
          {"standstills", c.standstills},
          {"rotations_out", c.rotations_out},
          {"rotations_in", c.rotations_in},
          {"rotations_forced", c.rotations_forced},
          {"rotation_blocked",
           {{"dram", c.rotation_blocked_dram},
            {"growth", c.rotation_blocked_growth},
            {"promise", c.rotation_blocked_promise}}},
          {"blocks_copied_ahead", c.blocks_synced},
          {"compacted", {{"blocks", c.compacted.blocks}, {"bytes", c.compacted.bytes}}},
          {"layers",
           {{"plans", c.plans},
            {"pauses", c.pauses},
            {"iterations", c.streams},
            {"blocks_fetched", c.layers_fetched},
            {"layerwise_prefills", c.layerwise}}},
          {"prefixes",
           {{"tokens", c.prefixes.asked},
            {"tokens_in_hbm", c.prefixes.found[0]},
            {"tokens_in_dram", c.prefixes.found[1]},
            {"evicted_bytes",
             {{"hbm", c.prefixes.evicted_bytes[0]}, {"dram", c.prefixes.evicted_bytes[1]}}}}},
          {"promises", c.promises},
          {"promises_expired", c.promises_expired},
          {"copies", both(c.copies)},
          {"copy_bytes", both(c.copy_bytes)},
          {"copy_busy_s", {{"h2d", busy(0)}, {"d2h", busy(1)}}},
          {"copy_failures", c.copy_failures},
          {"region_granted_bytes", c.region_bytes_granted},
          {"scrubbed_bytes", c.slabs.bytes_scrubbed},
          {"schedule",
           {{"calls", c.schedule.calls},
            {"preempted", c.schedule.preempted},
            {"admitted", c.schedule.admitted}}},
          {"engines_attached", c.engines_attached},
          {"engines_died", c.engines_died},
          {"commands_refused", c.stale_commands},
          {"ttft", intervals_json(c.ttft)},
          {"tbt", intervals_json(c.tbt)}};
}

Json gpu_json(const std::optional<GpuInfo>& gpu) {
  if (!gpu) return nullptr;
  return {{"name", gpu->name}, {"uuid", gpu->uuid}, {"context_bytes", gpu->context_bytes.value}};
}

Json daemon_json(const DaemonInfo& info) {
  return {{"version", info.version},
          {"boot_id", info.boot_id},
          {"uptime_s", to_seconds(info.uptime)},
          {"backend", info.backend},
          {"gpu", gpu_json(info.gpu)},
          {"live_settings", info.live_settings},
          {"endpoints",
           {{"attach", info.attach_endpoint},
            {"command", info.command_endpoint},
            {"metrics", info.metrics_endpoint}}}};
}

template <class Counts>
Json by_state(const Counts& counts) {
  Json slots = Json::object();
  for (std::size_t s = 0; s < counts.size(); ++s) {
    slots[pool::name(static_cast<pool::SlotState>(s))] = counts[s];
  }
  return slots;
}

Json tier_json(Tier tier, const ControllerStatus& status, const std::string& pages) {
  const auto t = static_cast<std::size_t>(tier);
  const pool::TierStats& stats = status.tiers[t];
  return {{"tier", name(tier)},
          {"pages", pages},
          {"capacity_bytes", stats.capacity.value},
          {"request_bytes", status.held[t].value},
          {"cached_bytes", status.cached[t].value},
          {"available_bytes", (stats.free + status.cached[t]).value},
          {"free_bytes", stats.free.value},
          {"missing_bytes", stats.missing.value},
          {"region_bytes", stats.region.value},
          {"quarantined_bytes", stats.quarantined.value},
          {"stranded_bytes", stats.stranded.value},
          {"slabs_retiring", stats.slabs_retiring},
          {"slab_bytes", stats.slab_bytes.value},
          {"slabs", stats.slabs},
          {"slabs_unassigned", stats.slabs_unassigned},
          {"slots", by_state(stats.slots_by_state)}};
}

Json slab_json(const pool::SlabView& slab) {
  Json mapped_by = Json::array();
  for (const EngineId engine : slab.mapped_by) {
    if (engine) mapped_by.push_back(engine.value);
  }
  return {{"slab", slab.index.value},
          {"use", pool::name(slab.use)},
          {"class", slab.model_class.value},
          {"domain", slab.domain.value},
          {"region", slab.region.value},
          {"engine", slab.owner.value},
          {"retiring", slab.retiring},
          {"slots", slab.slots},
          {"used", slab.used},
          {"by_state", by_state(slab.by_state)},
          {"mapped_by", std::move(mapped_by)},
          {"engines_mapping", slab.engines}};
}

Json tiers_json(const ControllerStatus& status, const DaemonInfo& info) {
  Json tiers = Json::array();
  for (std::size_t t = 0; t < kTiers; ++t) {
    tiers.push_back(tier_json(static_cast<Tier>(t), status, info.page_kinds[t]));
  }
  return tiers;
}

Json device_json(const core::DeviceStatus& status) {
  const pool::TierStats& hbm = status.hbm;
  return {{"device", status.device.value},
          {"first_slab", status.slabs.empty() ? 0 : status.slabs.front().index.value},
          {"slabs", hbm.slabs},
          {"capacity_bytes", hbm.capacity.value},
          {"free_bytes", hbm.free.value},
          {"missing_bytes", hbm.missing.value},
          {"region_bytes", hbm.region.value},
          {"quarantined_bytes", hbm.quarantined.value},
          {"b_xfer_bytes", status.b_xfer.value},
          {"link_bytes_per_s", {{"h2d", status.link_rate[0]}, {"d2h", status.link_rate[1]}}},
          {"mean_step_s", status.mean_step_s}};
}

Json devices_json(const ControllerStatus& status) {
  Json devices = Json::array();
  for (const core::DeviceStatus& device : status.devices) devices.push_back(device_json(device));
  return devices;
}

Json requests_by_state(const ControllerStatus& status) {
  std::array<std::uint64_t, core::kRequestStates> counts{};
  for (const auto& request : status.requests) ++counts[static_cast<std::size_t>(request.state)];
  Json out = Json::object();
  for (std::size_t s = 0; s < counts.size(); ++s) {
    out[core::name(static_cast<core::RequestState>(s))] = counts[s];
  }
  return out;
}

/// Null: the requests name their goals themselves.
Json class_json(const std::string& name) { return name == core::kOwnGoals ? Json() : Json(name); }

Json service_json(const core::ClassService& service) {
  return {{"class", class_json(service.name)},
          {"ttft", intervals_json(service.ttft)},
          {"tbt", intervals_json(service.tbt)},
          {"oldest_wait_s", service.oldest.wait_s},
          {"oldest_wait_goals", service.oldest.goals}};
}

Json engine_json(const core::EngineStatus& e) {
  Json classes = Json::array();
  for (const core::ClassService& service : e.service.classes)
    classes.push_back(service_json(service));
  Json devices = Json::array();
  for (const DeviceId device : e.ranks.devices) devices.push_back(device.value);
  const char* state = e.dying           ? "dying"
                      : !e.responsive   ? "unresponsive"
                      : e.service.drain ? (e.service.drain->left > 0 ? "draining" : "drained")
                                        : "up";
  return {{"id", e.id.value},
          {"name", e.name},
          {"domain", e.domain},
          {"pid", e.pid},
          {"uid", e.uid},
          {"generation", e.generation.value},
          {"level", e.level.number},
          {"places", e.level.places        ? "engine"
                     : e.level.number == 3 ? "kvd"
                                           : "-"},
          {"ranks", e.ranks.count},
          {"devices", devices},
          {"state", state},
          {"requests", e.requests},
          {"region_bytes", e.region.value},
          {"hbm_bytes", e.hbm.value},
          {"dram_bytes", e.dram.value},
          {"orphaned_bytes", e.orphaned.value},
          {"steps", e.steps},
          {"tokens", e.tokens},
          {"rotations_out", e.rotations.out},
          {"rotations_in", e.rotations.in},
          {"classes", std::move(classes)},
          {"idle_s", e.service.idle_s}};
}

Json plan_json(const core::PlanStatus& plan, std::size_t groups) {
  Json requests = Json::array();
  for (const auto& entry : plan.requests) {
    requests.push_back({{"request", entry.request.value},
                        {"distance", entry.distance},
                        {"groups_in_dram", entry.in_dram},
                        {"paused", entry.paused}});
  }
  return {{"engine", plan.engine.value},
          {"number", plan.number},
          {"policy", plan.policy},
          {"fallback", plan.fallback},
          {"solving", plan.solving},
          {"steps_left", plan.steps_left},
          {"step_s", plan.step_s},
          {"stall_s", plan.stall_s},
          {"gap", plan.gap},
          {"layer_groups", groups},
          {"requests", std::move(requests)}};
}

/// How many tokens of each request are made and not yet due, as the rotation policy is told.
std::map<RequestKey, std::int64_t> deposits(const ControllerStatus& status) {
  std::map<RequestKey, std::int64_t> found;
  for (const auto& input : status.rotation_inputs) {
    for (std::size_t i = 0; i < input.requests.size(); ++i) {
      found[input.requests[i]] = input.snapshot.requests[i].deposit;
    }
  }
  return found;
}

/// Layer groups of an engine's model; 0: it runs nothing now.
std::size_t layer_groups(const ControllerStatus& status, EngineId engine) {
  for (const auto& input : status.placement_inputs) {
    if (!input.requests.empty() && input.requests.front().engine == engine) {
      return input.snapshot.model.layers();
    }
  }
  return 0;
}

Json request_json(const core::RequestStatus& r, Json slo_class, Json deposit) {
  const auto& goals = r.goals;
  const bool owes = goals.late_s.has_value();
  return {{"engine", r.key.engine.value},
          {"request", r.key.request.value},
          {"state", core::name(r.state)},
          {"prompt_tokens", r.prompt_tokens},
          {"tokens", r.tokens},
          {"max_new_tokens", r.max_new_tokens},
          {"hbm_bytes", r.hbm.value},
          {"dram_bytes", r.dram.value},
          {"class", std::move(slo_class)},
          {"ttft_goal_s", goals.ttft_s},
          {"tbt_goal_s", goals.tbt_s},
          {"gap_goal_s", goals.gap_s},
          {"awaits", owes ? Json(goals.next ? "tbt" : "ttft") : Json()},
          {"late_s", owes ? Json(*goals.late_s) : Json()},
          {"waits_for", r.waits_for == WaitReason::kNone ? Json() : Json(name(r.waits_for))},
          {"vlt_s", r.vlt_s},
          {"deposit_tokens", std::move(deposit)},
          {"rotations", r.rotations},
          {"skips", r.skips},
          {"promised", r.promised},
          {"age_s", r.age_s}};
}

/// Enough of its beginning to tell it from others.
std::string hex_start(const Digest& digest) { return hex(std::span(digest.bytes).first(8)); }

}  // namespace

std::string cache_document(const ControllerStatus& status) {
  Json open = Json::array();
  for (const core::EngineStatus& engine : status.engines) {
    for (const core::CacheStatus& cache : engine.kv.caches) {
      open.push_back(
          {{"engine", engine.id.value},
           {"name", engine.name},
           {"domain", engine.domain},
           {"model", cache.model},
           {"block_bytes", cache.block_bytes.value},
           {"block_tokens", cache.block_tokens},
           {"fingerprint", hex_start(cache.fingerprint)},
           {"remote_name",
            cache.remote_name == Digest() ? Json() : Json(hex_start(cache.remote_name))}});
    }
  }
  Json models = Json::array();
  for (const core::DiskModel& m : status.disk_models) {
    models.push_back({{"model", m.model},
                      {"folder", m.folder},
                      {"state", m.state},
                      {"cached_bytes", m.cached.value},
                      {"file_bytes", m.bytes.value},
                      {"engines", m.engines},
                      {"idle_s", m.idle_s}});
  }
  const auto& prefixes = status.counters.prefixes;
  const auto tiers = [](auto hbm, auto dram) { return Json{{"hbm", hbm}, {"dram", dram}}; };
  Json cached = tiers(status.cached[0].value, status.cached[1].value);
  cached["disk"] = status.cached[kTiers].value;
  const Json retained = {{"bytes", status.retained.bytes.value},
                         {"evicted_bytes", status.retained.evicted_bytes},
                         {"prefetched_bytes", status.retained.prefetched_bytes}};
  const auto& disk = status.counters.prefixes.lower[core::kDiskTier];
  return to_text({{"load_policy", status.tuning.load.policy},
                  {"cached_bytes", cached},
                  {"open", std::move(open)},
                  {"disk",
                   {{"loads", disk.loads},
                    {"stores", disk.stores},
                    {"load_failures", disk.load_failures},
                    {"store_failures", disk.store_failures},
                    {"late", disk.late},
                    {"refused", disk.refused}}},
                  {"disk_models", models},
                  {"evicted_bytes", tiers(prefixes.evicted_bytes[0], prefixes.evicted_bytes[1])},
                  {"retained", retained},
                  {"prompt_tokens", prefixes.asked},
                  {"found_tokens", tiers(prefixes.found[0], prefixes.found[1])}});
}

std::string remote_document(const ControllerStatus& status) {
  Json servers = Json::array();
  for (const core::RemoteServer& s : status.remote_servers) {
    servers.push_back({{"server", s.server},
                       {"on", s.on},
                       {"why", s.why},
                       {"loads", s.loads},
                       {"misses", s.misses},
                       {"stores", s.stores},
                       {"renewals", s.renewals},
                       {"finds", s.finds},
                       {"errors", s.errors},
                       {"offs", s.offs},
                       {"received_bytes", s.bytes_in.value},
                       {"sent_bytes", s.bytes_out.value},
                       {"round_trip_s", s.round_trip_s}});
  }
  const auto& remote = status.counters.prefixes.lower[core::kRemoteTier];
  return to_text({{"servers", std::move(servers)},
                  {"loads", remote.loads},
                  {"stores", remote.stores},
                  {"load_failures", remote.load_failures},
                  {"store_failures", remote.store_failures},
                  {"late", remote.late},
                  {"refused", remote.refused}});
}

std::string status_document(const ControllerStatus& status, const DaemonInfo& info) {
  Json out = daemon_json(info);
  out["pools"] = tiers_json(status, info);
  out["orphaned_bytes"] = status.orphaned.value;
  out["cached_bytes"] = {{"hbm", status.cached[0].value}, {"dram", status.cached[1].value}};
  const auto& servers = status.remote_servers;
  out["remote"] = {{"servers", servers.size()},
                   {"on", std::ranges::count(servers, true, &core::RemoteServer::on)},
                   {"loads", status.counters.prefixes.lower[core::kRemoteTier].loads},
                   {"stores", status.counters.prefixes.lower[core::kRemoteTier].stores}};
  out["engines"] = status.engines.size();
  out["drains"] = status.drain.has_value();
  out["requests"] = requests_by_state(status);
  out["policy"] = {{"rotation", status.tuning.rotation.policy},
                   {"placement", status.tuning.placement.policy},
                   {"admission", status.tuning.admission.policy},
                   {"load", status.tuning.load.policy}};
  const core::DeviceStatus first =
      status.devices.empty() ? core::DeviceStatus() : status.devices.front();
  const Json device = device_json(first);
  for (const char* key : {"b_xfer_bytes", "link_bytes_per_s", "mean_step_s"})
    out[key] = device[key];
  out["devices"] = devices_json(status);
  out["counters"] = counters_json(status.counters);
  return to_text(out);
}

std::string pools_document(const ControllerStatus& status, const DaemonInfo& info) {
  Json tiers = tiers_json(status, info);
  for (std::size_t t = 0; t < kTiers; ++t) {
    Json slabs = Json::array();
    for (const auto& slab : status.slabs[t]) slabs.push_back(slab_json(slab));
    tiers[t]["slab_list"] = std::move(slabs);
  }
  return to_text({{"pools", std::move(tiers)}, {"orphaned_bytes", status.orphaned.value}});
}

std::string events_document(const std::vector<Happening>& happenings, TimePoint now) {
  Json events = Json::array();
  for (const Happening& h : happenings) {
    events.push_back({{"sequence", h.sequence},
                      {"age_s", to_seconds(now - h.at)},
                      {"level", h.level},
                      {"engine", h.engine.value},
                      {"text", h.text}});
  }
  return to_text({{"events", std::move(events)}});
}

std::string config_document(const std::vector<std::pair<std::string, std::string>>& values) {
  Json config = Json::object();
  for (const auto& [key, value] : values) config[key] = value;
  return to_text(config);
}

std::string origins_document(const std::vector<ConfigOrigin>& origins) {
  Json all = Json::object(), live = Json::object();
  for (const ConfigOrigin& one : origins) {
    all[one.key] = one.origin;
    if (!one.configured) continue;
    live[one.key] = one.configured->empty() ? Json(nullptr) : Json(*one.configured);
  }
  return to_text({{"origins", std::move(all)}, {"live", std::move(live)}});
}

std::string engines_document(const ControllerStatus& status) {
  Json engines = Json::array();
  for (const auto& engine : status.engines) engines.push_back(engine_json(engine));
  return to_text({{"engines", std::move(engines)}});
}

std::string requests_document(const ControllerStatus& status) {
  Json requests = Json::array();
  const auto known = deposits(status);
  std::map<EngineId, const std::vector<core::ClassService>*> services;
  for (const core::EngineStatus& engine : status.engines)
    services[engine.id] = &engine.service.classes;
  const auto class_of = [&](const core::RequestStatus& request) {
    const auto found = services.find(request.key.engine);
    const std::size_t place = request.goals.slo_class;
    const bool has = found != services.end() && place < found->second->size();
    return has ? class_json((*found->second)[place].name) : Json();
  };
  for (const auto& request : status.requests) {
    const auto deposit = known.find(request.key);
    requests.push_back(request_json(request, class_of(request),
                                    deposit == known.end() ? Json() : Json(deposit->second)));
  }
  return to_text({{"requests", std::move(requests)}});
}

std::string plan_document(const ControllerStatus& status) {
  Json plans = Json::array();
  for (const auto& plan : status.plans) {
    plans.push_back(plan_json(plan, layer_groups(status, plan.engine)));
  }
  return to_text({{"plans", std::move(plans)}});
}

std::string history_document(const Snapshot& s) {
  Json samples = Json::array();
  for (const Moment& one : *s.history) {
    samples.push_back(
        {{"now_s", to_seconds(one.at - TimePoint{})}, {"counters", counters_json(one.counters)}});
  }
  return to_text({{"boot_id", s.info.boot_id}, {"samples", std::move(samples)}});
}

namespace {

/// Removes the line breaks and the indents. Texts have no line breaks of their own, as JSON escapes
/// them.
void append_on_one_line(std::string& out, std::string_view document) {
  bool indent = false;
  for (const char c : document) {
    indent = c == '\n' || (indent && c == ' ');
    if (!indent) out += c;
  }
}

}  // namespace

std::string overview_document(const Snapshot& s) {
  constexpr std::size_t kEvents =
      64;  // the latest events, enough for a reader that looks every second
  const auto kept = std::min(kEvents, s.happenings.size());
  const std::vector<Happening> last(s.happenings.end() - static_cast<std::ptrdiff_t>(kept),
                                    s.happenings.end());
  const std::pair<const char*, std::string> parts[] = {
      {"status", status_document(s.status, s.info)},
      {"pools", pools_document(s.status, s.info)},
      {"engines", engines_document(s.status)},
      {"requests", requests_document(s.status)},
      {"plan", plan_document(s.status)},
      {"cache", cache_document(s.status)},
      {"events", events_document(last, s.now)}};
  std::string out = "{\"now_s\":" + Json(to_seconds(s.now - TimePoint{})).dump();
  for (const auto& [name, document] : parts) {
    out += std::string(",\"") + name + "\":";
    append_on_one_line(out, document);
  }
  return out + "}\n";
}

namespace {

template <class T>
Json tuning_value(const T& value) {
  return value;
}
Json tuning_value(const std::optional<Bytes>& bytes) {
  return bytes ? Json(bytes->value) : Json("auto");
}

}  // namespace

std::string policy_document(const core::Tuning& tuning) {
  Json document = Json::object();
  for (const core::TuningKey& key : core::tuning_keys()) {
    document[std::string(key.table())][std::string(key.name())] =
        std::visit([&](const auto& field) { return tuning_value(field.of(tuning)); }, key.field);
  }
  return to_text(document);
}

namespace {

/// Divided, not multiplied: a minute reads as 60, not as 60.00000000000001.
double exactly(Nanoseconds time) { return static_cast<double>(time.count()) / 1e9; }

}  // namespace

std::string slo_document(const core::Tuning& tuning) {
  Json classes = Json::object();
  for (const auto& [slo_class, slo] : tuning.slo) {
    classes[slo_class] = {{"ttft_s", exactly(slo.ttft)},
                          {"tbt_s", exactly(slo.tbt)},
                          {"tpot_s", exactly(slo.tpot)},
                          {"gap_s", slo.gap ? Json(exactly(*slo.gap)) : Json("auto")}};
  }
  return to_text({{"classes", std::move(classes)}});
}

namespace {

Json quota_json(const pool::Quota& quota, Bytes over) {
  const bool bounded = quota.maximum.value < INT64_MAX;
  return {{"guarantee_bytes", quota.guarantee.value},
          {"maximum_bytes", bounded ? Json(quota.maximum.value) : Json()},
          {"over_bytes", over.value}};
}

}  // namespace

std::string quotas_document(const std::vector<DomainQuota>& quotas) {
  Json domains = Json::object();
  for (const DomainQuota& domain : quotas) {
    domains[domain.name] = {{"per_user", domain.per_user},
                            {"hbm", quota_json(domain.hbm, domain.hbm_over)},
                            {"dram", quota_json(domain.dram, domain.dram_over)}};
  }
  return to_text({{"domains", std::move(domains)}});
}

namespace {

Json drain_json(const core::DrainStatus& drain, TimePoint now) {
  const bool late = drain.deadline && now >= *drain.deadline;
  Json left = nullptr;
  if (drain.deadline) left = late ? 0.0 : to_seconds(*drain.deadline - now);
  return {{"state", drain.left == 0 ? "drained"
                    : late          ? "late"
                                    : "draining"},
          {"left", drain.left},
          {"since_s", to_seconds(now - drain.since)},
          {"deadline_s", std::move(left)}};
}

Json node_drain_json(const ControllerStatus& status, TimePoint now) {
  if (!status.drain) return nullptr;
  Json out = drain_json(*status.drain, now);
  out["to_remote"] = nullptr;
  if (const auto& blocks = status.to_remote) {
    if (blocks->left > 0 && status.drain->left == 0) out["state"] = "writing";
    out["to_remote"] = {{"left", blocks->left}, {"stored", blocks->stored}, {"lost", blocks->lost}};
  }
  return out;
}

}  // namespace

std::string drain_document(const ControllerStatus& status, TimePoint now) {
  Json engines = Json::object();
  for (const core::EngineStatus& engine : status.engines) {
    if (!engine.service.drain) continue;
    Json one = drain_json(*engine.service.drain, now);
    one["name"] = engine.name;
    one["hbm_bytes"] = engine.hbm.value;
    one["region_bytes"] = engine.region.value;
    engines[std::to_string(engine.id.value)] = std::move(one);
  }
  return to_text({{"node", node_drain_json(status, now)}, {"engines", std::move(engines)}});
}

std::string refusal_document(const Refusal& refusal) {
  return to_text({{"error", std::string(name(refusal.code))},
                  {"path", refusal.path},
                  {"message", refusal.message}});
}

}  // namespace kvd::admin
