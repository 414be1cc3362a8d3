#include "tests/engines/daemon_process.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ipc/vocabulary/check.hpp"
#include "tests/engines/loopback_http.hpp"
#include "tests/engines/workbench.hpp"
#include "tests/support/free_port.hpp"

namespace kvd::test {
namespace {

constexpr std::chrono::seconds kPatience{60};

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
  config_ = folder + "/kvd.toml";
  std::ofstream(config_) << "backend = \"host\"\n"
                         << "[paths]\nruntime_dir = \"" << folder << "\"\n"
                         << "[pool]\nslab = \"" << kSlabBytes << "B\"\nhbm = \""
                         << kSlabBytes * static_cast<std::uint64_t>(slabs) << "B\"\ndram = \""
                         << kSlabBytes << "B\"\nreserve = \"0\"\n"
                         << "[admin]\nport = " << port_ << "\n[metrics]\naddress = \"\"\n";
  start();
}

void DaemonProcess::restart() {
  process_->signal(SIGKILL);
  KVD_CHECK(process_->wait().has_value(), "the killed kvd is still there");
  start();
}

void DaemonProcess::start() {
  process_.emplace(ChildCommand{{program("kvd"), "--config", config_}, {}});
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

bool DaemonProcess::comes_to_know(pid_t engine) const {
  return poll_until([&] {
    const std::vector<EngineReport> known = engines();
    return std::ranges::find(known, engine, &EngineReport::pid) != known.end();
  });
}

bool DaemonProcess::comes_to_serve(pid_t engine, std::uint64_t bytes) const {
  return poll_until([&] { return bytes_served_to(engine) == bytes; });
}

std::uint64_t DaemonProcess::counter(const char* name) const {
  const auto status = nlohmann::json::parse(http_get(port_, "/v1/status"));
  return status.at("counters").at(name).get<std::uint64_t>();
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
