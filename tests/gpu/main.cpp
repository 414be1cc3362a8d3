// kvd-gpu-report: asks the GPU what kvd's design rests on, and writes down what it answered.
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/gpu/conduct.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"

namespace kvd::gpu {
namespace {

constexpr double kCallSeconds = 540;  // of a call: what needs longer than is left is left out

struct Options {
  std::string out = "gpu-report";
  std::string only;     ///< "E3,E5"; empty: all
  std::string part;     ///< "1" or "2"; empty: both
  std::string seconds;  ///< of the whole run; empty: as long as a call may take
  Conduct how;
};

const char* part_name(const Experiment& e) {
  constexpr const char* kNames[] = {"1", "2", "1 and 2", "-"};
  return kNames[static_cast<std::size_t>(e.part)];
}

int usage(std::FILE* to) {
  std::fprintf(
      to,
      "usage: kvd-gpu-report [--out DIR] [--part 1|2] [--only E3,E5] [--seconds S] [--quick]\n"
      "                      [--suites FILE]\n"
      "       kvd-gpu-report --which     prints real, fake or none: the driver here\n"
      "Runs the experiments on the first GPU, each in a process of its own with a\n"
      "deadline, and writes DIR/gpu-report.json and DIR/gpu-report.md after each of them. What\n"
      "needs longer than is left of S (540) is left out. Exit status: 0, or 1 when a criterion\n"
      "was missed, or 2 when it could not run.\n\n");
  for (const Experiment& e : experiments()) {
    std::fprintf(to, "  %-4s part %s, %3d s  %s\n       %s\n", e.id, part_name(e), e.need_s,
                 e.title, e.criterion);
  }
  return to == stdout ? 0 : 2;
}

bool chosen(const Options& options, const Experiment& e) {
  if (!options.only.empty()) {
    return ("," + options.only + ",").find("," + std::string(e.id) + ",") != std::string::npos;
  }
  if (e.part == Part::kAsked) return options.how.quick;  // a dry run of all
  return options.part.empty() || e.part == Part::kBoth || options.part == part_name(e);
}

/// In the child: one experiment, its lines into `fd`.
int run_experiment(const Experiment& experiment, const Options& options, int fd) {
  const bool fake = driver_is_fake();
  const Lab lab{Recorder(fd, !fake), fake, options.how.quick || fake, options.how.suites};
  const Status status = experiment.run(lab);
  if (!status.ok()) lab.out.error(status.error().to_string());
  lab.out.done();
  return status.ok() ? 0 : 1;
}

/// Whole or not at all: the run may be ended at any time.
bool write_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  std::ofstream out(fresh);
  out << text;
  out.close();
  if (out.good() && std::rename(fresh.c_str(), path.c_str()) == 0) return true;
  std::fprintf(stderr, "kvd-gpu-report: cannot write %s\n", path.c_str());
  return false;
}

bool write(const Report& report, const Options& options) {
  return write_file(options.out + "/gpu-report.json", to_json(report)) &&
         write_file(options.out + "/gpu-report.md", to_markdown(report));
}

void print(const Outcome& outcome) {
  std::printf("%-4s %-10s %6.1f s  %s%s%s\n", outcome.id.c_str(), name(outcome.state),
              outcome.seconds, outcome.title.c_str(), outcome.reason.empty() ? "" : ": ",
              outcome.reason.c_str());
  for (const Figure& f : outcome.figures) {
    if (f.verdict != Verdict::kMissed) continue;
    std::printf("     missed: %s is %g %s, %s\n", f.name.c_str(), f.value, f.unit.c_str(),
                f.criterion.c_str());
  }
  std::fflush(stdout);
}

Report unstarted(const Options& options) {
  Report report;
  report.fake = driver_is_fake();
  report.version = KVD_VERSION;
  for (const Experiment& e : experiments()) {
    report.outcomes.push_back(
        outcome_of(e, chosen(options, e) ? "the run ended before it" : "not asked for"));
  }
  return report;
}

int run_all(const Options& options) {
  std::error_code ignored;
  std::filesystem::create_directories(options.out, ignored);
  Report report = unstarted(options);
  if (report.fake) std::printf("FAKE DRIVER: no figure of speed means anything.\n");
  const double started = now_s();
  const double limit = options.seconds.empty() ? kCallSeconds : std::atof(options.seconds.c_str());
  Holder holder;
  for (std::size_t i = 0; i < experiments().size(); ++i) {
    const Experiment& experiment = experiments()[i];
    if (!chosen(options, experiment)) continue;
    Outcome& outcome = report.outcomes[i];
    const double left = started + limit - now_s();
    // What a fake driver needs is not what a GPU does.
    if (!report.fake && left < static_cast<double>(experiment.need_s)) {
      outcome.reason = "the run's time was used up before it";
      continue;
    }
    // Once the GPU is known to be there; E4 is about what happens when nobody holds it.
    if (std::string_view(experiment.id) == "E4") holder.release();
    outcome = conduct(experiment, options.how, std::min<double>(experiment.deadline_s, left));
    holder.release();
    holder.hold();
    print(outcome);
    if (outcome.id == "E1") report.device = outcome.facts;
    if (outcome.id == "E1" && outcome.state == State::kFailed && outcome.facts.empty()) {
      std::fprintf(stderr, "kvd-gpu-report: there is no GPU to ask; nothing is written\n");
      return 2;
    }
    report.seconds = now_s() - started;
    if (!write(report, options)) return 2;
  }
  report.complete = true;
  if (!write(report, options)) return 2;
  std::printf("%s/gpu-report.md\n", options.out.c_str());
  return report.passed() ? 0 : 1;
}

int print_driver() {
  const auto driver = cuda::Driver::load();
  if (!driver.ok()) std::fprintf(stderr, "%s\n", driver.error().message.c_str());
  std::printf("%s\n", !driver.ok() ? "none" : driver_is_fake() ? "fake" : "real");
  return 0;
}

const Experiment* find(std::string_view id) {
  for (const Experiment& e : experiments()) {
    if (id == e.id) return &e;
  }
  return nullptr;
}

/// False for an argument that is not understood.
bool parse(int argc, char** argv, int from, Options& options) {
  for (int i = from; i < argc; ++i) {
    const std::string_view flag = argv[i];
    std::string* text = flag == "--out"       ? &options.out
                        : flag == "--only"    ? &options.only
                        : flag == "--suites"  ? &options.how.suites
                        : flag == "--part"    ? &options.part
                        : flag == "--seconds" ? &options.seconds
                                              : nullptr;
    if (flag == "--quick") {
      options.how.quick = true;
    } else if (text != nullptr && i + 1 < argc) {
      *text = argv[++i];
    } else {
      std::fprintf(stderr, "kvd-gpu-report: %s is not understood\n", argv[i]);
      return false;
    }
  }
  if (!options.part.empty() && options.part != "1" && options.part != "2") {
    std::fprintf(stderr, "kvd-gpu-report: --part is 1 or 2\n");
    return false;
  }
  return true;
}

int run(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--peer") == 0) return run_peer(std::atoi(argv[2]));
  const bool child = argc >= 4 && std::strcmp(argv[1], "--experiment") == 0;
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return usage(stdout);
  if (argc == 2 && std::strcmp(argv[1], "--which") == 0) return print_driver();
  Options options;
  if (!parse(argc, argv, child ? 4 : 1, options)) return usage(stderr);
  if (child) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Experiment* experiment = find(argv[2]);
    return experiment == nullptr ? 2 : run_experiment(*experiment, options, std::atoi(argv[3]));
  }
  return run_all(options);
}

}  // namespace
}  // namespace kvd::gpu

int main(int argc, char** argv) { return kvd::gpu::run(argc, argv); }
