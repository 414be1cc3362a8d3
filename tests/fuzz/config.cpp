// Any text as the configuration's file and flags, as a copy table and as lines: what is accepted is
// printed as a file that reads back to the same.
#include "kvd/daemon/config/config.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <sstream>

#include "ipc/vocabulary/bounded_input.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

using daemon::Invocation;

/// A file in memory that has a name.
class File {
 public:
  explicit File(std::string_view text) : fd_(::memfd_create("kvd-fuzz", MFD_CLOEXEC)) {
    const auto written = ::write(fd_, text.data(), text.size());
    expect(written == static_cast<ssize_t>(text.size()), "no memory for a file");
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] std::string name() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

Result<Invocation> parse(std::string_view text, const std::vector<std::string>& flags) {
  const File file(text);
  const std::string name = "--config=" + file.name();
  std::vector<const char*> arguments{"kvd", name.c_str()};
  for (const std::string& flag : flags) arguments.push_back(flag.c_str());
  const char* const environment[] = {nullptr};
  return daemon::parse_invocation(static_cast<int>(arguments.size()), arguments.data(),
                                  environment);
}

void check_config(std::string_view text, const std::vector<std::string>& flags) {
  const auto read = parse(text, flags);
  if (!read.ok()) {
    expect(!read.error().message.empty(), "a fault is not named");
    return;
  }
  const bool runs = read->action == Invocation::Action::kRun;
  if (!runs) return;
  expect(daemon::faults(read->config).empty(), "a faulty configuration was accepted");
  const std::string printed = daemon::to_toml(read->config);
  const auto again = parse(printed, {});
  expect(again.ok(), printed + "\n" + (again.ok() ? "" : again.error().message));
  expect(daemon::to_toml(again->config) == printed, printed);
}

void check_lines(const std::string& text) {
  std::istringstream in(text);
  std::string line, all;
  const Bytes most = 1 * kKiB;
  for (auto more = read_bounded_line(in, line, "text", most); more.ok() && *more;
       more = read_bounded_line(in, line, "text", most)) {
    expect(line.size() <= most.size(), "a line is longer than it may be");
    all += line + "\n";
  }
  expect(text.starts_with(all.substr(0, all.empty() ? 0 : all.size() - 1)), "other lines");
}

}  // namespace

std::vector<Data> seeds() {
  daemon::Config config;
  std::vector<Data> all(4);
  add_text(all[0], daemon::to_toml(config));
  config.domains.resize(2);
  config.domains[0] = {.name = "a", .uids = {1000, 1001}, .hbm_guarantee = 64 * kMiB};
  config.devices = {{"0"}, {"1"}};
  config.tuning.slo["chat"] = {};
  add_text(all[1], daemon::to_toml(config));
  add_text(all[2], "[pool]\nhbm = \"1GiB\"\n\"a\".b = [1, 2]\n");
  add_text(all[2], std::string_view("\0--pool.dram=2GiB\0--log.level\0warning", 37));
  add_text(all[3], "a.a.\"x\".b\1 = 1\n");
  return all;
}

void run(View input) {
  const std::string text = text_of(input);
  std::istringstream parts(text);
  std::string file, flag;
  std::getline(parts, file, '\0');
  std::vector<std::string> flags;
  while (std::getline(parts, flag, '\0')) {
    if (!flag.starts_with("--config")) flags.push_back(flag);
  }
  // The file only: a fault for each of thousands of flags would take all the time, and tell
  // nothing.
  check_config(expanded(file), flags);
  check_lines(text);
}

}  // namespace kvd::fuzz
