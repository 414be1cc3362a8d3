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

/// What backs most of a tier.
std::string page_kind(const mover::SlabStore& slabs, Tier tier) {
  using kernels::PageKind;
  PageKind most = PageKind::kSmall;
  for (const PageKind kind : {PageKind::kHugetlb, PageKind::kTransparentHuge, PageKind::kDevice}) {
    if (slabs.bytes_backed_by(tier, kind) > slabs.bytes_backed_by(tier, most)) most = kind;
  }
  return name(most);
}

}  // namespace

admin::DaemonInfo Daemon::info() {
  admin::DaemonInfo info;
  info.version = KVD_VERSION;
  info.boot_id = hex(boot_);
  info.uptime = clock_.now() - started_;
  info.backend = backend_->kind();
  info.gpu = gpu_;
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    info.page_kinds[static_cast<std::size_t>(tier)] = page_kind(*slabs_, tier);
  }
  info.attach_endpoint = config_.attach_socket;
  info.command_endpoint = config_.command_socket;
  if (!config_.metrics_address.empty()) {
    info.metrics_endpoint = "http://" + config_.metrics_address + ":" +
                            std::to_string(config_.metrics_port) + "/metrics";
  }
  return info;
}

}  // namespace kvd::daemon
