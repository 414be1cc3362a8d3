#include "kernels/device/host/host_backend.hpp"
#include "tests/contract/device/kept_contract.hpp"
#include "tests/support/faulty/faulty_backend.hpp"

namespace kvd::kernels {
namespace {

std::unique_ptr<DeviceBackend> make_host() {
  static const SteadyClock clock;
  HostConfig config;
  config.populate_threads = 2;
  return HostBackend::create(config, clock).value();
}

std::unique_ptr<DeviceBackend> make_faultless() {
  return FaultyBackend::create(make_host(), {}).value();
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceBackendContract, ::testing::Values(&make_host));
INSTANTIATE_TEST_SUITE_P(Host, MemfdContract, ::testing::Values(&make_host));
INSTANTIATE_TEST_SUITE_P(Host, KeptContract, ::testing::Values(&make_host));
INSTANTIATE_TEST_SUITE_P(Faultless, DeviceBackendContract, ::testing::Values(&make_faultless));
INSTANTIATE_TEST_SUITE_P(Faultless, MemfdContract, ::testing::Values(&make_faultless));
INSTANTIATE_TEST_SUITE_P(Faultless, KeptContract, ::testing::Values(&make_faultless));

}  // namespace
}  // namespace kvd::kernels
