#include "tests/engines/daemon_process.hpp"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ipc/vocabulary/check.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

nlohmann::json ask(const KvdProcess& kvd, const std::string& path) {
  return nlohmann::json::parse(kvd.get(path).body);
}

}  // namespace

DaemonProcess::DaemonProcess(int slabs) {
  settings_.slab = settings_.dram = std::to_string(kSlabBytes) + "B";
  settings_.hbm = std::to_string(kSlabBytes * static_cast<std::uint64_t>(slabs)) + "B";
  start();
}

void DaemonProcess::restart() {
  process_->signal(SIGKILL);
  KVD_CHECK(process_->wait().has_value(), "the killed kvd is still there");
  start();
}

void DaemonProcess::start() {
  process_.emplace(folder_, settings_);
  KVD_CHECK(process_->wait_ready(), process_->log().c_str());
}

std::vector<EngineReport> DaemonProcess::engines() const {
  const auto document = ask(*process_, "/v1/engines");
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
  const auto status = ask(*process_, "/v1/status");
  return status.at("counters").at(name).get<std::uint64_t>();
}

bool DaemonProcess::wait_until_all_returned() const {
  return poll_until([&] {
    const auto pools = ask(*process_, "/v1/pools").at("pools");
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
