#include "kernels/device/cuda/driver/driver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/error.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "kernels/device/host/host_memory.hpp"
#include "tests/contract/device/device_fixture.hpp"
#include "tests/unit/kernels/device/cuda/fake_driver.hpp"

namespace kvd::kernels::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLibrary = "libcuda.so.1";

// How many entries are looked up until `member`, itself included.
int lookup_of(const std::string& member) {
  int count = 0, found = 0;
#define KVD_COUNT(name, entry, version, required) \
  ++count;                                        \
  if (member == #name) found = count;
  KVD_CUDA_ENTRIES(KVD_COUNT)
#undef KVD_COUNT
  return member.empty() ? count : found;
}

std::string nth_lookup_fails(int n) { return "cuGetProcAddress:" + std::to_string(n) + ":1"; }

TEST(Driver, EveryEntryIsThere) {
  const FakeDriver fake;
  const auto driver = Driver::load();
  ASSERT_TRUE(driver.ok()) << driver.error().to_string();
#define KVD_EXPECT_ENTRY(member, entry, version, required) \
  EXPECT_NE((*driver)->member, nullptr) << #entry;
  KVD_CUDA_ENTRIES(KVD_EXPECT_ENTRY)
#undef KVD_EXPECT_ENTRY
  EXPECT_EQ((*driver)->memcpy_batch_async_12080, nullptr) << "the newer form is there";
  EXPECT_GE((*driver)->version(), 12000);
  EXPECT_EQ(Driver::load().value(), *driver) << "one a process";
}

TEST(Driver, WithoutALibraryItIsUnsupported) {
  const auto driver = Driver::open("libcuda-of-no-machine.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(driver.error().message, HasSubstr("libcuda-of-no-machine.so.1"));
  EXPECT_THAT(driver.error().message, HasSubstr("--backend host"));
}

TEST(Driver, AnotherLibraryIsNoDriver) {
  const auto driver = Driver::open("libm.so.6");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(driver.error().message, HasSubstr("cuGetProcAddress_v2"));
}

// Build machines have such a library: it loads, and fails at every call.
TEST(Driver, TheStubOfTheToolkitIsNamed) {
  const auto driver = Driver::open(KVD_CUDA_STUB);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(driver.error().message, HasSubstr("STUB_LIBRARY (34)"));
  EXPECT_THAT(driver.error().message, HasSubstr("LD_LIBRARY_PATH"));
}

struct InitCase {
  int result;
  ErrorCode code;
  const char* remedy;
};

class DriverInit : public ::testing::TestWithParam<InitCase> {};

TEST_P(DriverInit, AFailureIsOneLineWithARemedy) {
  const FakeDriver fake("FAKECUDA_INIT=" + std::to_string(GetParam().result));
  const auto driver = Driver::open(kLibrary);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, GetParam().code);
  EXPECT_THAT(driver.error().message, HasSubstr("(" + std::to_string(GetParam().result) + ")"));
  EXPECT_THAT(driver.error().message, HasSubstr(GetParam().remedy));
  EXPECT_THAT(driver.error().message, Not(HasSubstr("\n")));
}
INSTANTIATE_TEST_SUITE_P(Results, DriverInit,
                         ::testing::Values(InitCase{100, ErrorCode::kUnsupported,
                                                    "CUDA_VISIBLE_DEVICES"},
                                           InitCase{34, ErrorCode::kUnsupported, "stub"},
                                           InitCase{803, ErrorCode::kDeviceError, "reboot"},
                                           InitCase{802, ErrorCode::kUnavailable, "fabricmanager"},
                                           InitCase{999, ErrorCode::kDeviceError, "restart kvd"}));

// By version of the driver: the batch of 13.0, that of 12.8, none.
TEST(Driver, OfAnOlderCudaIsAskedForNothingNewer) {
  for (const int version : {12000, 12080, 13000}) {
    const FakeDriver fake("FAKECUDA_DRIVER_VERSION=" + std::to_string(version));
    const auto driver = Driver::open(kLibrary);
    ASSERT_TRUE(driver.ok()) << driver.error().to_string();
    EXPECT_EQ((*driver)->version(), version);
    EXPECT_EQ((*driver)->memcpy_batch_async != nullptr, version == 13000);
    EXPECT_EQ((*driver)->memcpy_batch_async_12080 != nullptr, version == 12080);
    EXPECT_NE((*driver)->stream_wait_value64, nullptr);
  }
}

TEST(Driver, AMissingEntryThatIsNeededIsNamed) {
  const FakeDriver fake("FAKECUDA_FAIL=" + nth_lookup_fails(lookup_of("mem_import")));
  const auto driver = Driver::open(kLibrary);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(driver.error().message, HasSubstr("cuMemImportFromShareableHandle of CUDA 10.2"));
}

TEST(Driver, AMissingEntryThatIsOptionalIsNull) {
  const FakeDriver fake("FAKECUDA_FAIL=" + nth_lookup_fails(lookup_of("stream_write_value64")));
  const auto driver = Driver::open(kLibrary);
  ASSERT_TRUE(driver.ok()) << driver.error().to_string();
  EXPECT_EQ((*driver)->stream_write_value64, nullptr);
  EXPECT_NE((*driver)->stream_wait_value64, nullptr);
}

/// What a driver offers for batches of copies, by how many lookups of it fail.
class BatchForms : public ::testing::TestWithParam<int> {
 protected:
  static std::string environment() {
    std::string fail;
    if (GetParam() >= 1) fail = nth_lookup_fails(lookup_of("memcpy_batch_async"));
    if (GetParam() >= 2) fail += "," + nth_lookup_fails(lookup_of("") + 1);
    return "FAKECUDA_FAIL=" + fail;
  }
};

// 13.0's batch, 12.8's with its argument more, none at all: the same bytes arrive.
TEST_P(BatchForms, CopiesMoveTheirBytes) {
  const FakeDriver fake(environment());
  const auto opened = Driver::open(kLibrary);
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  const Driver& driver = **opened;
  EXPECT_EQ(driver.memcpy_batch_async != nullptr, GetParam() == 0);
  EXPECT_EQ(driver.memcpy_batch_async_12080 != nullptr, GetParam() == 1);

  const auto context = PrimaryContext::retain(driver, find_device(driver, {}).value());
  ASSERT_TRUE(context.ok());
  const ScopedCurrent current(*context);
  const auto memory = PhysicalMemory::create(driver, context->device(), kMiB * 2);
  const auto range = AddressRange::reserve(driver, kMiB * 2);
  ASSERT_TRUE(memory.ok() && range.ok());
  const auto mapping = Mapping::map(range->address(), *memory);
  ASSERT_TRUE(mapping.ok());
  ASSERT_TRUE(
      grant_access(driver, range->address(), kMiB * 2, context->device(), Access::kReadWrite).ok());
  const auto host = HostMemory::create({"test", kMiB * 2, PagePreference::kSmall, {}, 1});
  ASSERT_TRUE(host.ok());
  const auto registration = HostRegistration::make(driver, host->address(), kMiB * 2);
  ASSERT_TRUE(registration.ok());
  const auto stream = Stream::create(driver);
  ASSERT_TRUE(stream.ok());
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(host->address()), kMiB.size() * 2);
  fill_pattern(bytes.first(kMiB.size()), 3);

  // Copies two pieces each, and back to the other half.
  const std::size_t half = kMiB.size() / 2;
  const CUdeviceptr device = range->address();
  CopyList in{
      {device, device + half}, {host->address(), host->address() + half}, {half, half}, kMiB};
  CopyList out{{host->address() + 2 * half, host->address() + 3 * half},
               {device, device + half},
               {half, half},
               kMiB};
  ASSERT_EQ(stream->copy(in), CUDA_SUCCESS);
  ASSERT_EQ(stream->copy(out), CUDA_SUCCESS);
  ASSERT_EQ(stream->drain(std::chrono::seconds(20)), CUDA_SUCCESS);

  EXPECT_TRUE(has_pattern(bytes.subspan(kMiB.size()), 3));
  bytes[kMiB.size() + 5] ^= std::byte{1};
  EXPECT_FALSE(has_pattern(bytes.subspan(kMiB.size()), 3));
}
INSTANTIATE_TEST_SUITE_P(MissingForms, BatchForms, ::testing::Values(0, 1, 2));

TEST(CudaError, SaysWhatTheCallsAfterItAreWorth) {
  EXPECT_EQ(severity(CUDA_SUCCESS), Severity::kNone);
  EXPECT_EQ(severity(CUDA_ERROR_OUT_OF_MEMORY), Severity::kTransient);
  for (const CUresult call : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
                              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED}) {
    EXPECT_EQ(severity(call), Severity::kCall) << call;
  }
  for (const CUresult fatal : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
                               CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_UNKNOWN}) {
    EXPECT_EQ(severity(fatal), Severity::kFatal) << fatal;
  }
}

TEST(CudaError, NamesTheCallTheResultAndTheRemedy) {
  const FakeDriver fake;
  const Driver& driver = *Driver::load().value();
  const Error memory = error_of(driver, CUDA_ERROR_OUT_OF_MEMORY, "allocating 5 bytes");
  EXPECT_EQ(memory.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(memory.message, HasSubstr("allocating 5 bytes: CUDA_ERROR_OUT_OF_MEMORY (2)"));
  EXPECT_THAT(memory.message, HasSubstr("nvidia-smi"));
  const Error dead = error_of(driver, CUDA_ERROR_LAUNCH_FAILED, "copying");
  EXPECT_EQ(dead.code, ErrorCode::kDeviceError);
  EXPECT_THAT(dead.message, HasSubstr("restart kvd"));
  EXPECT_EQ(error_of(driver, CUDA_ERROR_NOT_PERMITTED, "x").code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(error_of(driver, CUDA_ERROR_NOT_SUPPORTED, "x").code, ErrorCode::kUnsupported);
  EXPECT_THAT(error_of(driver, static_cast<CUresult>(321), "x").message, HasSubstr("(321)"));
}

}  // namespace
}  // namespace kvd::kernels::cuda
