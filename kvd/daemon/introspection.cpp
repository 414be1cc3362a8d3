#include <algorithm>

#include "kvd/daemon/daemon.hpp"

/// What the daemon says about itself.
namespace kvd::daemon {

namespace {

std::string hex(const Id128& id) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : id.bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace

admin::DaemonInfo Daemon::info() {
  admin::DaemonInfo info;
  info.version = KVD_VERSION;
  info.boot_id = hex(boot_);
  info.uptime = clock_.now() - started_;
  info.backend = backend_->kind();
  info.gpu = gpu_;
  std::copy(page_kinds_.begin(), page_kinds_.end(), std::begin(info.page_kinds));
  info.attach_endpoint = config_.attach_socket;
  info.command_endpoint = config_.command_socket;
  if (!config_.metrics_address.empty()) {
    info.metrics_endpoint = "http://" + config_.metrics_address + ":" +
                            std::to_string(config_.metrics_port) + "/metrics";
  }
  return info;
}

}  // namespace kvd::daemon
