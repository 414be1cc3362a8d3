// kvd-bench predict: does the planner's model foresee how long an iteration takes? A daemon and a
// kvd-engine as processes of their own, layers streaming over a throttled link.
#include <cstdio>
#include <set>

#include "planner/model/latency.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/predict_figures.hpp"
#include "tests/lab/bench/predict_run.hpp"

namespace kvd::bench::predict_benchmark {
namespace {

constexpr const char* kHelp =
    R"(usage: kvd-bench predict [--json] [--quick]

Batches of uneven prompts decode on a daemon and a kvd-engine while layers stream in over a link of
512 MiB/s, under several placement policies and sizes of HBM. Of each stretch of iterations under one
plan, an iteration's time is compared with what the planner's model foresees for its distances and
blocks. The model knows two things: how long the same batch takes where nothing streams (measured
before and after each setting) and the link's rate. It knows nothing of the iterations it predicts.
`planned` is the daemon's own forecast, with the link's rate as it has measured it and computing
times from earlier steps of the same batch. An iteration's time is the first quartile of its
stretch, because whatever else the machine does only adds; a machine that is always busy gives
figures that mean little. Each plan is printed on stderr. --quick: two batches of six.
)";

constexpr std::uint32_t kLayers = 12;
constexpr std::uint32_t kNewTokens = 64;
constexpr std::int64_t kSlotKib = 32;  // 16 tokens x 4 heads x 64 x K and V x F32
constexpr std::int64_t kBlockTokens = 16;
constexpr std::int64_t kLinkMib = 512;  // a second

using Batch = std::vector<std::uint32_t>;
const std::vector<Batch> kBatches = {
    {600, 250, 60}, {400, 350}, {700, 90, 60, 40}, {220, 180, 130, 90, 70, 50}, {800}, {500, 120}};

/// A policy, and HBM as a share of what the batch needs.
struct Setting {
  const char* policy;
  double hbm;
};
constexpr Setting kSettings[] = {
    {"deepspeed", 0.8},      {"flexgen", 0.8},    {"batch_uniform", 0.95}, {"batch_uniform", 0.87},
    {"batch_uniform", 0.75}, {"orbitflow", 0.85}, {"orbitflow", 0.65}};

ServeStage stage_of(const Batch& batch, double hbm) {
  std::int64_t kib = 0;
  for (const std::uint32_t prompt : batch) {
    kib += pieces(Tokens(prompt + kNewTokens), Tokens(kBlockTokens)) * kLayers * kSlotKib;
  }
  ServeStage stage;
  stage.model = "layers=12,hidden=256,heads=4,kv_heads=4,ff=512,context=4096";
  stage.bandwidth = std::to_string(kLinkMib) + "MiB";
  stage.hbm = std::to_string(static_cast<std::int64_t>(static_cast<double>(kib) * hbm)) + "KiB";
  return stage;
}

/// First come, first served, and no goal that would have a request pause.
core::Tuning tuning_of(const char* placement) {
  core::Tuning tuning;
  tuning.rotation.policy = "fcfs";
  tuning.placement.policy = placement;
  tuning.admission.policy = "none";
  tuning.placement.pause = false;
  tuning.slo["default"] = {std::chrono::hours(1), std::chrono::minutes(1), std::chrono::minutes(1)};
  return tuning;
}

/// Time of an iteration of which nothing streams; 0 where none could be measured.
double resident_iteration(const Batch& batch) {
  const auto stretches = run_batch(stage_of(batch, 1.5), tuning_of("none"), batch, kNewTokens);
  return stretches.empty() ? 0 : stretches.front().iteration_s;
}

struct Outcome {
  std::vector<Prediction> model, planned;
  std::set<std::uint32_t> distances;  ///< that occurred
  int skipped = 0;                    ///< settings under which no stretch was long enough
};

double foreseen(const Stretch& stretch, double resident_s) {
  planner::StepModel model;
  model.compute.assign(kLayers, planner::Seconds(resident_s / kLayers));
  model.per_block = planner::Seconds(kSlotKib / (kLinkMib * 1024.0));
  return planner::edf_latency(model, stretch.requests).total.count();
}

void add(const Stretch& stretch, const Setting& setting, double resident_s, Outcome& out) {
  const double model_s = foreseen(stretch, resident_s);
  out.model.push_back({model_s, stretch.iteration_s});
  out.planned.push_back({stretch.planned_s, stretch.iteration_s});
  std::string distances;
  for (const std::uint32_t k : stretch.distances) {
    if (k > 0) out.distances.insert(k);
    distances += (distances.empty() ? "" : " ") + std::to_string(k);
  }
  std::fprintf(stderr,
               "%-14s %.2f  distances %-12s %3zu iterations  measured %6.2f ms  model %6.2f ms "
               "(%+5.1f %%)  planned %6.2f ms  resident %6.2f ms\n",
               setting.policy, setting.hbm, distances.c_str(), stretch.iterations,
               stretch.iteration_s * 1e3, model_s * 1e3, 100 * (model_s / stretch.iteration_s - 1),
               stretch.planned_s * 1e3, resident_s * 1e3);
}

void measure(const Batch& batch, Outcome& out) {
  double before = resident_iteration(batch);
  for (const Setting& setting : kSettings) {
    const auto stretches =
        run_batch(stage_of(batch, setting.hbm), tuning_of(setting.policy), batch, kNewTokens);
    const double after = resident_iteration(batch);
    bool streamed = false;
    for (const Stretch& stretch : stretches) {
      const bool streams =
          std::any_of(stretch.requests.begin(), stretch.requests.end(),
                      [](const auto& request) { return !request.offloaded.empty(); });
      if (!streams || before == 0 || after == 0) continue;
      add(stretch, setting, (before + after) / 2, out);
      streamed = true;
    }
    if (!streamed) ++out.skipped;
    before = after;
  }
}

int run(const Arguments& arguments) {
  const bool quick =
      std::find(arguments.rest.begin(), arguments.rest.end(), "--quick") != arguments.rest.end();
  if (arguments.rest.size() > (quick ? 1U : 0U)) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  Outcome out;
  const std::size_t batches = quick ? 2 : kBatches.size();
  for (std::size_t i = 0; i < batches; ++i) measure(kBatches[i], out);
  if (out.model.empty()) {
    std::fprintf(stderr, "kvd-bench predict: no iterations could be measured\n");
    return 1;
  }
  std::vector<Row> rows = {{"plans", static_cast<double>(out.model.size()), {}, {}, ""},
                           {"distances", static_cast<double>(out.distances.size()), {}, {}, ""},
                           {"settings_skipped", static_cast<double>(out.skipped), {}, {}, ""}};
  const auto add_rows = [&](const std::string& name, const std::vector<Prediction>& predictions) {
    rows.push_back({name + ".error_median", error_quantile(predictions, 0.5), {}, {}, ""});
    rows.push_back({name + ".error_p90", error_quantile(predictions, 0.9), {}, {}, ""});
    rows.push_back({name + ".rank_correlation", rank_correlation(predictions), {}, {}, ""});
  };
  add_rows("model", out.model);
  add_rows("planned", out.planned);
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"predict", "iterations as the planner foresees them, and as they are; more: predict --help",
     run, kHelp}};

}  // namespace
}  // namespace kvd::bench::predict_benchmark
