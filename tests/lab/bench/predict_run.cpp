#include "tests/lab/bench/predict_run.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "tests/lab/bench/serve_node.hpp"

namespace kvd::bench {
namespace {

using nlohmann::json;

constexpr double kPredictPatience_s = 300;
constexpr auto kPeriod = std::chrono::milliseconds(25);
/// Iterations after a change in which layers still change sides, and those it takes to be seen.
constexpr std::size_t kSettling = 5;
constexpr std::size_t kLeast = 8;
constexpr double kBlockTokens = 16;

/// What the daemon said of a request at one moment.
struct PlanSeen {
  std::vector<std::int32_t> offloaded;
  std::uint32_t distance = 0;
  double tokens = 0;
};
struct Sample {
  double at_s = 0;
  double planned_s = 0;
  std::map<std::string, PlanSeen> requests;

  [[nodiscard]] bool same_plan(const Sample& other) const {
    return std::equal(requests.begin(), requests.end(), other.requests.begin(),
                      other.requests.end(), [](const auto& a, const auto& b) {
                        return a.first == b.first && a.second.offloaded == b.second.offloaded;
                      });
  }
};

Sample sample_of(double at_s, const json& snapshots, const json& plans) {
  Sample out;
  out.at_s = at_s;
  for (const json& snapshot : snapshots.at("snapshots")) {
    for (const json& request : snapshot.at("requests")) {
      out.requests[request.at("id")].tokens = request.at("tokens").get<double>();
    }
  }
  for (const json& plan : plans.at("plans")) {
    out.planned_s = plan.at("step_s");
    const std::string engine = std::to_string(plan.at("engine").get<std::uint64_t>()) + "/";
    for (const json& one : plan.at("requests")) {
      const auto found =
          out.requests.find(engine + std::to_string(one.at("request").get<std::uint64_t>()));
      if (found == out.requests.end()) continue;
      found->second.distance = one.at("distance");
      found->second.offloaded = one.at("groups_in_dram").get<std::vector<std::int32_t>>();
    }
  }
  return out;
}

/// Looks at the daemon until told to stop.
class Watch {
 public:
  explicit Watch(const ServeNode& node) : node_(node), thread_([this] { look(); }) {}
  ~Watch() { stop(); }
  std::vector<Sample> stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    return std::move(samples_);
  }

 private:
  void look() {
    while (!stopped_) {
      const double at_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
      samples_.push_back(
          sample_of(at_s, node_.document("/v1/snapshots/place"), node_.document("/v1/plan")));
      std::this_thread::sleep_for(kPeriod);
    }
  }

  const ServeNode& node_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_ = false;
  std::vector<Sample> samples_;
  std::thread thread_;
};

std::vector<ServeRequest> requests_of(const std::vector<std::uint32_t>& prompts,
                                      std::uint32_t new_tokens, std::uint16_t port) {
  std::mt19937 random(1);
  std::vector<ServeRequest> out;
  for (const std::uint32_t length : prompts) {
    ServeRequest request{.port = port, .new_tokens = new_tokens};
    request.prompt.resize(length);
    for (std::uint32_t& token : request.prompt) token = random() % 256;
    out.push_back(std::move(request));
  }
  return out;
}

/// Times at which one request got tokens while all of them decoded, between two moments.
std::vector<double> gaps_between(const std::vector<ServeAnswer>& answers, double begin_s,
                                 double end_s) {
  for (const ServeAnswer& answer : answers) {
    begin_s = std::max(begin_s, answer.token_s.front());
    end_s = std::min(end_s, answer.token_s.back());
  }
  std::vector<double> times;
  for (const double at : answers.front().token_s) {
    if (at >= begin_s && at <= end_s) times.push_back(at);
  }
  std::vector<double> gaps;
  for (std::size_t i = kSettling + 1; i < times.size(); ++i) {
    gaps.push_back(times[i] - times[i - 1]);
  }
  return gaps;
}

Stretch stretch_of(std::span<const Sample> samples, std::vector<double> gaps) {
  Stretch out;
  const Sample& middle = samples[samples.size() / 2];
  for (const auto& [id, seen] : middle.requests) {
    out.requests.push_back(
        {Blocks(static_cast<std::int64_t>(seen.tokens / kBlockTokens)), seen.offloaded});
    out.distances.push_back(seen.distance);
  }
  out.iterations = gaps.size();
  const auto quartile = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 4);
  std::nth_element(gaps.begin(), quartile, gaps.end());
  out.iteration_s = *quartile;
  out.planned_s = middle.planned_s;
  return out;
}

}  // namespace

std::vector<Stretch> run_batch(const ServeStage& stage, const core::Tuning& tuning,
                               const std::vector<std::uint32_t>& prompts,
                               std::uint32_t new_tokens) {
  const ServeNode node(stage, tuning);
  Watch watch(node);
  const auto answers =
      serve_load(requests_of(prompts, new_tokens, node.port(0)), kPredictPatience_s);
  const std::vector<Sample> samples = watch.stop();
  std::vector<Stretch> out;
  if (std::any_of(answers.begin(), answers.end(), [](const auto& a) { return !a.complete; })) {
    return out;
  }
  for (std::size_t first = 0, next = 0; first < samples.size(); first = next) {
    while (next < samples.size() && samples[next].same_plan(samples[first])) ++next;
    if (samples[first].requests.size() != prompts.size()) continue;
    auto gaps = gaps_between(answers, samples[first].at_s, samples[next - 1].at_s);
    if (gaps.size() < kLeast) continue;
    out.push_back(stretch_of(std::span(samples).subspan(first, next - first), std::move(gaps)));
  }
  return out;
}

}  // namespace kvd::bench
