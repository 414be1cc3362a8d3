#include "tests/lab/tests/browser.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace kvd::sim::testing {
namespace fs = std::filesystem;
namespace {

constexpr int kPatienceMs = 60'000;

[[noreturn]] void become(const std::vector<std::string>& arguments, const fs::path& out,
                         const fs::path& home) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // its helpers die with it
  const int file = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int nothing = ::open("/dev/null", O_RDWR);
  ::dup2(nothing, 0);
  ::dup2(file, 1);
  ::dup2(nothing, 2);
  ::setenv("HOME", home.c_str(), 1);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

std::optional<fs::path> find_browser() {
  if (const char* given = std::getenv("KVD_CHROMIUM")) return fs::path(given);
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      const fs::path candidate = fs::path(folder) / name;
      if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
  }
  return std::nullopt;
}

int run_browser(const fs::path& browser, const fs::path& scratch, const fs::path& out,
                std::vector<std::string> arguments) {
  const std::vector<std::string> usual = {browser.string(),
                                          "--headless",
                                          "--no-sandbox",
                                          "--disable-gpu",
                                          "--disable-quic",
                                          "--no-first-run",
                                          "--disable-sync",
                                          "--disable-background-networking",
                                          "--disable-dev-shm-usage",
                                          "--disable-component-update",
                                          "--hide-scrollbars",
                                          "--user-data-dir=" + (scratch / "browser").string()};
  arguments.insert(arguments.begin(), usual.begin(), usual.end());
  const pid_t child = ::fork();
  if (child == 0) become(arguments, out, scratch);
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  pollfd ended{fd, POLLIN, 0};
  const bool in_time = ::poll(&ended, 1, kPatienceMs) == 1;
  if (!in_time) ::kill(-child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(fd);
  return in_time && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace kvd::sim::testing
