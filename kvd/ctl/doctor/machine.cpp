#include <dlfcn.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/ctl/doctor/facts.hpp"

namespace kvd::ctl::doctor {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::uint64_t number(std::string_view text, int base = 10) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

FileFacts look_at_file(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {path, {}, 0};
  return {path, found.st_mode, found.st_uid};
}

SocketState state_of(int error) {
  if (error == 0 || error == EAGAIN) return SocketState::kAnswers;
  if (error == ENOENT || error == ENOTDIR) return SocketState::kMissing;
  return error == EACCES || error == EPERM ? SocketState::kForbidden : SocketState::kStale;
}

/// A connection that says nothing: kvd drops it when it is closed.
SocketFacts look_at_socket(const std::string& path, int type) {
  SocketFacts facts{path, SocketState::kMissing, 0, 0};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return facts;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool connected =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  facts.state = state_of(connected ? 0 : errno);
  const FileFacts file = look_at_file(path);
  if (file.mode && !S_ISSOCK(*file.mode)) facts.state = SocketState::kNoSocket;
  ucred who{};
  socklen_t size = sizeof who;
  if (connected && ::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) {
    facts.pid = who.pid;
    facts.uid = who.uid;
  }
  return facts;
}

std::uint64_t limit(const std::string& word) {
  return word == "unlimited" ? kUnlimited : number(word);
}

/// A line of /proc/PID/limits: "Max open files   1024   1048576   files".
void read_limit(const std::string& line, ProcessFacts& facts) {
  constexpr std::string_view kFiles = "Max open files";
  constexpr std::string_view kLocked = "Max locked memory";
  std::string soft, hard;
  if (line.starts_with(kFiles)) {
    std::istringstream(line.substr(kFiles.size())) >> soft >> hard;
    facts.files = limit(hard);
  } else if (line.starts_with(kLocked)) {
    std::istringstream(line.substr(kLocked.size())) >> soft >> hard;
    facts.locked = limit(soft);
  }
}

/// Read from a line of /proc/PID/stat, whose second field may hold anything in its brackets.
std::optional<bool> realtime(const std::string& stat) {
  constexpr int kPolicy = 41;  // of proc_pid_stat(5), counted from 1
  const std::size_t end = stat.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(end + 1));
  std::string field;
  for (int i = 3; i <= kPolicy; ++i) fields >> field;
  if (!fields) return std::nullopt;
  return field == std::to_string(SCHED_FIFO) || field == std::to_string(SCHED_RR);
}

ProcessFacts look_at_process(const std::string& root, pid_t daemon) {
  ProcessFacts facts;
  facts.is_daemon = daemon != 0;
  const std::string folder = root + "/proc/" + (daemon != 0 ? std::to_string(daemon) : "self");
  std::ifstream limits(folder + "/limits");
  for (std::string line; std::getline(limits, line);) read_limit(line, facts);
  std::ifstream status(folder + "/status");
  constexpr std::string_view kLabel = "CapEff:\t";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kLabel)) facts.capabilities = number(line.substr(kLabel.size()), 16);
  }
  if (facts.is_daemon) facts.realtime = realtime(first_line(folder + "/stat"));
  return facts;
}

PageFacts look_at_pages(const std::string& root) {
  const std::string memory = root + "/sys/kernel/mm/";
  const std::string huge = memory + "hugepages/hugepages-2048kB/";
  const std::uint64_t free = number(first_line(huge + "free_hugepages"));
  const std::uint64_t promised = number(first_line(huge + "resv_hugepages"));
  return {free > promised ? free - promised : 0,
          first_line(memory + "transparent_hugepage/shmem_enabled")};
}

/// The first word of the form "580.65.06".
std::string driver_version(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool numeric = word.find_first_not_of("0123456789.") == std::string::npos;
    if (numeric && word.find('.') != std::string::npos) return word;
  }
  return "";
}

DriverFacts look_at_driver(const std::string& root) {
  DriverFacts facts;
  facts.version = driver_version(first_line(root + "/proc/driver/nvidia/version"));
  if (facts.version.empty()) return facts;
  facts.may_open_gpu = ::access((root + "/dev/nvidiactl").c_str(), R_OK | W_OK) == 0;
  facts.has_library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
  return facts;
}

}  // namespace

Facts look(const Places& places) {
  Facts facts;
  facts.user = ::geteuid();
  const std::string folder = std::filesystem::path(places.attach).parent_path();
  facts.folder = look_at_file(folder.empty() ? "." : folder);
  facts.token = look_at_file(facts.folder.path + "/admin.token");
  facts.attach = look_at_socket(places.attach, SOCK_SEQPACKET);
  facts.command = look_at_socket(places.command, SOCK_STREAM);
  facts.process = look_at_process(places.root, facts.attach.pid);
  facts.pages = look_at_pages(places.root);
  facts.driver = look_at_driver(places.root);
  return facts;
}

}  // namespace kvd::ctl::doctor
