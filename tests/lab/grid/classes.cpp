#include "tests/lab/grid/classes.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvd::sim::grid {
namespace {

GoalClass goals_of(const Cell& cell, const ClassPart& part) {
  return {Seconds(cell.lengths.ttft_s * part.ttft), Seconds(cell.lengths.tbt_s * part.tbt),
          part.share};
}

/// The part that an engine has where each engine has a class; none: the rest of the requests.
std::span<const ClassPart> parts_at(const Cell& cell, std::size_t engine) {
  const std::span<const ClassPart> all = cell.classes.parts;
  if (engine == 0) return {};
  return engine + 1 == cell.profiles.size() ? all.subspan(engine - 1) : all.subspan(engine - 1, 1);
}

double share_of(std::span<const ClassPart> parts) {
  double share = 0;
  for (const ClassPart& part : parts) share += part.share;
  return share;
}

}  // namespace

std::vector<GoalClass> classes_of(const Cell& cell) {
  std::vector<GoalClass> out = {goals_of(cell, {rest_of(cell.classes)})};
  for (const ClassPart& part : cell.classes.parts) out.push_back(goals_of(cell, part));
  std::sort(out.begin(), out.end(), [](const GoalClass& a, const GoalClass& b) {
    return std::pair(a.ttft, a.tbt) < std::pair(b.ttft, b.tbt);
  });
  return out;
}

double engine_rate(const Cell& cell, std::size_t engine, double rate) {
  if (!cell.apart) return rate / static_cast<double>(cell.profiles.size());
  return rate * (engine == 0 ? rest_of(cell.classes) : share_of(parts_at(cell, engine)));
}

Status set_engine_goals(const Cell& cell, std::size_t engine, std::uint64_t seed,
                        Workload& requests) {
  const std::span<const ClassPart> parts = parts_at(cell, engine);
  if (!cell.apart || parts.empty()) return {};
  GoalClass last = goals_of(cell, parts.back());
  last.share = 1;
  KVD_TRY(assign_goals(requests, {&last, 1}, seed));
  std::vector<GoalClass> others;
  for (const ClassPart& part : parts.first(parts.size() - 1)) {
    others.push_back(goals_of(cell, part));
    others.back().share /= share_of(parts);
  }
  return assign_goals(requests, others, seed);
}

Status set_mixed_goals(const Cell& cell, std::uint64_t seed, Workload& requests) {
  if (cell.apart) return {};
  std::vector<GoalClass> classes;
  for (const ClassPart& part : cell.classes.parts) classes.push_back(goals_of(cell, part));
  return assign_goals(requests, classes, seed);
}

void leave_tightest(const Cell& cell, Workload& requests) {
  const GoalClass tight = classes_of(cell).front();
  std::erase_if(requests, [&](const Arrival& arrival) {
    return arrival.ttft_slo.value_or(Seconds(cell.lengths.ttft_s)) != tight.ttft ||
           arrival.tbt_slo.value_or(Seconds(cell.lengths.tbt_s)) != tight.tbt;
  });
}

Cell tightest_alone(const Cell& cell) {
  const GoalClass tight = classes_of(cell).front();
  Cell out = cell;
  out.lengths.ttft_s = tight.ttft.count();
  out.lengths.tbt_s = tight.tbt.count();
  out.classes = {};
  if (cell.apart) out.profiles.resize(1);
  out.apart = false;
  return out;
}

std::string tightest_knee_name(const Cell& cell) {
  const Cell alone = tightest_alone(cell);
  if (alone.lengths.ttft_s == cell.lengths.ttft_s) return knee_name(alone);
  char text[64];
  std::snprintf(text, sizeof text, ", first token in %g s", alone.lengths.ttft_s);
  return knee_name(alone) + text;
}

}  // namespace kvd::sim::grid
