#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/wait_reason.hpp"
#include "kvd/ctl/table.hpp"

/// Values of the admin interface's documents as text for a terminal.
namespace kvd::ctl::cells {

using Json = nlohmann::ordered_json;

/// The failure of a command that cannot read the daemon's document.
[[nodiscard]] inline Error unknown_answer(const Json::exception& error,
                                          const char* remedy = "use the daemon's kvdctl") {
  return make_error(ErrorCode::kInternal, "the daemon's answer is not what this kvdctl knows (" +
                                              std::string(error.what()) + "); " + remedy);
}

/// Names come from engines: nothing in them may steer the terminal.
[[nodiscard]] inline std::string text(const Json& value) {
  std::string out = value.is_string() ? value.get<std::string>() : value.dump();
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return out;
}
[[nodiscard]] inline std::string bytes(const Json& value) {
  return bytes_text(value.get<double>());
}
[[nodiscard]] inline std::string seconds(const Json& value) {
  return seconds_text(value.get<double>());
}

/// "97.5 %": the share that met a goal.
[[nodiscard]] inline std::string attainment(double met, double missed, const char* none) {
  if (met + missed == 0) return none;
  char out[32];
  std::snprintf(out, sizeof out, "%.1f %%", 100 * met / (met + missed));
  return out;
}

// Cells of a request that an older kvd does not tell.

[[nodiscard]] inline std::string slo_class(const Json& request) {
  if (!request.contains("class")) return "-";
  return request.at("class").is_null() ? "own goals" : text(request.at("class"));
}
/// "ttft 5 s": the goal of its next token.
[[nodiscard]] inline std::string goal(const Json& request) {
  const Json awaits = request.value("awaits", Json());
  if (awaits.is_null()) return "-";
  const std::string of = text(awaits);
  return of + " " + seconds(request.at(of + "_goal_s"));
}
/// How long ago that goal passed.
[[nodiscard]] inline std::string late(const Json& request) {
  const Json late_s = request.value("late_s", Json());
  return late_s.is_null() || late_s.get<double>() <= 0 ? "-" : seconds(late_s);
}
/// Why it waits, in a sentence.
[[nodiscard]] inline std::string why(const Json& request) {
  const Json reason = request.value("waits_for", Json());
  return reason.is_null() ? "-" : std::string(wait_sentence(text(reason)));
}

}  // namespace kvd::ctl::cells
