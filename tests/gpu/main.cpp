// kvd-gpu-report: asks the GPU what kvd's design rests on, and writes down what it answered.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/gpu/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peer.hpp"

namespace kvd::gpu {
namespace {

constexpr double kAllSeconds = 380;  // of a whole run; what might end later is left out

struct Options {
  std::string out = "gpu-report";
  std::string only;    ///< "E3,E5"; empty: all
  std::string suites;  ///< results of the test programs
  bool quick = false;
};

int usage(std::FILE* to) {
  std::fprintf(
      to,
      "usage: kvd-gpu-report [--out DIR] [--only E3,E5] [--quick] [--suites FILE]\n"
      "       kvd-gpu-report --which     prints real, fake or none: the driver here\n"
      "Runs the experiments on the first GPU, each in a process of its own with a\n"
      "deadline, and writes DIR/gpu-report.json and DIR/gpu-report.md. Exit status: 0, or\n"
      "1 when a criterion was missed, or 2 when it could not run.\n\n");
  for (const Experiment& e : experiments()) {
    std::fprintf(to, "  %-4s %s\n       %s\n", e.id, e.title, e.criterion);
  }
  return to == stdout ? 0 : 2;
}

bool chosen(const Options& options, const char* id) {
  return options.only.empty() ||
         ("," + options.only + ",").find("," + std::string(id) + ",") != std::string::npos;
}

/// In the child: one experiment, its lines into `fd`.
int run_experiment(const Experiment& experiment, const Options& options, int fd) {
  const bool fake = driver_is_fake();
  const Lab lab{Recorder(fd, !fake), fake, options.quick || fake, options.suites};
  const Status status = experiment.run(lab);
  if (!status.ok()) lab.out.error(status.error().to_string());
  lab.out.done();
  return status.ok() ? 0 : 1;
}

pid_t start(const Experiment& experiment, const Options& options, int fd) {
  const std::string number = std::to_string(fd);
  const char* arguments[] = {"kvd-gpu-report",
                             "--experiment",
                             experiment.id,
                             number.c_str(),
                             "--suites",
                             options.suites.c_str(),
                             options.quick ? "--quick" : nullptr,
                             nullptr};
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::fcntl(fd, F_SETFD, 0);
  ::execv(self_program(), const_cast<char**>(arguments));
  ::_exit(127);
}

/// What the child writes until it closes its end or the deadline comes; true when it closed.
bool read_until(int fd, double deadline, std::string& text) {
  for (;;) {
    const double left = deadline - now_s();
    if (left <= 0) return false;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(left * 1000) + 1) != 1) continue;
    char buffer[4096];
    const ssize_t bytes = ::read(fd, buffer, sizeof buffer);
    if (bytes <= 0) return true;
    text.append(buffer, static_cast<std::size_t>(bytes));
  }
}

Outcome conduct(const Experiment& experiment, const Options& options) {
  Outcome outcome{experiment.id, experiment.title, experiment.criterion, {}, {}, 0, {}, {}, {}};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    outcome.state = State::kFailed;
    outcome.reason = "no pipe: raise the limit of descriptors";
    return outcome;
  }
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const double started = now_s();
  const pid_t pid = start(experiment, options, write_end.get());
  write_end.reset();
  std::string lines;
  const bool closed = read_until(read_end.get(), started + experiment.deadline_s, lines);
  // Its own peers die with it.
  if (!closed && pid > 0) ::kill(pid, SIGKILL);
  int status = 0;
  if (pid > 0) ::waitpid(pid, &status, 0);
  outcome.seconds = now_s() - started;
  const std::string ended =
      !closed ? "ended at its deadline of " + std::to_string(experiment.deadline_s) + " s"
      : WIFSIGNALED(status) ? "ended by signal " + std::to_string(WTERMSIG(status))
                            : "ended with status " + std::to_string(WEXITSTATUS(status));
  read_lines(lines, outcome, ended);
  return outcome;
}

Outcome left_out(const Experiment& experiment, const char* why) {
  return {
      experiment.id, experiment.title, experiment.criterion, State::kSkipped, why, 0, {}, {}, {}};
}

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  if (out.good()) return true;
  std::fprintf(stderr, "kvd-gpu-report: cannot write %s\n", path.c_str());
  return false;
}

int run_all(const Options& options) {
  std::error_code ignored;
  std::filesystem::create_directories(options.out, ignored);
  Report report;
  report.fake = driver_is_fake();
  report.version = KVD_VERSION;
  if (report.fake) std::printf("FAKE DRIVER: no figure of speed means anything.\n");
  const double started = now_s();
  for (const Experiment& experiment : experiments()) {
    const bool late = now_s() - started + experiment.deadline_s > kAllSeconds;
    Outcome outcome = !chosen(options, experiment.id) ? left_out(experiment, "not asked for")
                      : late ? left_out(experiment, "the run's time was used up before it")
                             : conduct(experiment, options);
    std::printf("%-4s %-10s %6.1f s  %s%s%s\n", outcome.id.c_str(), name(outcome.state),
                outcome.seconds, outcome.title.c_str(), outcome.reason.empty() ? "" : ": ",
                outcome.reason.c_str());
    for (const Figure& f : outcome.figures) {
      if (f.verdict == Verdict::kMissed) {
        std::printf("     missed: %s is %g %s, %s\n", f.name.c_str(), f.value, f.unit.c_str(),
                    f.criterion.c_str());
      }
    }
    std::fflush(stdout);
    if (outcome.id == "E1") report.device = outcome.facts;
    if (outcome.id == "E1" && outcome.state == State::kFailed && outcome.facts.empty()) {
      std::fprintf(stderr, "kvd-gpu-report: there is no GPU to ask; nothing is written\n");
      return 2;
    }
    report.outcomes.push_back(std::move(outcome));
  }
  report.seconds = now_s() - started;
  const bool written = write_file(options.out + "/gpu-report.json", to_json(report)) &&
                       write_file(options.out + "/gpu-report.md", to_markdown(report));
  if (!written) return 2;
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
    std::string* text = flag == "--out"      ? &options.out
                        : flag == "--only"   ? &options.only
                        : flag == "--suites" ? &options.suites
                                             : nullptr;
    if (flag == "--quick") {
      options.quick = true;
    } else if (text != nullptr && i + 1 < argc) {
      *text = argv[++i];
    } else {
      std::fprintf(stderr, "kvd-gpu-report: %s is not understood\n", argv[i]);
      return false;
    }
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
