#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/unit/fakecuda/fake_world.hpp"

namespace kvd::tests {
namespace {

using FaultTest = FakeCuda;
using VersionTest = FakeCuda;
using FaultDeathTest = FakeCuda;

TEST_F(FaultTest, TheNamedCallFailsOnceWithTheNamedCode) {
  start({{"FAKECUDA_FAIL", "cuMemCreate:2:2,cuMemAddressReserve:1"}});
  const auto wanted = prop();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemCreate(&handle, kGranule, &wanted, 0));
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, ::cuMemCreate(&handle, kGranule, &wanted, 0));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemCreate(&handle, kGranule, &wanted, 0));
  CUdeviceptr at = 0;
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, ::cuMemAddressReserve(&at, kGranule, 0, 0, 0));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemAddressReserve(&at, kGranule, 0, 0, 0));
}

TEST_F(FaultTest, VersionsOfAnEntryPointCountTogether) {
  start({{"FAKECUDA_FAIL", "cuStreamDestroy_v2:1:999"}});
  EXPECT_CUDA(CUDA_ERROR_UNKNOWN, ::cuStreamDestroy(stream_));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamDestroy(stream_));
}

TEST_F(FaultTest, NothingWorksBeforeInit) {
  start({{"FAKECUDA_INIT", "803"}});
  EXPECT_CUDA(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, init_);
  int count = 0, version = 0;
  EXPECT_CUDA(CUDA_ERROR_NOT_INITIALIZED, ::cuDeviceGetCount(&count));
  EXPECT_CUDA(CUDA_ERROR_NOT_INITIALIZED, ::cuDevicePrimaryCtxRelease(0));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDriverGetVersion(&version));
  EXPECT_EQ(version, CUDA_VERSION);
}

TEST_F(FaultTest, MachinesWithNoneOrSeveralDevices) {
  start({{"FAKECUDA_DEVICES", "0"}});
  EXPECT_CUDA(CUDA_ERROR_NO_DEVICE, init_);
  start({{"FAKECUDA_DEVICES", "3"}});
  int count = 0;
  CUdevice device = 0;
  CUuuid uuids[2];
  char bus[16] = "", name[4] = "";
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGetCount(&count));
  EXPECT_EQ(count, 3);
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGet(&device, 2));
  EXPECT_CUDA(CUDA_ERROR_INVALID_DEVICE, ::cuDeviceGet(&device, 3));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGetUuid(&uuids[0], 0));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGetUuid(&uuids[1], 1));
  EXPECT_NE(std::memcmp(&uuids[0], &uuids[1], sizeof(CUuuid)), 0);
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGetPCIBusId(bus, sizeof bus, 2));
  EXPECT_STREQ(bus, "0000:03:00.0");
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGetName(name, sizeof name, 0));
  EXPECT_STREQ(name, "fak");
}

TEST_F(FaultTest, AttributesAreThoseOfAServerGpu) {
  int value = -1;
  const auto of = [&](CUdevice_attribute attribute) {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceGetAttribute(&value, attribute, 0));
    return value;
  };
  EXPECT_EQ(of(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT), 3);
  EXPECT_EQ(of(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1);
  EXPECT_EQ(of(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1);
  EXPECT_EQ(of(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 1);
  EXPECT_EQ(of(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), CU_COMPUTEMODE_DEFAULT);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0));
  std::size_t bytes = 0;
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDeviceTotalMem(&bytes, 0));
  EXPECT_EQ(bytes, 64 * kGranule);
}

TEST_F(FaultTest, ErrorsHaveNames) {
  const char* text = nullptr;
  ASSERT_OK(::cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  ASSERT_OK(::cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuGetErrorName(static_cast<CUresult>(998), &text));
  EXPECT_EQ(text, nullptr);
}

TEST_F(FaultTest, TheReportTellsWhatIsAlive) {
  const auto memory = device_memory();
  const HostMemory host(4096);
  pin(host);
  const std::string leaks =
      "\"leaks\":{\"handles\":1,\"mappings\":1,\"reservations\":1,\"registrations\":1,"
      "\"streams\":1,\"events\":0,\"exported_fds\":0}";
  EXPECT_NE(report().find(leaks), std::string::npos) << report();
  drop(memory);
  ASSERT_OK(::cuMemHostUnregister(host.data()));
  ASSERT_OK(::cuDevicePrimaryCtxRelease(0));
  const std::string none =
      "\"leaks\":{\"handles\":0,\"mappings\":0,\"reservations\":0,\"registrations\":0,"
      "\"streams\":0,\"events\":0,\"exported_fds\":0}";
  EXPECT_NE(report().find(none), std::string::npos) << report();
}

void* entry(const char* name, int version, CUdriverProcAddressQueryResult wanted) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_CUDA(CUDA_SUCCESS, ::cuGetProcAddress(name, &found, version, 0, &status));
  EXPECT_EQ(status, wanted) << name << ' ' << version;
  return found;
}

TEST_F(VersionTest, AnEntryPointIsFoundByBaseNameAndVersion) {
  const auto symbol = [](const char* name) { return ::dlsym(RTLD_DEFAULT, name); };
  const auto found = CU_GET_PROC_ADDRESS_SUCCESS;
  const auto too_old = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  EXPECT_EQ(entry("cuMemcpyBatchAsync", 13000, found), symbol("cuMemcpyBatchAsync_v2"));
  EXPECT_EQ(entry("cuMemcpyBatchAsync", 12090, found), symbol("cuMemcpyBatchAsync"));
  EXPECT_EQ(entry("cuMemcpyBatchAsync", 12070, too_old), nullptr);
  EXPECT_EQ(entry("cuCtxSynchronize", 12080, found), symbol("cuCtxSynchronize"));
  EXPECT_EQ(entry("cuCtxSynchronize", 13000, found), symbol("cuCtxSynchronize_v2"));
  EXPECT_EQ(entry("cuStreamWaitValue64", 11070, found), symbol("cuStreamWaitValue64_v2"));
  EXPECT_EQ(entry("cuStreamWaitValue64", 9000, too_old), nullptr) << "the first ABI is not there";
  EXPECT_EQ(entry("cuMemcpyBatchAsync_v2", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND), nullptr);
  void* nothing = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              ::cuGetProcAddress("cuInit", &nothing, CUDA_VERSION + 10, 0, nullptr));
}

TEST_F(VersionTest, AnOlderDriverHasNothingNewer) {
  start({{"FAKECUDA_DRIVER_VERSION", "12060"}});
  int version = 0;
  ASSERT_OK(::cuDriverGetVersion(&version));
  EXPECT_EQ(version, 12060);
  void* nothing = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              ::cuGetProcAddress("cuMemcpyBatchAsync", &nothing, 13000, 0, nullptr));
  EXPECT_EQ(entry("cuMemcpyBatchAsync", 12060, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND), nullptr);
  EXPECT_NE(entry("cuStreamWaitValue64", 11070, CU_GET_PROC_ADDRESS_SUCCESS), nullptr);
}

TEST_F(VersionTest, TheOlderBatchCopyTakesOneArgumentMore) {
  const auto copy = reinterpret_cast<PFN_cuMemcpyBatchAsync_v12080>(
      entry("cuMemcpyBatchAsync", 12080, CU_GET_PROC_ADDRESS_SUCCESS));
  const auto device = device_memory();
  const HostMemory in(kGranule, std::byte{9}), out(kGranule);
  pin(in), pin(out);
  CUdeviceptr to = device.at, from = in.address();
  std::size_t size = kGranule, first = 0, failed = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_OK(copy(&to, &from, &size, 1, &attributes, &first, 1, &failed, stream_));
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{9}));
}

TEST_F(FaultDeathTest, AStrictDriverEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ::setenv("FAKECUDA_STRICT", "1", 1);
        ::fakecuda_reset();
        ::cuInit(0);
        ::cuMemRelease(1234);
      },
      "rule broken: release_unknown_handle");
}

TEST_F(FaultDeathTest, AnEnvironmentThatIsNotUnderstoodEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto with = [](const char* name, const char* value) {
    ::setenv(name, value, 1);
    ::fakecuda_reset();
  };
  EXPECT_EXIT(with("FAKECUDA_HBM_BYTES", "1GiB"), testing::ExitedWithCode(2), "FAKECUDA_HBM_BYTES");
  EXPECT_EXIT(with("FAKECUDA_FAIL", "cuMemCreate"), testing::ExitedWithCode(2), "FAKECUDA_FAIL");
  EXPECT_EXIT(with("FAKECUDA_FAIL", "cuMemCreate:0"), testing::ExitedWithCode(2), "FAKECUDA_FAIL");
  EXPECT_EXIT(with("FAKECUDA_STICKY", "cuInit:1"), testing::ExitedWithCode(2), "FAKECUDA_STICKY");
  EXPECT_EXIT(with("FAKECUDA_STALL", "up"), testing::ExitedWithCode(2), "FAKECUDA_STALL");
  EXPECT_EXIT(with("FAKECUDA_GRANULARITY", "5000"), testing::ExitedWithCode(2),
              "FAKECUDA_GRANULARITY");
}

/// Runs `body` in a forked child and gives its exit code.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(body());
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(FaultTest, AForkedChildHasNoDriver) {
  EXPECT_EQ(in_child([] { return static_cast<int>(::cuInit(0)); }), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(in_child([] { return static_cast<int>(::cuCtxSynchronize()); }),
            CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSynchronize()) << "the parent keeps it";
}

TEST_F(FaultTest, AProcessAppendsItsReportWhenItExits) {
  const std::string path = testing::TempDir() + "fakecuda_report." + std::to_string(::getpid());
  // A process of its own: this program without any test.
  EXPECT_EQ(in_child([&] {
              ::setenv("FAKECUDA_REPORT", path.c_str(), 1);
              const char* arguments[] = {"/proc/self/exe", "--gtest_filter=none", nullptr};
              ::execv("/proc/self/exe", const_cast<char**>(arguments));
              return 1;
            }),
            0);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str().rfind("{\"pid\":", 0), 0u) << text.str();
  EXPECT_EQ(text.str().back(), '\n');
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace kvd::tests
