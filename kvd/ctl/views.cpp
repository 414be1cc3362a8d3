#include "kvd/ctl/views.hpp"

#include <cstdio>

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl {
namespace {

using cells::bytes;
using cells::Json;
using cells::seconds;
using cells::text;

std::string plain(double value) {
  char out[32];
  std::snprintf(out, sizeof out, "%g", value);
  return out;
}

std::string pools_table(const Json& pools) {
  Table table({"TIER", "PAGES", "CAPACITY", "REQUESTS", "REGIONS", "CACHED", "FREE", "AVAILABLE",
               "QUARANTINED", "STRANDED", "SLABS", "UNASSIGNED", "SEALED", "OPEN"});
  for (const Json& p : pools) {
    const Json& slots = p.at("slots");
    table.add({text(p.at("tier")), text(p.at("pages")), bytes(p.at("capacity_bytes")),
               bytes(p.at("request_bytes")), bytes(p.at("region_bytes")),
               bytes(p.at("cached_bytes")), bytes(p.at("free_bytes")),
               bytes(p.at("available_bytes")), bytes(p.at("quarantined_bytes")),
               bytes(p.at("stranded_bytes")), text(p.at("slabs")), text(p.at("slabs_unassigned")),
               text(slots.at("sealed")), text(slots.at("open"))});
  }
  std::string missing;
  for (const Json& p : pools) {
    if (p.at("missing_bytes") == 0) continue;
    missing += text(p.at("tier")) + ": " + bytes(p.at("missing_bytes")) +
               " have no memory yet; kvd makes them as memory comes free (kvdctl events)\n";
  }
  return table.render() + missing;
}

std::string pools_view(const Json& document) {
  return pools_table(document.at("pools")) + "orphaned: " + bytes(document.at("orphaned_bytes")) +
         "\n";
}

std::string requests_line(const Json& requests) {
  std::string line = "requests:";
  for (const auto& [state, count] : requests.items()) line += " " + text(count) + " " + state + ",";
  line.back() = '\n';
  return line;
}

std::string attainment(const Json& goal) {
  const auto met = goal.at("met").get<double>();
  const auto all = met + goal.at("missed").get<double>();
  if (all == 0) return "none yet";
  return cells::attainment(met, all - met, "") + " of " + plain(all);
}

/// What the first device is like. devices_view() shows each of several.
std::string of_one_device(const Json& document, const std::string& said) {
  return document.at("devices").size() < 2 ? said : std::string();
}

std::string direction(const Json& document, const char* way) {
  const Json& c = document.at("counters");
  return bytes(c.at("copy_bytes").at(way)) + " in " + text(c.at("copies").at(way)) + " copies" +
         of_one_device(document, ", link " + bytes(document.at("link_bytes_per_s").at(way)) + "/s");
}

/// Empty where there is one device, as the pools and the lines below say everything then.
std::string devices_view(const Json& devices) {
  if (devices.size() < 2) return {};
  Table table({"DEVICE", "HBM", "FREE", "REGIONS", "H2D", "D2H", "BUDGET", "STEP"});
  for (const Json& d : devices) {
    const Json& link = d.at("link_bytes_per_s");
    table.add({text(d.at("device")), bytes(d.at("capacity_bytes")), bytes(d.at("free_bytes")),
               bytes(d.at("region_bytes")), bytes(link.at("h2d")) + "/s",
               bytes(link.at("d2h")) + "/s", bytes(d.at("b_xfer_bytes")),
               seconds(d.at("mean_step_s"))});
  }
  return "\n" + table.render();
}

/// Nothing on the host backend.
std::string gpu_line(const Json& gpu) {
  if (gpu.is_null()) return "";
  return "gpu " + text(gpu.at("name")) + ", " + text(gpu.at("uuid")) + ", " +
         bytes(gpu.at("context_bytes")) + " for the context at most\n";
}

std::string out_of_service(const Json& status) {
  return status.at("drains").get<bool>() ? "; out of service (kvdctl drain)" : "";
}

std::string live_settings(const Json& status) {
  const auto count = status.value("live_settings", std::uint64_t{0});
  if (count == 0) return "";
  return "settings: " + std::to_string(count) +
         " changed live, which the next start does not have (kvdctl config)\n";
}

/// Empty where there are none.
std::string remote_line(const Json& status) {
  const Json& remote = status.at("remote");
  if (remote.at("servers") == 0) return "";
  const std::string on = text(remote.at("on")) + " of " + text(remote.at("servers"));
  return "remote:   " + on + " servers on; " + text(remote.at("loads")) + " blocks loaded, " +
         text(remote.at("stores")) + " stored (kvdctl remote)\n";
}

std::string status_view(const Json& d) {
  const Json& c = d.at("counters");
  const Json& policy = d.at("policy");
  return "kvd " + text(d.at("version")) + ", backend " + text(d.at("backend")) + ", up " +
         seconds(d.at("uptime_s")) + ", boot " + text(d.at("boot_id")) + "\n" + "attach " +
         text(d.at("endpoints").at("attach")) + "\n" + gpu_line(d.at("gpu")) + "\n" +
         pools_table(d.at("pools")) + devices_view(d.at("devices")) +
         "\nengines:  " + text(d.at("engines")) + " attached, " + text(c.at("engines_died")) +
         " died" + out_of_service(d) + "\n" + requests_line(d.at("requests")) +
         "policy:   " + text(policy.at("rotation")) + " (rotation), " +
         text(policy.at("placement")) + " (placement), " + text(policy.at("admission")) +
         " (admission), " + text(policy.at("load")) + " (load)\n" + live_settings(d) +
         "rotation: " + text(c.at("rotations_out")) + " out, " + text(c.at("rotations_in")) +
         " in" + of_one_device(d, ", budget " + bytes(d.at("b_xfer_bytes")) + " a step") +
         "\ncopies:   h2d " + direction(d, "h2d") + "; d2h " + direction(d, "d2h") + "\n" +
         remote_line(d) + "steps:    " + text(c.at("steps")) +
         of_one_device(d, ", mean " + seconds(d.at("mean_step_s"))) + ", " + text(c.at("tokens")) +
         " tokens\n" + "SLO met:  ttft " + attainment(c.at("ttft")) + ", tbt " +
         attainment(c.at("tbt")) + "\n";
}

/// "2 4 6", or "-" for none.
std::string numbers_text(const Json& numbers) {
  std::string out;
  for (const Json& number : numbers) out += (out.empty() ? "" : " ") + text(number);
  return out.empty() ? "-" : out;
}

std::string engines_view(const Json& document) {
  Table table({"ID", "NAME", "DOMAIN", "PID", "LEVEL", "PLACES", "RANKS", "DEVICES", "STATE",
               "REQUESTS", "REGION", "HBM", "DRAM", "STEPS", "TOKENS", "OUT", "IN", "IDLE"});
  for (const Json& e : document.at("engines")) {
    table.add({text(e.at("id")), text(e.at("name")), text(e.at("domain")), text(e.at("pid")),
               text(e.at("level")), text(e.at("places")), text(e.at("ranks")),
               numbers_text(e.at("devices")), text(e.at("state")), text(e.at("requests")),
               bytes(e.at("region_bytes")), bytes(e.at("hbm_bytes")), bytes(e.at("dram_bytes")),
               text(e.at("steps")), text(e.at("tokens")), text(e.at("rotations_out")),
               text(e.at("rotations_in")), seconds(e.at("idle_s"))});
  }
  return table.rows() > 0 ? table.render() : "no engines attached\n";
}

std::string requests_view(const Json& document) {
  Table table({"ENGINE", "REQUEST", "CLASS", "STATE", "PROMPT", "TOKENS", "HBM", "DRAM", "VLT",
               "ROTATIONS", "AGE", "GOAL", "LATE", "WHY IT WAITS"});
  for (const Json& r : document.at("requests")) {
    table.add({text(r.at("engine")), text(r.at("request")), cells::slo_class(r),
               text(r.at("state")), text(r.at("prompt_tokens")), text(r.at("tokens")),
               bytes(r.at("hbm_bytes")), bytes(r.at("dram_bytes")), seconds(r.at("vlt_s")),
               text(r.at("rotations")), seconds(r.at("age_s")), cells::goal(r), cells::late(r),
               cells::why(r)});
  }
  return table.rows() > 0 ? table.render() : "no requests\n";
}

/// Shows which engines find each other's blocks: the ones with equal rows.
std::string open_caches(const Json& open) {
  if (open.empty()) return "";
  Table table({"ENGINE", "NAME", "DOMAIN", "BLOCK", "BLOCKS ARE OF"});
  for (const Json& cache : open) {
    const std::string size =
        text(cache.at("block_tokens")) + " x " + bytes(cache.at("block_bytes"));
    const std::string model = cache.at("model").get<std::string>();
    table.add({text(cache.at("engine")), text(cache.at("name")), text(cache.at("domain")), size,
               model.empty() ? "-" : model});
  }
  return "\n" + table.render();
}

/// Empty where an older kvd answers, or nothing is on disk.
std::string disk_models_view(const Json& document) {
  Table table({"ON DISK", "STATE", "CACHED", "FILES", "ENGINES", "IDLE", "FOLDER"});
  for (const Json& m : document.value("disk_models", Json::array())) {
    table.add({text(m.at("model")), text(m.at("state")), bytes(m.at("cached_bytes")),
               bytes(m.at("file_bytes")), text(m.at("engines")), seconds(m.at("idle_s")),
               text(m.at("folder"))});
  }
  return table.rows() > 0 ? "\n" + table.render() : "";
}

std::string cache_view(const Json& document) {
  const Json& found = document.at("found_tokens");
  const auto of = [&](const char* tier) {
    return std::vector<std::string>{tier, bytes(document.at("cached_bytes").at(tier)),
                                    bytes(document.at("evicted_bytes").at(tier)),
                                    text(found.at(tier))};
  };
  Table table({"TIER", "CACHED", "EVICTED", "TOKENS FOUND"});
  table.add(of("hbm"));
  table.add(of("dram"));
  const Json& disk = document.at("disk");
  const Json none = Json::object();  // a kvd that retains nothing says so little
  const Json& retained = document.contains("retained") ? document.at("retained") : none;
  const std::string kept = "retained: " + bytes(retained.value("bytes", Json(0))) + " of DRAM; " +
                           bytes(retained.value("evicted_bytes", Json(0))) +
                           " made way before their time; " +
                           bytes(retained.value("prefetched_bytes", Json(0))) + " prefetched\n";
  return table.render() + kept + "disk: " + bytes(document.at("cached_bytes").at("disk")) +
         " cached; " + text(disk.at("loads")) + " blocks read, " + text(disk.at("load_failures")) +
         " could not be; " + text(disk.at("stores")) + " written, " +
         text(disk.at("store_failures")) + " could not be\nof " +
         text(document.at("prompt_tokens")) +
         " prompt tokens that engines told the content of; load.policy is " +
         text(document.at("load_policy")) + "\n" + open_caches(document.at("open")) +
         disk_models_view(document);
}

std::string remote_view(const Json& document) {
  Table table({"SERVER", "STATE", "LOADED", "MISSED", "STORED", "IN", "OUT", "ROUND TRIP"});
  std::string faults;
  for (const Json& s : document.at("servers")) {
    table.add({text(s.at("server")), s.at("on").get<bool>() ? "on" : "off", text(s.at("loads")),
               text(s.at("misses")), text(s.at("stores")), bytes(s.at("received_bytes")),
               bytes(s.at("sent_bytes")), seconds(s.at("round_trip_s"))});
    const std::string why = s.at("why").get<std::string>();
    if (!why.empty()) faults += why + "\n";
  }
  if (table.rows() == 0) return "no remote servers: remote.servers names them\n";
  if (document.at("refused") != 0) {
    faults += text(document.at("refused")) +
              " blocks made way in DRAM before they were written: raise remote.budget\n";
  }
  return table.render() + faults;
}

std::string yes_or_no(const Json& value, const char* yes, const char* no) {
  return value.is_null() ? "not known yet" : value.get<bool>() ? yes : no;
}

std::string advice_heading(const Json& engine, const Json& tier) {
  std::string line = "engine " + text(engine.at("engine")) + ", " + text(tier.at("tier")) + ": " +
                     yes_or_no(tier.at("pays"), "pays", "does not pay");
  if (!tier.at("bytes_per_s").is_null()) {
    line += "; " + bytes(tier.at("bytes_per_s")) + "/s after " + seconds(tier.at("latency_s"));
  }
  const Json& crossover = tier.at("crossover_tokens");
  if (!crossover.is_null()) line += "; from " + plain(crossover.get<double>()) + " tokens on";
  if (!tier.at("load_s").is_null()) {
    line += "; a mean prompt loads in " + seconds(tier.at("load_s")) + ", computes in " +
            seconds(tier.at("prefill_s"));
  }
  return line + "\n";
}

std::string advice_view(const Json& document) {
  std::string out;
  for (const Json& engine : document.at("engines")) {
    for (const Json& tier : engine.at("tiers")) {
      Table table({"CONDITION", "HOLDS", "MEASURED", "AT LEAST", "OF WHAT"});
      for (const Json& c : tier.at("conditions")) {
        const Json& value = c.at("value");
        table.add({text(c.at("condition")), yes_or_no(c.at("holds"), "yes", "no"),
                   value.is_null() ? "-" : plain(value.get<double>()),
                   plain(c.at("at_least").get<double>()), text(c.at("unit"))});
      }
      out += advice_heading(engine, tier) + table.render();
    }
  }
  if (out.empty()) return "no engine lets kvd schedule its requests\n";
  return out + text(document.at("prompts")) +
         " prompts told their content so far; load.policy is " + text(document.at("load_policy")) +
         "\n";
}

std::string plan_heading(const Json& plan) {
  std::string line = "engine " + text(plan.at("engine")) + ": ";
  const bool solving = plan.at("solving").get<bool>();
  const std::string policy = text(plan.at("policy"));
  if (policy.empty()) return line + (solving ? "its first plan is being made\n" : "no plan\n");
  line += policy + (plan.at("fallback").get<bool>() ? " (the selected policy's did not fit)" : "") +
          ", plan " + text(plan.at("number")) + ", " + text(plan.at("steps_left")) +
          " steps left, a step " + seconds(plan.at("step_s")) + ", " + seconds(plan.at("stall_s")) +
          " of it for layers";
  return line + (solving ? "; the next one is being made\n" : "\n");
}

std::string plan_view(const Json& document) {
  std::string out;
  for (const Json& plan : document.at("plans")) {
    Table table({"REQUEST", "DISTANCE", "PAUSED", "GROUPS IN DRAM"});
    for (const Json& r : plan.at("requests")) {
      const auto distance = r.at("distance").get<std::uint64_t>();
      table.add({text(r.at("request")), distance > 0 ? std::to_string(distance) : "-",
                 r.at("paused").get<bool>() ? "yes" : "-", numbers_text(r.at("groups_in_dram"))});
    }
    out += plan_heading(plan) + (table.rows() > 0 ? table.render() : "");
  }
  return out.empty() ? "no layers may stream\n" : out;
}

std::string events_view(const Json& document) {
  Table table({"NUMBER", "AGO", "LEVEL", "ENGINE", "WHAT"});
  for (const Json& e : document.at("events")) {
    const bool of_engine = e.at("engine").get<std::uint64_t>() != 0;
    table.add({text(e.at("sequence")), seconds(e.at("age_s")), text(e.at("level")),
               of_engine ? text(e.at("engine")) : "-", text(e.at("text"))});
  }
  return table.rows() > 0 ? table.render() : "no events\n";
}

/// The document's leaves as "rotation.alpha  3", as `policy set` takes them.
void add_leaves(const Json& node, const std::string& path, Table& table) {
  if (!node.is_object()) {
    table.add({path, text(node)});
    return;
  }
  const std::string before = path.empty() ? path : path + ".";
  for (const auto& [key, value] : node.items()) add_leaves(value, before + key, table);
}

std::string policy_view(const Json& document) {
  Table table({"KEY", "VALUE"});
  add_leaves(document, "", table);
  return table.render();
}

std::string slo_view(const Json& document) {
  Table table({"CLASS", "TTFT", "TBT", "TPOT", "GAP"});
  for (const auto& [name, goals] : document.at("classes").items()) {
    const Json& gap = goals.at("gap_s");
    table.add({text(name), seconds(goals.at("ttft_s")), seconds(goals.at("tbt_s")),
               seconds(goals.at("tpot_s")), gap.is_number() ? seconds(gap) : text(gap)});
  }
  return table.render();
}

std::string quota_view(const Json& document) {
  Table table({"DOMAIN", "OF", "HBM GUARANTEE", "HBM MAXIMUM", "DRAM GUARANTEE", "DRAM MAXIMUM"});
  const auto maximum = [](const Json& quota) {
    const Json& value = quota.at("maximum_bytes");
    return value.is_null() ? std::string("none") : bytes(value);
  };
  for (const auto& [name, domain] : document.at("domains").items()) {
    const Json& hbm = domain.at("hbm");
    const Json& dram = domain.at("dram");
    table.add({text(name), domain.at("per_user").get<bool>() ? "each" : "all",
               bytes(hbm.at("guarantee_bytes")), maximum(hbm), bytes(dram.at("guarantee_bytes")),
               maximum(dram)});
  }
  std::string over;
  for (const auto& [name, domain] : document.at("domains").items()) {
    for (const char* tier : {"hbm", "dram"}) {
      const Json& left = domain.at(tier).at("over_bytes");
      if (left.get<std::int64_t>() == 0) continue;
      over +=
          text(name) + " has " + bytes(left) + " more of " + tier + " than that: it comes back\n";
    }
  }
  return table.render() + over;
}

std::string view_text(View view, const Json& document) {
  switch (view) {
    case View::kStatus:
      return status_view(document);
    case View::kPools:
      return pools_view(document);
    case View::kEngines:
      return engines_view(document);
    case View::kRequests:
      return requests_view(document);
    case View::kRemote:
      return remote_view(document);
    case View::kCache:
      return cache_view(document);
    case View::kAdvice:
      return advice_view(document);
    case View::kPlan:
      return plan_view(document);
    case View::kEvents:
      return events_view(document);
    case View::kPolicy:
      return policy_view(document);
    case View::kSlo:
      return slo_view(document);
    case View::kQuota:
      return quota_view(document);
  }
  return "";
}

}  // namespace

Result<std::string> render(View view, std::string_view document) {
  try {
    return view_text(view, Json::parse(document));
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error, "use --json, or the daemon's kvdctl");
  }
}

std::string text_in(std::string_view status_document, const std::string& path) {
  const Json status = Json::parse(status_document, nullptr, /*allow_exceptions=*/false);
  const Json::json_pointer place("/" + path);
  return status.is_object() && status.contains(place) ? text(status[place]) : "";
}

int unseen_in(std::string_view engines_document) {
  const Json document = Json::parse(engines_document, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("engines")) return 0;
  const Json& engines = document["engines"];
  return static_cast<int>(std::count_if(engines.begin(), engines.end(), [](const Json& engine) {
    return engine.is_object() && engine.value("pid", Json(1)) == 0;
  }));
}

std::string refusal_text(std::string_view document) {
  const Json answer = Json::parse(document, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("message")) return std::string(document);
  const std::string path = text(answer.value("path", Json("")));
  return (path.empty() ? "" : path + ": ") + text(answer["message"]);
}

}  // namespace kvd::ctl
