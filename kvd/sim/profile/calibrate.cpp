#include "kvd/sim/profile/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvd::sim {
namespace {

using Json = nlohmann::json;

/// A number of the document by its path; nothing where there is none, or where it is not above 0.
std::optional<double> measured(const Json& status, const char* path) {
  const Json::json_pointer pointer(path);
  if (!status.contains(pointer) || !status.at(pointer).is_number()) return std::nullopt;
  const double value = status.at(pointer).get<double>();
  return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

/// Replaces a figure, or adds it.
void put(std::vector<TomlEntry>& entries, const std::string& key,
         std::variant<double, bool, std::string> value, std::string source) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const TomlEntry& entry) { return entry.key == key; });
  if (found != entries.end()) {
    found->value = std::move(value);
    found->comment = std::move(source);
  }
}

void put_memory(std::vector<TomlEntry>& entries, const Json& status) {
  if (!status.contains("pools") || !status["pools"].is_array()) return;
  for (const Json& pool : status["pools"]) {
    const std::string tier = pool.value("tier", "");
    const auto capacity = measured(pool, "/capacity_bytes");
    if (capacity && (tier == "hbm" || tier == "dram")) {
      put(entries, "memory." + tier + "_bytes", *capacity, "measured: the daemon's pool");
    }
  }
}

void put_link(std::vector<TomlEntry>& entries, const Json& status) {
  for (const std::string direction : {"h2d", "d2h"}) {
    const auto rate = measured(status, ("/link_bytes_per_s/" + direction).c_str());
    if (rate)
      put(entries, "link." + direction + "_bytes_s", *rate, "measured: the daemon's copies");
  }
}

/// Bytes of HBM that hold KV.
double used_hbm(const Json& status) {
  if (!status.contains("pools") || !status["pools"].is_array()) return 0;
  for (const Json& pool : status["pools"]) {
    if (pool.value("tier", "") != "hbm") continue;
    const auto capacity = measured(pool, "/capacity_bytes").value_or(0);
    return std::max(0.0, capacity - measured(pool, "/free_bytes").value_or(0) -
                             measured(pool, "/region_bytes").value_or(0));
  }
  return 0;
}

/// The batch that the mean step was measured over, as far as the status tells.
std::optional<Batch> mean_batch(const Profile& profile, const Json& status) {
  const auto steps = measured(status, "/counters/steps");
  const auto tokens = measured(status, "/counters/tokens");
  if (!steps || !tokens) return std::nullopt;
  Batch batch;
  batch.decoding = std::max<std::int64_t>(1, std::llround(*tokens / *steps));
  const double token_bytes =
      static_cast<double>(profile.shape.bytes_per_token_per_layer.value) * profile.shape.layers;
  batch.context_tokens = std::llround(used_hbm(status) / token_bytes);
  return batch;
}

std::string scaled_source(double factor, double step, const Batch& batch) {
  char text[160];
  std::snprintf(
      text, sizeof text,
      "measured: base x %.4g, for a mean step of %.4g s over %lld requests and %lld tokens", factor,
      step, static_cast<long long>(batch.decoding), static_cast<long long>(batch.context_tokens));
  return text;
}

void put_iteration(ProfileDocument& document, const Json& status) {
  const auto step = measured(status, "/mean_step_s");
  const auto batch = mean_batch(document.profile, status);
  if (!step || !batch) return;
  const double factor = *step / iteration_time(document.profile, *batch).count();
  const std::string source = scaled_source(factor, *step, *batch);
  const auto& model = document.profile.iteration;
  const auto scale = [&](const char* key, double value, double by) {
    put(document.entries, key, value * by, source);
  };
  scale("iteration.fixed_s", model.fixed.count(), factor);
  scale("iteration.least_s", model.least.count(), factor);
  scale("iteration.context_token_s", model.context_token.count(), factor);
  scale("iteration.sequence_s", model.sequence.count(), factor);
  scale("iteration.prefill_fixed_s", model.prefill_fixed.count(), factor);
  scale("iteration.hbm_bytes_s", model.hbm_bytes_s, 1 / factor);
  scale("iteration.flops", model.flops, 1 / factor);
}

}  // namespace

Result<ProfileDocument> calibrated(const ProfileDocument& base, std::string_view status,
                                   const std::string& name) {
  const Json json = Json::parse(status, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("pools") || !json.contains("link_bytes_per_s")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "that is no status of a kvd daemon; write one with "
                      "`kvdctl status --json > FILE`");
  }
  ProfileDocument document = base;
  put_iteration(document, json);
  put_memory(document.entries, json);
  put_link(document.entries, json);
  put(document.entries, "name", name, "");
  put(document.entries, "source",
      "calibrated from a running daemon, on top of " + base.profile.name, "");
  return read_profile(profile_toml(document.entries), name);
}

}  // namespace kvd::sim
