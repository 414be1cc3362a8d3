#include "kvd/sim/workload/random.hpp"
#include "tests/lab/figures/grid.hpp"
#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/text.hpp"

/// Two engines on one device: do they do better on one pool than with half of it each?
namespace kvd::sim::figures {
namespace {

constexpr const char* kProfile = "h100-pcie-llama3-8b";
constexpr double kRate = 24;
const std::vector<std::string> kArms = {"two halves", "guarantee and borrow", "one pool"};

/// The share of the memory that each engine's domain is guaranteed; engines of one pool have no
/// domain of their own.
double guarantee_of(const std::string& arm) {
  if (arm == "two halves") return 0.5;
  return arm == "guarantee and borrow" ? 0.25 : 0;
}

/// The second engine gets `share` of the requests, chosen at random.
void add_second_engine(Setting& setting, const std::string& arm, double share) {
  setting.one_device = true;
  setting.hbm = Bytes(setting.engines[0].profile.hbm.value / 4);
  setting.engines.push_back(setting.engines[0]);
  const double guarantee = guarantee_of(arm);
  for (std::uint32_t e = 0; e < 2 && guarantee > 0; ++e) {
    setting.engines[e].domain = e + 1;
    setting.engines[e].guarantee =
        Bytes(static_cast<std::int64_t>(static_cast<double>(setting.hbm->value) * guarantee));
  }
  Random random(7);
  for (Arrival& arrival : setting.workload) arrival.engine = random.uniform() < share ? 1 : 0;
}

Trial trial_of(const std::string& arm, double share) {
  Trial trial;
  trial.profile = kProfile;
  trial.policy = "unified";
  trial.workload = "gen:sharegpt";
  trial.options.rate = kRate;
  trial.options.duration = Seconds(60);
  trial.slo = {.ttft = std::chrono::seconds(5),
               .tbt = std::chrono::milliseconds(100),
               .tpot = std::chrono::milliseconds(100)};
  trial.max_tokens = "mix";
  trial.variant = arm + " " + number_text(share);
  trial.adjust = [arm, share](Setting& setting) { add_second_engine(setting, arm, share); };
  return trial;
}

}  // namespace

Result<Figure> beyond_engines(Lab& lab) {
  const Grid grid{
      "beyond-engines",
      "H100 PCIe, LLaMA3-8B twice on one device, a quarter of its HBM, ShareGPT lengths",
      "share",
      "share of the requests that go to the second engine",
      kArms,
      {0.5, 0.3, 0.1, 0.02},
      trial_of};
  KVD_ASSIGN_OR_RETURN(const auto result, measure_grid(lab, grid));
  const auto joint = &Metrics::joint_attainment;
  Figure figure;
  figure.beyond = true;
  figure.notes = {
      "Policy unified, 24 requests a second for both engines together, which take turns on the "
      "device. Two halves: each engine's domain is guaranteed half of HBM and there is nothing to "
      "borrow. Guarantee and borrow: a quarter each, half for whoever asks first. One pool: one "
      "domain. A domain that lets go of memory has it zeroed before another gets it."};
  for (const double share : grid.xs) {
    const auto at = [&](const char* arm) { return result.mean(arm, share, joint); };
    figure.findings.push_back(
        {"with " + percent(share) + " at the second engine: is one pool better than two halves?",
         percent(at("one pool")) + " of requests in time against " + percent(at("two halves")) +
             ", guarantee and borrow " + percent(at("guarantee and borrow")),
         agreement(at("one pool") > at("two halves"))});
  }
  figure.charts = {
      chart_of(result, {"beyond-engines-joint", "Joint attainment", "share of requests", joint}),
      chart_of(result, {"beyond-engines-ttft", "TTFT attainment", "share of requests",
                        &Metrics::ttft_attainment}),
      chart_of(result, {"beyond-engines-use", "HBM in use", "share of slots", &Metrics::hbm_use})};
  figure.data = json_of(result);
  return figure;
}

}  // namespace kvd::sim::figures
