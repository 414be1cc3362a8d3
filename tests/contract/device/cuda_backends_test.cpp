#include "kernels/device/cuda/cuda_backend.hpp"
#include "tests/contract/device/kept_contract.hpp"
#include "tests/support/faulty/faulty_backend.hpp"

namespace kvd::kernels {
namespace {

const SteadyClock kSteady;

std::unique_ptr<DeviceBackend> make(const CudaConfig& config) {
  auto backend = CudaBackend::create(config, kSteady);
  if (backend.ok()) return std::move(backend).value();
  ADD_FAILURE() << backend.error().to_string();
  return nullptr;
}

std::unique_ptr<DeviceBackend> make_cuda() { return make({}); }

// Many bursts to a batch.
std::unique_ptr<DeviceBackend> make_bursty() {
  CudaConfig config;
  config.burst = kKiB * 100;
  return make(config);
}

// DRAM slabs that are the driver's own. A real one may have none, then the tests are skipped.
std::unique_ptr<DeviceBackend> make_on_node() {
  CudaConfig config;
  config.dram = DramKind::kAuto;
  auto backend = CudaBackend::create(config, kSteady);
  return backend.ok() && (*backend)->dram_fallback().empty() ? std::move(*backend) : nullptr;
}

std::unique_ptr<DeviceBackend> make_faultless() {
  return FaultyBackend::create(make_cuda(), {}).value();
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceBackendContract, ::testing::Values(&make_cuda));
INSTANTIATE_TEST_SUITE_P(Cuda, MemfdContract, ::testing::Values(&make_cuda));
INSTANTIATE_TEST_SUITE_P(Cuda, KeptContract, ::testing::Values(&make_cuda));
INSTANTIATE_TEST_SUITE_P(CudaInSmallBursts, DeviceBackendContract, ::testing::Values(&make_bursty));
INSTANTIATE_TEST_SUITE_P(CudaInSmallBursts, MemfdContract, ::testing::Values(&make_bursty));
INSTANTIATE_TEST_SUITE_P(CudaOnHostNuma, DeviceBackendContract, ::testing::Values(&make_on_node));
INSTANTIATE_TEST_SUITE_P(CudaOnHostNuma, KeptContract, ::testing::Values(&make_on_node));
INSTANTIATE_TEST_SUITE_P(CudaFaultless, DeviceBackendContract, ::testing::Values(&make_faultless));
INSTANTIATE_TEST_SUITE_P(CudaFaultless, MemfdContract, ::testing::Values(&make_faultless));
INSTANTIATE_TEST_SUITE_P(CudaFaultless, KeptContract, ::testing::Values(&make_faultless));

}  // namespace
}  // namespace kvd::kernels
