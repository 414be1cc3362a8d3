#include "tests/gpu/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace kvd::gpu {
namespace {

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '\t');) cells.push_back(cell);
  cells.resize(std::max<std::size_t>(cells.size(), 6));
  return cells;
}

Verdict verdict_of(const std::string& text) {
  for (const Verdict v : {Verdict::kMet, Verdict::kMissed, Verdict::kNotJudged}) {
    if (text == name(v)) return v;
  }
  return Verdict::kRecorded;
}

bool has(const Outcome& outcome, Verdict verdict) {
  return std::any_of(outcome.figures.begin(), outcome.figures.end(),
                     [&](const Figure& f) { return f.verdict == verdict; });
}

State state_of(const Outcome& outcome, bool failed, bool skipped) {
  if (failed || has(outcome, Verdict::kMissed)) return State::kFailed;
  if (has(outcome, Verdict::kMet)) return State::kPassed;
  if (has(outcome, Verdict::kNotJudged)) return State::kNotJudged;
  return skipped ? State::kSkipped : State::kRecorded;
}

}  // namespace

const char* name(Verdict verdict) {
  constexpr const char* kNames[] = {"met", "missed", "not judged", "recorded"};
  return kNames[static_cast<std::size_t>(verdict)];
}

const char* name(State state) {
  constexpr const char* kNames[] = {"passed", "failed", "skipped", "not judged", "recorded"};
  return kNames[static_cast<std::size_t>(state)];
}

void Recorder::figure(const std::string& what, double value, const std::string& unit) const {
  line({"F", what, number(value), unit, "", name(Verdict::kRecorded)});
}

void Recorder::at_most(const std::string& what, double value, const std::string& unit,
                       double limit) const {
  judge(what, value, unit, "at most " + number(limit) + " " + unit, value <= limit);
}

void Recorder::at_least(const std::string& what, double value, const std::string& unit,
                        double limit) const {
  judge(what, value, unit, "at least " + number(limit) + " " + unit, value >= limit);
}

void Recorder::judge(const std::string& what, double value, const std::string& unit,
                     const std::string& criterion, bool met) const {
  const Verdict verdict = !timing_counts_ ? Verdict::kNotJudged
                          : met           ? Verdict::kMet
                                          : Verdict::kMissed;
  line({"F", what, number(value), unit, criterion, name(verdict)});
}

void Recorder::require(const std::string& what, bool held) const {
  line({"F", what, held ? "1" : "0", "", "must hold",
        name(held ? Verdict::kMet : Verdict::kMissed)});
}

void Recorder::note(const std::string& text) const { line({"N", text}); }
void Recorder::fact(const std::string& what, const std::string& value) const {
  line({"K", what, value});
}
void Recorder::skip(const std::string& reason) const { line({"S", reason}); }
void Recorder::error(const std::string& text) const { line({"E", text}); }
void Recorder::done() const { line({"D"}); }

void Recorder::line(const std::vector<std::string>& cells) const {
  std::string text;
  for (const std::string& cell : cells) {
    if (!text.empty()) text += '\t';
    for (const char c : cell) text += c == '\t' || c == '\n' || c == '\r' ? ' ' : c;
  }
  text += '\n';
  // A reader that has gone ends the experiment by SIGPIPE or its deadline.
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(fd_, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<std::size_t>(written);
  }
}

void read_lines(const std::string& text, Outcome& outcome, const std::string& ended) {
  bool failed = false, skipped = false, done = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> c = split(line);
    if (c[0] == "F") {
      outcome.figures.push_back(
          {c[1], std::strtod(c[2].c_str(), nullptr), c[3], c[4], verdict_of(c[5])});
    } else if (c[0] == "K") {
      outcome.facts.emplace_back(c[1], c[2]);
    } else if (c[0] == "D") {
      done = true;
    } else if (c[0] == "S" || c[0] == "E") {
      (c[0] == "S" ? skipped : failed) = true;
      outcome.reason += (outcome.reason.empty() ? "" : "; ") + c[1];
    } else {
      outcome.notes.push_back(c[0] == "N" ? c[1] : line);
    }
  }
  if (!done) {
    failed = true;
    outcome.reason += (outcome.reason.empty() ? "" : "; ") + ended;
  }
  outcome.state = state_of(outcome, failed, skipped);
}

bool Report::passed() const {
  return std::none_of(outcomes.begin(), outcomes.end(),
                      [](const Outcome& o) { return o.state == State::kFailed; });
}

}  // namespace kvd::gpu
