#include "tests/engines/daemon_process.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ipc/vocabulary/check.hpp"
#include "tests/engines/workbench.hpp"

namespace kvd::test {
namespace {

constexpr std::chrono::seconds kPatience{20};

UniqueFd connect_to(std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (connect(socket.get(), generic, sizeof address) != 0) socket.reset();
  return socket;
}

/// The body of a GET on the daemon's REST port; empty: no answer, or not 200.
std::string http_get(std::uint16_t port, const std::string& path) {
  const UniqueFd socket = connect_to(port);
  if (!socket.valid()) return {};
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  if (write(socket.get(), request.data(), request.size()) < 0) return {};
  std::string answer;
  std::array<char, 4096> bytes;
  while (true) {
    const ssize_t count = read(socket.get(), bytes.data(), bytes.size());
    if (count <= 0) break;
    answer.append(bytes.data(), static_cast<std::size_t>(count));
  }
  const auto body = answer.find("\r\n\r\n");
  const bool ok = answer.find(" 200 ") < answer.find("\r\n");
  return ok && body != std::string::npos ? answer.substr(body + 4) : std::string();
}

/// A port nobody listens on at this moment.
std::uint16_t free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  KVD_CHECK(bind(socket.get(), generic, size) == 0, "no free port");
  KVD_CHECK(getsockname(socket.get(), generic, &size) == 0, "no free port");
  return ntohs(address.sin_port);
}

template <class Condition>
bool poll_until(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

DaemonProcess::DaemonProcess(const std::string& folder, int slabs) : port_(free_port()) {
  std::filesystem::create_directories(folder);
  endpoint_ = folder + "/attach.sock";
  const std::string config = folder + "/kvd.toml";
  std::ofstream(config) << "backend = \"host\"\n"
                        << "[paths]\nruntime_dir = \"" << folder << "\"\n"
                        << "[pool]\nslab = \"" << kSlabBytes << "B\"\nhbm = \""
                        << kSlabBytes * static_cast<std::uint64_t>(slabs) << "B\"\ndram = \""
                        << kSlabBytes << "B\"\nreserve = \"0\"\n"
                        << "[admin]\nport = " << port_ << "\n[metrics]\naddress = \"\"\n";
  process_.emplace(ChildCommand{{program("kvd"), "--config", config}, {}});
  const bool ready = poll_until([&] { return !http_get(port_, "/readyz").empty(); });
  KVD_CHECK(ready, process_->errors().c_str());
}

std::vector<EngineReport> DaemonProcess::engines() const {
  const auto document = nlohmann::json::parse(http_get(port_, "/v1/engines"));
  std::vector<EngineReport> reports;
  for (const auto& engine : document.at("engines")) {
    reports.push_back(
        {engine.at("pid").get<pid_t>(), engine.at("region_bytes").get<std::uint64_t>()});
  }
  return reports;
}

std::uint64_t DaemonProcess::bytes_served_to(pid_t engine) const {
  std::uint64_t bytes = 0;
  for (const EngineReport& report : engines()) {
    if (report.pid == engine) bytes += report.bytes;
  }
  return bytes;
}

std::uint64_t DaemonProcess::engines_died() const {
  const auto status = nlohmann::json::parse(http_get(port_, "/v1/status"));
  return status.at("counters").at("engines_died").get<std::uint64_t>();
}

bool DaemonProcess::wait_until_all_returned() const {
  return poll_until([&] {
    const auto pools = nlohmann::json::parse(http_get(port_, "/v1/pools")).at("pools");
    return std::ranges::all_of(
        pools, [](const auto& tier) { return tier.at("free_bytes") == tier.at("capacity_bytes"); });
  });
}

std::uint64_t mapped_pool_bytes(pid_t process) {
  std::ifstream smaps("/proc/" + std::to_string(process) + "/smaps");
  std::uint64_t kib = 0;
  bool in_pool = false;
  for (std::string line; std::getline(smaps, line);) {
    const bool begins_mapping = std::isxdigit(static_cast<unsigned char>(line.front())) != 0 &&
                                line.find('-') != std::string::npos;
    if (begins_mapping) in_pool = line.find("/memfd:kvd-hbm") != std::string::npos;
    if (in_pool && line.starts_with("Size:")) kib += std::stoull(line.substr(5));
  }
  return kib * 1024;
}

}  // namespace kvd::test
