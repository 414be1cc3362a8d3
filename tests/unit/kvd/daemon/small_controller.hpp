#pragma once

#include <memory>
#include <utility>

#include "kvd/core/controller.hpp"

namespace kvd::daemon {

/// Four slabs of HBM a device and eight of DRAM, of 4 KiB each, for tests of single parts of the
/// daemon.
[[nodiscard]] inline std::unique_ptr<core::Controller> small_controller(std::uint32_t devices = 1) {
  core::Controller::Config config;
  config.hbm.assign(devices, {Tier::kHbm, 4 * kKiB, 4});
  config.dram = {Tier::kDram, 4 * kKiB, 8};
  config.tuning.rotation.b_xfer = 8 * kKiB;
  return core::Controller::create(std::move(config)).value();
}

}  // namespace kvd::daemon
