#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvd::bench {

/// One figure. `floor` is the same work written as short as it can be, and measured interleaved in
/// the same run; `ratio` is value / floor. Both stay empty where the limit is absolute.
struct Row {
  std::string name;
  double value = 0;
  std::optional<double> floor;
  std::optional<double> ratio;
  std::string unit;
};

/// The arguments after the benchmark's name on the command line, without `--json`.
struct Arguments {
  bool json = false;
  std::vector<std::string> rest;

  /// The number after `flag`, or `otherwise` where the flag is absent. Errors: a flag without a
  /// number ends the program with a usage message.
  [[nodiscard]] double number(std::string_view flag, double otherwise) const;
  /// The text after `flag`; none: the flag is absent. Errors: a flag without a text ends the
  /// program with a usage message.
  [[nodiscard]] std::optional<std::string> text(std::string_view flag) const;
};

/// A benchmark: its name, a line for --help, a function that returns the exit status, and what
/// `kvd-bench NAME --help` says where a line is not enough.
struct Benchmark {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
  const char* help = nullptr;
};

/// Puts a benchmark into the list. Each benchmark is one file, in a namespace NAME_benchmark
/// (several files are compiled as one, and each has a run() and options of its own), with this at
/// its end:
/// const Registration registration{{"copy", "what it measures; options", run}};
struct Registration {
  explicit Registration(Benchmark benchmark);
};

/// Prints rows as an aligned table, or as a JSON array with --json. Returns the exit status 0.
int print_rows(const std::vector<Row>& rows, bool json);

/// The middle value, or the upper one of two. Precondition: not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Runs value() and floor() in turn and makes a row of their medians, so that a change of the
/// machine's speed during the run affects both.
template <class Value, class Floor>
Row interleaved(std::string row, std::string unit, int repetitions, Value value, Floor floor) {
  std::vector<double> values, floors;
  for (int i = 0; i < repetitions; ++i) {
    values.push_back(value());
    floors.push_back(floor());
  }
  const double v = median(values), f = median(floors);
  return {std::move(row), v, f, v / f, std::move(unit)};
}

}  // namespace kvd::bench
