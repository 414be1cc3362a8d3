#include "kvd/sim/run/summary_json.hpp"

namespace kvd::sim {
namespace {

nlohmann::ordered_json json_of(const Summary& summary, const char* named, bool part) {
  nlohmann::ordered_json entry = {{named, summary.policy}};
  nlohmann::ordered_json spread = nlohmann::ordered_json::object();
  for (const MetricName& metric : metric_names()) {
    if (!metric.compared || (part && metric.of_machine)) continue;
    entry[metric.name] = summary.mean.*metric.figure;
    spread[metric.name] = {summary.low.*metric.figure, summary.high.*metric.figure};
  }
  entry["spread"] = std::move(spread);
  return entry;
}

}  // namespace

nlohmann::ordered_json comparison_json(const std::string& figure, const std::string& unit,
                                       const std::vector<Summary>& policies) {
  auto list = nlohmann::ordered_json::array();
  for (const Summary& summary : policies) {
    nlohmann::ordered_json entry = json_of(summary, "policy", false);
    for (const Summary& part : summary.parts) entry["parts"].push_back(json_of(part, "part", true));
    list.push_back(std::move(entry));
  }
  return {{"figure", figure}, {"unit", unit}, {"policies", std::move(list)}};
}

}  // namespace kvd::sim
