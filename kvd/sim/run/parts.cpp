#include "kvd/sim/run/parts.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <utility>

#include "kvd/sim/run/metrics.hpp"

namespace kvd::sim {
namespace {

/// `key_of` orders the parts.
template <class KeyOf, class NameOf>
std::vector<RequestPart> divided(const RunResult& result, KeyOf key_of, NameOf name_of) {
  std::map<decltype(key_of(result.requests.front())), RequestPart> parts;
  for (const RequestRecord& record : result.requests) {
    RequestPart& part = parts[key_of(record)];
    part.name = name_of(record);
    part.result.totals.duration = result.totals.duration;
    part.result.requests.push_back(record);
  }
  std::vector<RequestPart> out;
  for (auto& [key, part] : parts) out.push_back(std::move(part));
  return out;
}

std::string engine_name(const RequestRecord& record) {
  return "engine " + std::to_string(record.engine + 1);
}

std::string goals_name(const RequestRecord& record) {
  char text[64];
  std::snprintf(text, sizeof text, "ttft %.4g s, tbt %.4g s", record.ttft_slo.count(),
                record.tbt_slo.count());
  return text;
}

std::string csv_line(std::size_t number, const RequestRecord& record) {
  const bool begun = !record.tokens.empty();
  const auto gaps = static_cast<double>(record.tokens.size()) - 1;
  const double ttft = begun ? (record.tokens.front() - record.arrival).count() : -1;
  const double mean = gaps > 0 ? (record.tokens.back() - record.tokens.front()).count() / gaps : 0;
  const std::vector<TimePoint> seen = deliver(record).times;
  Nanoseconds longest{0};
  for (std::size_t i = 1; i < seen.size(); ++i) longest = std::max(longest, seen[i] - seen[i - 1]);
  char text[256];
  std::snprintf(
      text, sizeof text, "%zu,%u,%.6f,%lld,%lld,%zu,%.6f,%.6f,%.6f,%.6f,%.6f,%g,%g,%u,%u\n", number,
      record.engine + 1, record.arrival.count(), static_cast<long long>(record.prompt.value),
      static_cast<long long>(record.output.value), record.tokens.size(), ttft, mean,
      to_seconds(longest), record.finish.count(), record.held.count(), record.ttft_slo.count(),
      record.tbt_slo.count(), record.rotations, record.pauses);
  return text;
}

}  // namespace

std::vector<RequestPart> parts_by_goals(const RunResult& result) {
  const auto goals = [](const RequestRecord& record) {
    return std::pair(record.ttft_slo, record.tbt_slo);
  };
  return divided(result, goals, goals_name);
}

std::vector<RequestPart> parts_of(const RunResult& result) {
  const auto engine = [](const RequestRecord& record) { return record.engine; };
  std::vector<RequestPart> out = divided(result, engine, engine_name);
  std::vector<RequestPart> classes = parts_by_goals(result);
  if (out.size() < 2) out.clear();
  if (classes.size() < 2) classes.clear();
  std::move(classes.begin(), classes.end(), std::back_inserter(out));
  return out;
}

std::string requests_csv(const RunResult& result) {
  std::string text =
      "request,engine,arrival_s,prompt_tokens,output_tokens,tokens_made,ttft_s,mean_gap_s,"
      "longest_gap_s,finish_s,held_back_s,ttft_goal_s,tbt_goal_s,rotations,pauses\n";
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    text += csv_line(i + 1, result.requests[i]);
  }
  return text;
}

}  // namespace kvd::sim
