// E16: what tests/gpu/run.sh found when it ran the test programs.
#include <fstream>
#include <sstream>

#include "tests/gpu/experiments/experiments.hpp"

namespace kvd::gpu {

// A line a program: NAME STATUS PASSED FAILED SKIPPED SECONDS; then "-" and names of failed tests.
Status suites(const Lab& lab) {
  if (lab.suites.empty()) {
    lab.out.skip("the test programs are run by tests/gpu/run.sh, which says so with --suites");
    return {};
  }
  std::ifstream in(lab.suites);
  if (!in) return make_error(ErrorCode::kNotFound, "no file " + lab.suites);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, status;
    int passed = 0, failed = 0, skipped = 0;
    if (line.starts_with("- ")) {
      lab.out.note(line.substr(2));
    } else if (words >> name >> status >> passed >> failed >> skipped) {
      lab.out.figure(name + ": passed", passed, "tests");
      if (skipped > 0) lab.out.figure(name + ": skipped", skipped, "tests");
      lab.out.require(name + ": none failed", status == "0" && failed == 0 && passed > 0);
    }
  }
  return {};
}

}  // namespace kvd::gpu
