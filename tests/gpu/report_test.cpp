// kvd-gpu-report on the fake driver: every experiment has a status, no function fails, and what the
// report says is what the experiments said.
#include "tests/gpu/report.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/gpu/peers/reap.hpp"
#include "tests/support/patience.hpp"

namespace kvd::gpu {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "kvd-gpu-report-XXXXXX").string();
    path_ = ::mkdtemp(path.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string contents(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int run(const std::string& arguments) {
  const int status = std::system((KVD_GPU_REPORT " " + arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(GpuReport, HasEveryExperimentAndNoFailureOfFunctionOnTheFakeDriver) {
  const Folder folder;
  EXPECT_EQ(run("--quick --out " + folder.path().string()), 0);
  const auto report = nlohmann::json::parse(contents(folder.path() / "gpu-report.json"));
  EXPECT_EQ(report["driver"], "fake driver");
  EXPECT_TRUE(report["passed"]);
  EXPECT_TRUE(report["device"].contains("uuid"));
  const std::set<std::string> known = {"passed", "skipped", "not judged", "recorded"};
  std::set<std::string> ids;
  for (const auto& experiment : report["experiments"]) {
    const std::string status = experiment["status"];
    ids.insert(experiment["id"].get<std::string>());
    EXPECT_TRUE(known.contains(status)) << experiment.dump(1);
    EXPECT_TRUE(status != "skipped" || experiment["reason"] != "") << experiment["id"];
    for (const auto& figure : experiment["figures"]) {
      // On a fake GPU times are not judged, only whether things work.
      EXPECT_TRUE(figure["verdict"] != "met" || figure["criterion"] == "must hold") << figure;
    }
  }
  EXPECT_TRUE(report["complete"]);
  EXPECT_EQ(ids.size(), 32u);
  EXPECT_NE(contents(folder.path() / "gpu-report.md").find("FAKE DRIVER"), std::string::npos);
}

/// The ids of the experiments that a run without time on a GPU does.
std::set<std::string> asked_for(const std::string& arguments) {
  const Folder folder;
  EXPECT_LE(run("--quick " + arguments + " --out " + folder.path().string()), 1);
  std::set<std::string> ids;
  const auto report = nlohmann::json::parse(contents(folder.path() / "gpu-report.json"));
  for (const auto& experiment : report["experiments"]) {
    if (experiment["reason"] != "not asked for") ids.insert(experiment["id"].get<std::string>());
  }
  return ids;
}

TEST(GpuReport, OnlyWhatWasAskedForIsDone) {
  EXPECT_EQ(asked_for("--only E1,E22"), (std::set<std::string>{"E1", "E22"}));
  EXPECT_EQ(run("--part 3"), 2);
}

TEST(GpuReport, IsThereWhenARunIsEndedInItsMiddle) {
  const Folder folder;
  const fs::path file = folder.path() / "gpu-report.json", text = folder.path() / "gpu-report.md";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl(KVD_GPU_REPORT, KVD_GPU_REPORT, "--quick", "--out", folder.path().c_str(), nullptr);
    ::_exit(127);
  }
  EXPECT_TRUE(test::poll_until([&] { return fs::exists(text); }));
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(reap(pid, 30).has_value());
  const auto report = nlohmann::json::parse(contents(file));
  EXPECT_FALSE(report["complete"]);
  EXPECT_EQ(report["experiments"][0]["id"], "E1");
  EXPECT_EQ(report["experiments"][0]["status"], "passed");
  EXPECT_EQ(report["experiments"].size(), 32u);
  EXPECT_EQ(report["experiments"][31]["reason"], "the run ended before it");
  EXPECT_NE(contents(text).find("did not come to its end"), std::string::npos);
}

TEST(GpuReport, DoesNotWaitForAProcessThatDoesNotEnd) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_EQ(reap(pid, 0.05), std::nullopt);
  ::kill(pid, SIGKILL);
  const auto status = reap(pid, 30);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
}

TEST(GpuReport, FailsWhereATestProgramFailed) {
  const Folder folder;
  const fs::path suites = folder.path() / "suites";
  const std::string arguments =
      "--quick --only E16 --out " + folder.path().string() + " --suites " + suites.string();
  std::ofstream(suites) << "a_test 0 12 0 1 0.5\n";
  EXPECT_EQ(run(arguments), 0);
  std::ofstream(suites) << "a_test 1 12 1 0 0.5\n- a_test: Some.Test\n";
  EXPECT_EQ(run(arguments), 1);
  EXPECT_NE(contents(folder.path() / "gpu-report.md").find("Some.Test"), std::string::npos);
}

TEST(GpuReport, RunsOnADriverOlderThanTheToolkit) {
  const Folder folder;
  ASSERT_EQ(::setenv("FAKECUDA_DRIVER_VERSION", "12080", 1), 0);
  EXPECT_EQ(run("--quick --only E14 --out " + folder.path().string()), 0);
  ::unsetenv("FAKECUDA_DRIVER_VERSION");
  EXPECT_NE(contents(folder.path() / "gpu-report.md").find("bursts of 100 us: kvd's rate"),
            std::string::npos);
}

// 12.8 has batches in another form, 12.6 has none.
TEST(GpuReport, OlderDriversAnswerMistakesAsTheTableSays) {
  for (const char* version : {"12080", "12060"}) {
    const Folder folder;
    ASSERT_EQ(::setenv("FAKECUDA_DRIVER_VERSION", version, 1), 0);
    EXPECT_EQ(run("--quick --only E22 --out " + folder.path().string()), 0) << version;
    ::unsetenv("FAKECUDA_DRIVER_VERSION");
  }
}

TEST(GpuReport, WithoutADeviceThereIsNoReport) {
  const Folder folder;
  ASSERT_EQ(::setenv("FAKECUDA_DEVICES", "0", 1), 0);
  EXPECT_EQ(run("--out " + folder.path().string()), 2);
  ::unsetenv("FAKECUDA_DEVICES");
  EXPECT_FALSE(fs::exists(folder.path() / "gpu-report.json"));
}

Outcome outcome_of(const std::string& lines, const std::string& ended = "") {
  Outcome outcome;
  read_lines(lines, outcome, ended);
  return outcome;
}

/// What a Recorder writes.
class Lines {
 public:
  Lines() { EXPECT_EQ(::pipe(ends_), 0); }
  int fd() const { return ends_[1]; }
  std::string take() {
    ::close(ends_[1]);
    char buffer[4096];
    const ssize_t bytes = ::read(ends_[0], buffer, sizeof buffer);
    ::close(ends_[0]);
    return {buffer, static_cast<std::size_t>(std::max<ssize_t>(bytes, 0))};
  }

 private:
  int ends_[2];
};

TEST(GpuReport, AMissedCriterionFailsTheExperiment) {
  Lines lines;
  const Recorder recorder(lines.fd(), true);
  recorder.at_most("latency", 11, "us", 10);
  recorder.at_least("rate", 2, "GB/s", 1);
  recorder.note("with\ttabs\nand lines");
  recorder.done();
  const Outcome outcome = outcome_of(lines.take());
  EXPECT_EQ(outcome.state, State::kFailed);
  ASSERT_EQ(outcome.figures.size(), 2u);
  EXPECT_EQ(outcome.figures[0].verdict, Verdict::kMissed);
  EXPECT_EQ(outcome.figures[0].criterion, "at most 10 us");
  EXPECT_EQ(outcome.figures[1].verdict, Verdict::kMet);
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_EQ(outcome.notes[0], "with tabs and lines");
}

TEST(GpuReport, TimesAreNotJudgedOnAFakeDriverButFunctionIs) {
  Lines lines;
  const Recorder recorder(lines.fd(), false);
  recorder.at_most("latency", 11, "us", 10);
  recorder.done();
  EXPECT_EQ(outcome_of(lines.take()).state, State::kNotJudged);
  Lines more;
  Recorder(more.fd(), false).require("bytes are right", false);
  EXPECT_EQ(outcome_of(more.take() + "D\n").state, State::kFailed);
}

TEST(GpuReport, AnExperimentThatWasEndedFailsAndKeepsItsFigures) {
  const Outcome outcome = outcome_of("F\trate\t3\tGB/s\t\trecorded\n", "ended at its deadline");
  EXPECT_EQ(outcome.state, State::kFailed);
  EXPECT_EQ(outcome.reason, "ended at its deadline");
  EXPECT_EQ(outcome.figures.size(), 1u);
}

}  // namespace
}  // namespace kvd::gpu
