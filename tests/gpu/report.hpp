#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvd::gpu {

/// What became of one criterion.
enum class Verdict : std::uint8_t { kMet, kMissed, kNotJudged, kRecorded };
[[nodiscard]] const char* name(Verdict verdict);

/// One measured or observed number; `criterion` is empty where none applies.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::string criterion;
  Verdict verdict = Verdict::kRecorded;
};

enum class State : std::uint8_t { kPassed, kFailed, kSkipped, kNotJudged, kRecorded };
[[nodiscard]] const char* name(State state);

/// All that is known of one experiment.
struct Outcome {
  std::string id, title, criterion;
  State state = State::kSkipped;
  std::string reason;  ///< of a failure or of having been skipped
  double seconds = 0;
  std::vector<Figure> figures;
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> facts;
};

/// How an experiment says what it found: line by line through a pipe, so that one that is ended on
/// its deadline leaves what it had.
/// Owner: one thread; the descriptor stays the caller's.
class Recorder {
 public:
  /// `timing_counts`: whether figures of speed mean anything on this driver.
  Recorder(int fd, bool timing_counts) : fd_(fd), timing_counts_(timing_counts) {}

  void figure(const std::string& name, double value, const std::string& unit) const;
  /// Criteria of speed: not judged on a fake driver.
  void at_most(const std::string& name, double value, const std::string& unit, double limit) const;
  void at_least(const std::string& name, double value, const std::string& unit, double limit) const;
  /// A criterion of function: judged everywhere.
  void require(const std::string& what, bool held) const;
  void note(const std::string& text) const;
  void fact(const std::string& name, const std::string& value) const;
  /// The rest of the experiment, or all of it, cannot be done here.
  void skip(const std::string& reason) const;
  void error(const std::string& text) const;
  /// The last word of an experiment that came to its end.
  void done() const;

 private:
  void judge(const std::string& name, double value, const std::string& unit,
             const std::string& criterion, bool met) const;
  void line(const std::vector<std::string>& cells) const;

  int fd_;
  bool timing_counts_;
};

/// Takes a Recorder's lines apart again. `ended`: what the lines do not tell, such as "hung".
/// Lines that are not understood are kept as notes.
void read_lines(const std::string& text, Outcome& outcome, const std::string& ended);

/// The whole run.
struct Report {
  bool fake = false;
  std::string version;
  std::vector<std::pair<std::string, std::string>> device;  ///< facts of E1
  std::vector<Outcome> outcomes;
  double seconds = 0;
  bool complete = false;  ///< the run came to its end

  [[nodiscard]] bool passed() const;
};

[[nodiscard]] std::string to_json(const Report& report);
[[nodiscard]] std::string to_markdown(const Report& report);

}  // namespace kvd::gpu
