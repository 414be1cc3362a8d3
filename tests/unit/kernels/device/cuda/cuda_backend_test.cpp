#include "kernels/device/cuda/cuda_backend.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "tests/contract/device/device_fixture.hpp"
#include "tests/unit/kernels/device/cuda/fake_driver.hpp"

/// Tests what the contract of all backends leaves open: errors of the driver, lost devices, what is
/// kept and what is given back. Copies themselves: tests/contract/device.
namespace kvd::kernels {
namespace {

using cuda::FakeDriver;
using ::testing::HasSubstr;

constexpr Direction kIn = Direction::kHostToDevice;
constexpr Direction kOut = Direction::kDeviceToHost;
const SteadyClock kSteady;

/// A page as the daemon shares it with a client, mapped for the scope.
class SharedPage {
 public:
  static constexpr std::size_t kSize = 4096;
  SharedPage()
      : bytes_(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~SharedPage() { ::munmap(bytes_, kSize); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  [[nodiscard]] void* start() const { return bytes_; }
  [[nodiscard]] std::atomic<std::uint64_t>& word(std::size_t i) const {
    return static_cast<std::atomic<std::uint64_t>*>(bytes_)[i];
  }

 private:
  void* bytes_;
};

constexpr Bytes kPage{SharedPage::kSize};

/// A clock that stands still, counts how often it is read, and can hold up its reader.
class WatchedClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    const std::lock_guard lock(gate_);
    ++reads_;
    return time_.now();
  }
  void advance(Nanoseconds by) { time_.advance(by); }
  /// While this lives, reads of the clock do not return.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(gate_); }
  /// A queue reads the clock over and over only while it waits for the device.
  void wait_for_reads(int more) const {
    const int enough = reads_ + more;
    for (int i = 0; i < 20'000 && reads_ < enough; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(reads_, enough);
  }

 private:
  mutable std::mutex gate_;
  mutable std::atomic<int> reads_{0};
  ManualClock time_;
};

// Without the trial of batches, so that tests can count the driver's calls.
std::unique_ptr<CudaBackend> make(CudaConfig config = {}, const Clock& clock = kSteady) {
  if (config.copies == cuda::CopyChoice::kAuto) config.copies = cuda::CopyChoice::kBatch;
  auto backend = CudaBackend::create(config, clock);
  if (backend.ok()) return std::move(backend).value();
  ADD_FAILURE() << backend.error().to_string();
  return nullptr;
}

CopyBatch fenced(CopyBatch batch, std::atomic<std::uint64_t>& word) {
  batch.fence = {&word, batch.ticket.value};
  return batch;
}

Completion copy(DeviceBackend& backend, CopyBatch batch) {
  EXPECT_TRUE(backend.submit(std::move(batch)).ok());
  const auto completed = wait_for(backend, 1);
  return completed.empty() ? Completion{} : completed.front();
}

ErrorCode code_of(const Result<Slab>& slab) {
  return slab.ok() ? ErrorCode::kOk : slab.error().code;
}

/// Lets time pass until there is a completion: a copy counts as stuck from the moment the queue
/// has looked at the clock.
std::vector<Completion> wait_while_time_passes(DeviceBackend& backend, WatchedClock& clock,
                                               std::size_t count) {
  std::vector<Completion> completed;
  for (int i = 0; i < 20'000 && completed.size() < count; ++i) {
    clock.advance(std::chrono::seconds(31));
    if (readable(backend.completion_fd(), std::chrono::milliseconds(1))) backend.poll(completed);
  }
  EXPECT_EQ(completed.size(), count);
  return completed;
}

TEST(CudaBackend, MakesNoContextBeforeItsFirstSlab) {
  const FakeDriver fake("FAKECUDA_FAIL=cuDevicePrimaryCtxRetain:1:46");
  auto backend = make();
  ASSERT_TRUE(backend);
  EXPECT_EQ(backend->context_bytes(), Bytes(0));
  EXPECT_EQ(code_of(backend->create_slab(Tier::kHbm, kMiB * 2)), ErrorCode::kUnavailable);

  slab_or_die(*backend, Tier::kHbm, kMiB * 2);  // the next try finds the device free
}

TEST(CudaBackend, TellsWhatOfTheDeviceWasInUseWhenItsContextWasMade) {
  const FakeDriver fake;
  const auto other = cuda::PhysicalMemory::create(*cuda::Driver::load().value(), 0, kMiB * 6);
  ASSERT_TRUE(other.ok());
  auto backend = make();
  slab_or_die(*backend, Tier::kHbm, kMiB * 4);
  EXPECT_EQ(backend->context_bytes(), kMiB * 6);
}

TEST(CudaBackend, IsTheDeviceThatWasChosen) {
  const FakeDriver fake("FAKECUDA_DEVICES=3");
  const cuda::Driver& driver = *cuda::Driver::load().value();
  const auto devices = cuda::list_devices(driver).value();
  ASSERT_EQ(devices.size(), 3u);
  for (const std::string& text : {std::string("2"), "GPU-" + devices[2].uuid_text()}) {
    CudaConfig config;
    config.device = cuda::parse_device(text).value();
    const auto identity = make(config)->identity();
    EXPECT_EQ(identity, (DeviceIdentity{devices[2].uuid, devices[2].name})) << text;
  }
  CudaConfig absent;
  absent.device.ordinal = 3;
  const auto backend = CudaBackend::create(absent, kSteady);
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(backend.error().message, HasSubstr(devices[1].uuid_text()));
  for (const char* bad : {"-1", "1x", "GPU-12", "GPU-00000000-0000-0000-0000-00000000000g"}) {
    EXPECT_FALSE(cuda::parse_device(bad).ok()) << bad;
  }
}

TEST(CudaBackend, LeavesNothingBehind) {
  const FakeDriver fake;
  {
    SharedPage page;
    auto backend = make();
    const Slab device = slab_or_die(*backend, Tier::kHbm, kMiB * 4);
    const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 4);
    ASSERT_TRUE(backend->adopt_page(page.start(), kPage).ok());
    copy(*backend, fenced(batch_of(1, kIn, {{device.address, host.address, kMiB}}), page.word(0)));
    const auto exported = backend->export_slab(device.handle);
    ASSERT_TRUE(exported.ok());
    EXPECT_NE(::fcntl(exported->get(), F_GETFD) & FD_CLOEXEC, 0);
    backend->release_page(page.start(), {});
    backend.reset();
  }
  FakeDriver::expect_no_leaks();
}

// Every driver call on the way to a slab fails once: the first time while the engine is made, the
// second time for the slab itself.
class FailingCall : public ::testing::TestWithParam<std::string> {};

TEST_P(FailingCall, CostsTheSlabAndNothingElse) {
  const FakeDriver fake("FAKECUDA_FAIL=" + GetParam() + ":1:1," + GetParam() + ":3:1");
  auto backend = make();
  const auto create_both = [&] {
    auto hbm = backend->create_slab(Tier::kHbm, kMiB * 2);
    auto dram = backend->create_slab(Tier::kDram, kMiB * 2);
    return static_cast<int>(hbm.ok()) + static_cast<int>(dram.ok());
  };
  int made = 0;
  for (int i = 0; i < 3; ++i) made += create_both();
  EXPECT_GE(made, 3);
  EXPECT_LE(made, 5);
  EXPECT_TRUE(backend->health().ok());
  const DeviceCounters counters = backend->counters();
  EXPECT_EQ(counters.slabs_created, static_cast<std::uint64_t>(made));
  backend.reset();
  FakeDriver::expect_no_leaks();
}
INSTANTIATE_TEST_SUITE_P(Calls, FailingCall,
                         ::testing::Values("cuMemCreate", "cuMemAddressReserve", "cuMemMap",
                                           "cuMemSetAccess", "cuMemsetD8Async", "cuMemHostRegister",
                                           "cuMemHostGetDevicePointer"));

TEST(CudaBackend, AStreamThatCannotBeMadeIsAnErrorAndLeaksNothing) {
  for (const char* call : {"cuStreamCreateWithPriority:3:1", "cuEventCreate:3:1"}) {
    const FakeDriver fake(std::string("FAKECUDA_FAIL=") + call);
    auto backend = make();
    EXPECT_FALSE(backend->create_slab(Tier::kDram, kMiB * 2).ok());
    EXPECT_TRUE(backend->create_slab(Tier::kDram, kMiB * 2).ok());
    backend.reset();
    FakeDriver::expect_no_leaks();
  }
}

TEST(CudaBackend, MemoryThatIsNotThereIsToldAtOnceAndTakenLater) {
  const FakeDriver fake("FAKECUDA_HBM_BYTES=" + std::to_string((kMiB * 8).value));
  auto backend = make();
  const Slab first = slab_or_die(*backend, Tier::kHbm, kMiB * 4);
  const auto second = backend->create_slab(Tier::kHbm, kMiB * 4);
  ASSERT_EQ(code_of(second), ErrorCode::kOutOfMemory);
  EXPECT_THAT(second.error().message, HasSubstr(std::to_string((kMiB * 4).value)));
  EXPECT_TRUE(backend->health().ok());

  ASSERT_TRUE(backend->destroy_slab(first.handle).ok());
  EXPECT_EQ(code_of(backend->create_slab(Tier::kHbm, kMiB * 4)), ErrorCode::kOk);
}

CudaConfig dram_as(DramKind kind) {
  CudaConfig config;
  config.dram = kind;
  return config;
}

TEST(CudaBackend, DramOnANumaNodeNeedsNoRegistration) {
  const FakeDriver fake;
  for (const DramKind kind : {DramKind::kHostNuma, DramKind::kAuto}) {
    auto backend = make(dram_as(kind));
    EXPECT_EQ(backend->dram_fallback(), "");
    const Slab device = slab_or_die(*backend, Tier::kHbm, kMiB * 2);
    const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 2);
    EXPECT_EQ(host.pages, PageKind::kDevice);
    EXPECT_THAT(FakeDriver::report(), HasSubstr("\"registrations\":3,")) << "zeros, gates";
    auto* bytes = reinterpret_cast<unsigned char*>(host.address);
    EXPECT_EQ(bytes[0], 0);
    EXPECT_EQ(bytes[host.size.size() - 1], 0) << "holds zeros, unlike what the driver makes";
    std::fill_n(bytes, kMiB.size(), std::uint8_t{0x5c});
    copy(*backend, batch_of(1, kIn, {{device.address, host.address, kMiB}}));
    const std::uintptr_t back = host.address + kMiB.size();
    copy(*backend, batch_of(2, kOut, {{back, device.address, kMiB}}));
    EXPECT_TRUE(std::equal(bytes, bytes + kMiB.size(), bytes + kMiB.size()));
    EXPECT_THAT(FakeDriver::report(), HasSubstr("\"pageable_copies\":0"));

    const auto shared = backend->export_slab(host.handle);
    ASSERT_TRUE(shared.ok());
    EXPECT_TRUE(
        cuda::PhysicalMemory::import_fd(*cuda::Driver::load().value(), shared->get(), host.size)
            .ok());
  }
  FakeDriver::expect_no_leaks();
}

TEST(CudaBackend, DramOfAnEarlierProcessIsUsedAgain) {
  const FakeDriver driver;
  auto before = make(dram_as(DramKind::kMemfd));
  const Slab old = slab_or_die(*before, Tier::kDram, kMiB * 2);
  auto* bytes = reinterpret_cast<std::byte*>(old.address);
  bytes[77] = std::byte{42};
  auto memory = before->export_slab(old.handle);
  auto zeroed = before->export_slab(old.handle);
  auto small = before->export_slab(old.handle);
  ASSERT_TRUE(memory.ok() && zeroed.ok() && small.ok());
  before.reset();

  auto backend = make(dram_as(DramKind::kMemfd));
  ASSERT_TRUE(backend->reopens_slabs());
  EXPECT_EQ(backend->reopen_slab(Tier::kDram, kMiB * 4, std::move(*small), false).error().code,
            ErrorCode::kInvalidArgument);
  const auto again = backend->reopen_slab(Tier::kDram, kMiB * 2, std::move(*memory), false);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(reinterpret_cast<const std::byte*>(again->address)[77], std::byte{42});
  const Slab hbm = slab_or_die(*backend, Tier::kHbm, kMiB * 2);
  copy(*backend, batch_of(1, kIn, {{hbm.address, again->address, kMiB}}));
  EXPECT_THAT(FakeDriver::report(), HasSubstr("\"pageable_copies\":0")) << "it is registered";
  ASSERT_TRUE(backend->destroy_slab(again->handle).ok());
  const auto empty = backend->reopen_slab(Tier::kDram, kMiB * 2, std::move(*zeroed), true);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(reinterpret_cast<const std::byte*>(empty->address)[77], std::byte{0});
}

/// HBM of a process that has ended, with a pattern; only its descriptor is left.
UniqueFd hbm_of_before(Bytes size, unsigned salt) {
  auto before = make();
  const Slab old = slab_or_die(*before, Tier::kHbm, size);
  const Slab host = slab_or_die(*before, Tier::kDram, size);
  fill_pattern(bytes_of(host), salt);
  copy(*before, batch_of(1, kIn, {{old.address, host.address, size}}));
  auto memory = before->export_slab(old.handle);
  EXPECT_TRUE(memory.ok());
  return std::move(*memory);
}

bool shows_pattern(DeviceBackend& backend, const Slab& slab, Bytes length, unsigned salt) {
  bool right = false;
  const Status read = backend.read_slab(slab.address, length,
                                        [&](auto bytes) { right = has_pattern(bytes, salt); });
  return read.ok() && right;
}

TEST(CudaBackend, HbmOfAnEarlierProcessIsCopied) {
  const FakeDriver driver;
  UniqueFd memory = hbm_of_before(kMiB * 4, 5);
  auto backend = make();
  const std::vector<SlabExtent> extents = {{Bytes(0), kMiB * 3}};
  const auto made = backend->copy_slab(kMiB * 4, memory, extents);
  ASSERT_TRUE(made.ok()) << made.error().message;
  memory.reset();
  EXPECT_TRUE(shows_pattern(*backend, *made, kMiB * 3, 5));
  EXPECT_FALSE(shows_pattern(*backend, *made, kMiB * 4, 5)) << "nobody asked for the last";
  EXPECT_THAT(FakeDriver::report(), HasSubstr("\"pageable_copies\":0"));
  EXPECT_THAT(FakeDriver::report(), HasSubstr("\"exported_fds\":1")) << "that of what was made";
  backend.reset();
  FakeDriver::expect_no_leaks();
}

// The old slab, the zeros, and the new one.
TEST(CudaBackend, ACopyTakesASlabMoreForAMomentAndNothingWhereThereIsNoRoom) {
  const FakeDriver driver("FAKECUDA_HBM_BYTES=" + std::to_string((kMiB * 9).value));
  const std::vector<SlabExtent> all = {{Bytes(0), kMiB * 4}};
  UniqueFd memory = hbm_of_before(kMiB * 4, 6);
  auto backend = make();
  EXPECT_EQ(code_of(backend->copy_slab(kMiB * 4, memory, all)), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(backend->health().ok());
  EXPECT_EQ(backend->counters().live[0], Bytes(0));
  memory.reset();
  EXPECT_EQ(code_of(backend->create_slab(Tier::kHbm, kMiB * 4)), ErrorCode::kOk);
}

// Every driver call of a copy fails once: the one before are those of the earlier process, and of
// what this one makes first.
class FailingCopy : public ::testing::TestWithParam<std::string> {};

TEST_P(FailingCopy, IsAnErrorAndLeavesNothing) {
  const FakeDriver driver("FAKECUDA_FAIL=" + GetParam());
  UniqueFd memory = hbm_of_before(kMiB * 2, 8);
  auto backend = make();
  const std::vector<SlabExtent> extents = {{Bytes(0), kKiB * 4}, {kMiB, kMiB}};
  EXPECT_FALSE(backend->copy_slab(kMiB * 2, memory, extents).ok());
  EXPECT_TRUE(backend->health().ok());
  EXPECT_EQ(backend->counters().live[0], Bytes(0));
  EXPECT_EQ(backend->counters().slab_failures, 1u);
  const auto made = backend->copy_slab(kMiB * 2, memory, extents);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(shows_pattern(*backend, *made, kKiB * 4, 8));
  memory.reset();
  backend.reset();
  FakeDriver::expect_no_leaks();
}
INSTANTIATE_TEST_SUITE_P(Calls, FailingCopy,
                         ::testing::Values("cuMemImportFromShareableHandle:1:1",
                                           "cuMemAddressReserve:4:1", "cuMemAddressReserve:5:1",
                                           "cuMemMap:4:1", "cuMemMap:5:1", "cuMemSetAccess:4:1",
                                           "cuMemSetAccess:5:1", "cuMemCreate:4:1",
                                           "cuMemsetD8Async:4:1", "cuMemcpyAsync:1:1",
                                           "cuMemcpyAsync:2:1"));

TEST(CudaBackend, ADeviceThatIsLostWhileItCopiesKeepsBothMemoriesMapped) {
  const FakeDriver driver("FAKECUDA_STICKY=cuMemcpyAsync:2:719");
  const UniqueFd memory = hbm_of_before(kMiB * 2, 9);
  auto backend = make();
  const std::vector<SlabExtent> extents = {{Bytes(0), kMiB}, {kMiB, kMiB}};
  EXPECT_EQ(code_of(backend->copy_slab(kMiB * 2, memory, extents)), ErrorCode::kDeviceError);
  EXPECT_EQ(backend->health().code(), ErrorCode::kDeviceError);
  EXPECT_THAT(FakeDriver::report(), HasSubstr("\"mappings\":3")) << "the zeros, and both";
}

TEST(CudaBackend, APieceThatCannotBeReadIsAnErrorAndNobodyLooks) {
  const FakeDriver driver("FAKECUDA_FAIL=cuMemcpyDtoHAsync:3:1");
  auto backend = make();
  const Slab slab = slab_or_die(*backend, Tier::kHbm, kMiB * 4);
  bool looked = false;
  const auto look = [&](std::span<const std::byte> bytes) { looked = all_zero(bytes); };
  EXPECT_FALSE(backend->read_slab(slab.address, kMiB * 4, look).ok());
  EXPECT_FALSE(looked);
  EXPECT_TRUE(backend->health().ok());
  EXPECT_TRUE(backend->read_slab(slab.address, kMiB * 4, look).ok());
  EXPECT_TRUE(looked);
  backend.reset();
  FakeDriver::expect_no_leaks();
}

TEST(CudaBackend, WhereTheHostHasNoRoomNothingIsRead) {
  const FakeDriver driver("FAKECUDA_FAIL=cuMemHostRegister:4:1,cuStreamCreateWithPriority:8:1");
  auto backend = make();
  const Slab slab = slab_or_die(*backend, Tier::kHbm, kMiB * 4);
  const auto look = [](std::span<const std::byte> bytes) { EXPECT_TRUE(all_zero(bytes)); };
  EXPECT_FALSE(backend->read_slab(slab.address, kMiB, look).ok()) << "no stream";
  EXPECT_FALSE(backend->read_slab(slab.address, kMiB, look).ok()) << "nothing is pinned";
  EXPECT_TRUE(backend->read_slab(slab.address, kMiB, look).ok());
  EXPECT_TRUE(backend->read_slab(slab.address, kMiB * 3, look).ok()) << "which takes more room";
  EXPECT_THAT(FakeDriver::report(), HasSubstr("\"registrations\":4,")) << "zeros, gates, and it";
  backend.reset();
  FakeDriver::expect_no_leaks();
}

TEST(CudaBackend, DramOfTheDriverEndsWithItsProcess) {
  const FakeDriver driver;
  auto backend = make(dram_as(DramKind::kHostNuma));
  const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 2);
  EXPECT_FALSE(backend->reopens_slabs());
  auto memory = backend->export_slab(host.handle);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(backend->reopen_slab(Tier::kDram, kMiB * 2, std::move(*memory), false).error().code,
            ErrorCode::kUnsupported);
}

TEST(CudaBackend, DramOnANumaNodeIsNotInheritedByForks) {
  const FakeDriver fake;
  auto backend = make(dram_as(DramKind::kHostNuma));
  const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 2);
  auto* const bytes = reinterpret_cast<void*>(host.address);
  ASSERT_EQ(::msync(bytes, 4096, MS_ASYNC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(::msync(bytes, 4096, MS_ASYNC) == 0 ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child sees the slab";
}

// Like a container that forbids memory policies, and like a device that has no such memory.
TEST(CudaBackend, DramIsMemfdsWhereTheNumaNodeIsRefused) {
  for (const char* why :
       {"FAKECUDA_FAIL=cuMemCreate:1:800,cuMemCreate:2:800", "FAKECUDA_HOST_NUMA=0"}) {
    const FakeDriver fake(why);
    const auto refused = CudaBackend::create(dram_as(DramKind::kHostNuma), kSteady);
    ASSERT_FALSE(refused.ok()) << why;
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("HOST_NUMA"));

    auto backend = make(dram_as(DramKind::kAuto));
    EXPECT_EQ(backend->dram_fallback(), refused.error().message) << why;
    EXPECT_NE(slab_or_die(*backend, Tier::kDram, kMiB * 2).pages, PageKind::kDevice);
    EXPECT_EQ(make()->dram_fallback(), "") << "nobody asked for it";
  }
}

TEST(CudaBackend, AnExportedSlabIsTheSameMemory) {
  const FakeDriver fake;
  auto backend = make();
  const Slab device = slab_or_die(*backend, Tier::kHbm, kMiB * 2);
  const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 2);
  fill_pattern(bytes_of(host), 7);
  copy(*backend, batch_of(1, kIn, {{device.address, host.address, kMiB * 2}}));
  auto fd = backend->export_slab(device.handle);
  ASSERT_TRUE(fd.ok());

  // Maps the slab as a client does, at an address of its own.
  const cuda::Driver& driver = *cuda::Driver::load().value();
  const auto chosen = cuda::find_device(driver, {backend->identity()->uuid, 0}).value();
  const auto context = cuda::PrimaryContext::retain(driver, chosen);
  ASSERT_TRUE(context.ok());
  const cuda::ScopedCurrent current(*context);
  auto range = cuda::AddressRange::reserve(driver, kMiB * 2);
  ASSERT_TRUE(range.ok());
  auto memory = std::make_optional(cuda::PhysicalMemory::import_fd(driver, fd->get(), kMiB * 2));
  ASSERT_TRUE((*memory).ok()) << (*memory).error().to_string();
  fd->reset();
  auto mapping = cuda::Mapping::map(range->address(), **memory);
  memory.reset();  // the mapping keeps it alive
  ASSERT_TRUE(mapping.ok());
  ASSERT_TRUE(
      cuda::grant_access(driver, range->address(), kMiB * 2, context->device(), cuda::Access::kRead)
          .ok());
  std::vector<std::byte> seen(device.size.size());
  ASSERT_EQ(driver.memcpy_dtoh_async(seen.data(), range->address(), seen.size(), nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(driver.ctx_synchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(has_pattern(seen, 7));
  EXPECT_FALSE(has_pattern(seen, 8));
}

// An export takes the driver .6 ms and more, and slabs are handed out on the control thread.
TEST(CudaBackend, ASlabIsExportedAsItIsMadeAndNeverAgain) {
  const FakeDriver fake("FAKECUDA_FAIL=cuMemExportToShareableHandle:2:999");
  auto backend = make();
  const Slab slab = slab_or_die(*backend, Tier::kHbm, kMiB * 2);
  for (int engine = 0; engine < 3; ++engine) {
    EXPECT_TRUE(backend->export_slab(slab.handle).ok());
  }
  EXPECT_FALSE(backend->create_slab(Tier::kHbm, kMiB * 2).ok()) << "that one cannot be shared";
  backend.reset();
  FakeDriver::expect_no_leaks();
}

TEST(CudaBackend, ADescriptorThatIsNoSlabIsRefused) {
  const FakeDriver fake;
  auto backend = make();
  const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 2);
  const auto fd = backend->export_slab(host.handle);
  const auto memory =
      cuda::PhysicalMemory::import_fd(*cuda::Driver::load().value(), fd->get(), kMiB * 2);
  ASSERT_FALSE(memory.ok());
  EXPECT_THAT(memory.error().message, HasSubstr("importing"));
}

/// A driver that has batches and does not do them, or whose device would need other addresses.
struct BatchCase {
  const char* environment;
  const char* fallback;  // empty: batches work
};

class BatchTrial : public ::testing::TestWithParam<BatchCase> {};
INSTANTIATE_TEST_SUITE_P(Drivers, BatchTrial,
                         ::testing::Values(BatchCase{"FAKECUDA_SEED=1", ""},
                                           BatchCase{"FAKECUDA_FAIL=cuMemcpyBatchAsync:1:1", "(1)"},
                                           BatchCase{"FAKECUDA_FAIL=cuMemcpyBatchAsync:2:801",
                                                     "(801)"},
                                           BatchCase{"FAKECUDA_HOST_ADDRESSES=0", "attribute 91"}));

TEST_P(BatchTrial, CopiesGoTheWayThatWorks) {
  const FakeDriver fake(GetParam().environment);
  auto made = CudaBackend::create({}, kSteady);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  DeviceBackend& backend = **made;
  EXPECT_EQ((*made)->copies_fallback(), "") << "nothing is known yet";
  const Slab device = slab_or_die(backend, Tier::kHbm, kMiB * 2);
  const Slab host = slab_or_die(backend, Tier::kDram, kMiB * 2);
  const bool works = *GetParam().fallback == '\0';
  EXPECT_EQ((*made)->copies_fallback().empty(), works);
  EXPECT_THAT((*made)->copies_fallback(), HasSubstr(GetParam().fallback));
  fill_pattern(bytes_of(host).first(kMiB.size()), 9);
  copy(backend, batch_of(1, kIn, {{device.address, host.address, kMiB}}));
  copy(backend, batch_of(2, kOut, {{host.address + kMiB.size(), device.address, kMiB}}));
  EXPECT_TRUE(has_pattern(bytes_of(host).subspan(kMiB.size()), 9));
  copy(backend, batch_of(3, kIn, {{device.address, 0, kMiB}}));
  copy(backend, batch_of(4, kOut, {{host.address, device.address, kMiB}}));
  EXPECT_TRUE(all_zero(bytes_of(host).first(kMiB.size())))
      << "the trial left something in the zeros";
  made->reset();
  FakeDriver::expect_no_leaks();
}

TEST(CudaBackend, BatchesThatAreAskedForAndCannotBeAreRefused) {
  const FakeDriver fake("FAKECUDA_HOST_ADDRESSES=0");
  CudaConfig config;
  config.copies = cuda::CopyChoice::kBatch;
  auto backend = make(config);
  const auto slab = backend->create_slab(Tier::kDram, kMiB * 2);
  ASSERT_EQ(code_of(slab), ErrorCode::kUnsupported);
  EXPECT_THAT(slab.error().message, HasSubstr("kAuto"));
}

TEST(CudaBackend, SingleCopiesAreMadeWhereTheyAreAskedFor) {
  const FakeDriver fake("FAKECUDA_FAIL=cuMemcpyBatchAsync:1:700");
  CudaConfig config;
  config.copies = cuda::CopyChoice::kSingle;
  auto backend = make(config);
  const Slab device = slab_or_die(*backend, Tier::kHbm, kMiB * 2);
  const Slab host = slab_or_die(*backend, Tier::kDram, kMiB * 2);
  EXPECT_TRUE(copy(*backend, batch_of(1, kIn, {{device.address, host.address, kMiB}})).status.ok());
  EXPECT_EQ(backend->copies_fallback(), "") << "as it was told";
}

// A pin that fails is an invalid value to the driver, and it is no argument that is wrong.
TEST(CudaBackend, MemoryThatCannotBePinnedIsSaidToBeThat) {
  const FakeDriver fake("FAKECUDA_FAIL=cuMemHostRegister:4:1");
  auto backend = make();
  const auto slab = backend->create_slab(Tier::kDram, kMiB * 2);
  ASSERT_FALSE(slab.ok());
  EXPECT_THAT(slab.error().message, HasSubstr("could not pin"));
}

/// A backend with a slab of each tier and an adopted page.
class CudaCopies : public ::testing::Test {
 protected:
  void open(const std::string& environment, CudaConfig config = {}, const Clock& clock = kSteady) {
    fake_.emplace(environment);
    backend_ = make(std::move(config), clock);
    device_ = slab_or_die(*backend_, Tier::kHbm, kMiB * 4);
    host_ = slab_or_die(*backend_, Tier::kDram, kMiB * 4);
    ASSERT_TRUE(backend_->adopt_page(page_.start(), kPage).ok());
  }
  void TearDown() override { backend_.reset(); }

  CopyBatch in(std::uint64_t ticket, std::size_t word = 0, Bytes length = kMiB) {
    return fenced(batch_of(ticket, kIn, {{device_.address, host_.address, length}}),
                  page_.word(word));
  }
  CopyBatch out(std::uint64_t ticket, std::size_t word = 1, Bytes length = kMiB) {
    return fenced(batch_of(ticket, kOut, {{host_.address, device_.address, length}}),
                  page_.word(word));
  }
  void expect_lost(const char* cause) {
    EXPECT_EQ(backend_->health().code(), ErrorCode::kDeviceError);
    EXPECT_THAT(backend_->health().error().message, HasSubstr("restart kvd"));
    EXPECT_THAT(backend_->health().error().message, HasSubstr(cause));
    EXPECT_EQ(backend_->submit(in(900)).code(), ErrorCode::kDeviceError);
    EXPECT_EQ(code_of(backend_->create_slab(Tier::kHbm, kMiB * 2)), ErrorCode::kDeviceError);
    EXPECT_EQ(code_of(backend_->create_slab(Tier::kDram, kMiB * 2)), ErrorCode::kDeviceError);
    EXPECT_EQ(backend_->export_slab(device_.handle).error().code, ErrorCode::kDeviceError);
  }

  SharedPage page_;
  WatchedClock clock_;
  std::optional<FakeDriver> fake_;
  std::unique_ptr<CudaBackend> backend_;
  Slab device_, host_;
};

TEST_F(CudaCopies, FencesInAnAdoptedPageAreWrittenWithTheirBatches) {
  open("FAKECUDA_DELAY_US=500");
  for (std::uint64_t t = 1; t <= 20; ++t) {
    ASSERT_TRUE(backend_->submit(t % 2 == 1 ? in(t) : out(t)).ok());
  }
  for (const Completion& done : wait_for(*backend_, 20)) {
    EXPECT_TRUE(done.status.ok());
    EXPECT_GE(page_.word(done.ticket.value % 2 == 1 ? 0 : 1).load(), done.ticket.value);
  }
  EXPECT_EQ(page_.word(0).load(), 19u);
  EXPECT_EQ(page_.word(1).load(), 20u);
  EXPECT_EQ(page_.word(2).load(), 0u);
}

/// The batch has bursts of eight parts, which go to two streams in turn.
CudaConfig in_parts() {
  CudaConfig config;
  config.burst_time = Nanoseconds(0);
  config.burst = kMiB * 2;
  return config;
}

TEST_F(CudaCopies, AFenceOfTheDeviceComesAfterTheBytesOfAllParts) {
  open("FAKECUDA_DELAY_US=1000", in_parts());
  const Slab from = slab_or_die(*backend_, Tier::kDram, kMiB * 4);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    fill_pattern(bytes_of(from), static_cast<unsigned>(round));
    copy(*backend_, batch_of(round, kIn, {{device_.address, from.address, kMiB * 4}}));
    ASSERT_TRUE(backend_->submit(out(1000 + round, 1, kMiB * 4)).ok());
    while (page_.word(1).load() < 1000 + round) std::this_thread::yield();
    // The bytes of the last part but one are checked first, because it is in the other stream.
    const std::size_t last_but_one = (kMiB * 4 - kKiB * 256).size() - 1;
    ASSERT_EQ(bytes_of(host_)[last_but_one],
              pattern_at(last_but_one, static_cast<unsigned>(round)));
    ASSERT_TRUE(has_pattern(bytes_of(host_), static_cast<unsigned>(round))) << round;
    wait_for(*backend_, 1);
  }
}

/// Batches write to the same place, each as long as a burst or a part of one. Returns whether the
/// last batch always had the last word there.
class CudaOrder : public CudaCopies {
 protected:
  static constexpr Bytes kLength = kKiB * 256;

  bool last_is_last(cuda::BurstOrder order, Bytes burst, int rounds) {
    CudaConfig config;
    config.burst_time = Nanoseconds(0);
    config.burst = burst;
    config.burst_order = order;
    open("FAKECUDA_DELAY_US=1000", config);
    const Slab from = slab_or_die(*backend_, Tier::kDram, kMiB * 4);
    fill_pattern(bytes_of(from), 3);
    std::uint64_t ticket = 0;
    for (int round = 0; round < rounds; ++round) {
      std::uintptr_t source = from.address;
      for (int i = 0; i < 6; ++i, source += kLength.size()) {
        EXPECT_TRUE(
            backend_->submit(batch_of(++ticket, kIn, {{device_.address, source, kLength}})).ok());
      }
      wait_for(*backend_, 6);
      copy(*backend_, batch_of(++ticket, kOut, {{host_.address, device_.address, kLength}}));
      source -= kLength.size();
      if (std::memcmp(bytes_of(host_).data(), reinterpret_cast<const void*>(source),
                      kLength.size()) != 0) {
        return false;
      }
    }
    return true;
  }
};

TEST_F(CudaOrder, ABurstBeginsOnceTheOneBeforeHasEnded) {
  EXPECT_TRUE(last_is_last(cuda::BurstOrder::kGated, kLength, 60));
}

TEST_F(CudaOrder, WhereTheCpuLooksToo) {
  EXPECT_TRUE(last_is_last(cuda::BurstOrder::kSeen, kLength, 20));
}

// What the tests before would see without a gate.
TEST_F(CudaOrder, InARowNothingIsBetweenBursts) {
  EXPECT_FALSE(last_is_last(cuda::BurstOrder::kInARow, kLength, 1000));
}

// Else a batch that is smaller than a part would leave the other stream with nothing to do.
TEST_F(CudaOrder, BatchesOfOneBurstHaveNone) {
  EXPECT_FALSE(last_is_last(cuda::BurstOrder::kGated, kMiB, 1000));
}

/// Layers of blocks: this many rows of one length, side by side at one end and far apart at the
/// other.
std::vector<CopyExtent> rows_of(std::uintptr_t to, std::uintptr_t from, std::size_t rows,
                                Bytes length, Bytes to_pitch, Bytes from_pitch) {
  std::vector<CopyExtent> extents;
  for (std::size_t i = 0; i < rows; ++i) {
    extents.push_back({to + i * to_pitch.size(), from + i * from_pitch.size(), length});
  }
  return extents;
}

// A batch of the driver would fail: none is asked for.
TEST_F(CudaCopies, RowsAreOneCallEachWay) {
  open("FAKECUDA_FAIL=cuMemcpyBatchAsync:1:700,cuMemcpy2DAsync:3:1");
  fill_pattern(bytes_of(host_).first(kMiB.size() * 2), 11);
  const Bytes row = kKiB * 4, pitch = kKiB * 64;
  const auto in = rows_of(device_.address, host_.address, 32, row, row, pitch);
  ASSERT_TRUE(copy(*backend_, batch_of(1, kIn, in)).status.ok());
  const std::uintptr_t back = host_.address + (kMiB * 2).size();
  const auto out = rows_of(back, device_.address, 32, row, pitch, row);
  const Completion done = copy(*backend_, batch_of(2, kOut, out));
  EXPECT_EQ(done.bytes, row * 32);
  const auto* bytes = bytes_of(host_).data();
  for (std::size_t i = 0; i < 32; ++i) {
    const auto* at = bytes + i * pitch.size();
    EXPECT_EQ(std::memcmp(at, at + (kMiB * 2).size(), row.size()), 0) << i;
  }
  EXPECT_EQ(copy(*backend_, batch_of(3, kIn, in)).status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(backend_->health().ok());
}

/// Extents that are rows in part, which never overlap at their destination.
std::vector<CopyExtent> some_rows(std::mt19937_64& random, const Slab& to, const Slab& from) {
  std::vector<CopyExtent> extents;
  for (Bytes at; at < kMiB * 3;) {
    const Bytes length(static_cast<std::int64_t>(1 + random() % 3000));
    const std::size_t rows = 1 + random() % 12;
    const Bytes to_pitch = length + Bytes(static_cast<std::int64_t>(random() % 2 * 500));
    const Bytes from_pitch = length + Bytes(static_cast<std::int64_t>(random() % 9000));
    const std::uintptr_t source = from.address + random() % kMiB.size();
    for (const CopyExtent& extent :
         rows_of(to.address + at.size(), source, rows, length, to_pitch, from_pitch)) {
      extents.push_back(extent);
    }
    at += to_pitch * static_cast<std::int64_t>(rows) + Bytes(1);
  }
  return extents;
}

TEST_F(CudaCopies, RowsAndOthersMoveExactlyTheirBytes) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  open("");
  fill_pattern(bytes_of(host_), 5);
  const auto source = [&](std::uintptr_t at) { return reinterpret_cast<const std::byte*>(at); };
  for (std::uint64_t round = 1; round <= 10; ++round) {
    copy(*backend_, batch_of(2 * round, kIn, {{device_.address, 0, kMiB * 4}}));
    const auto extents = some_rows(random, device_, host_);
    std::vector<std::byte> expected((kMiB * 4).size());
    for (const CopyExtent& extent : extents) {
      std::copy_n(
          source(extent.source), extent.length.size(),
          expected.begin() + static_cast<std::ptrdiff_t>(extent.destination - device_.address));
    }
    ASSERT_TRUE(copy(*backend_, batch_of(2 * round + 1, kIn, extents)).status.ok());
    const auto differs = [&] {
      bool other = true;
      const Status read = backend_->read_slab(device_.address, kMiB * 4, [&](auto bytes) {
        other = !std::equal(bytes.begin(), bytes.end(), expected.begin());
      });
      return other || !read.ok();
    };
    ASSERT_FALSE(differs()) << "round " << round;
    expected[random() % expected.size()] ^= std::byte{1};
    ASSERT_TRUE(differs()) << "a flipped bit is not seen";
  }
}

TEST_F(CudaCopies, AFenceNeverGoesBackwardsInWhateverOrderTicketsCome) {
  open("");
  for (const std::uint64_t ticket : {5u, 3u, 4u, 6u}) {
    ASSERT_TRUE(copy(*backend_, in(ticket)).status.ok());
    EXPECT_EQ(page_.word(0).load(), std::max<std::uint64_t>(ticket, 5));
  }
}

// A driver that fails the write, so that it shows who wrote.
TEST_F(CudaCopies, ItIsTheDeviceThatWritesThere) {
  open("FAKECUDA_FAIL=cuStreamWriteValue64:1:700");
  EXPECT_EQ(copy(*backend_, in(1)).status.code(), ErrorCode::kDeviceError);
  EXPECT_EQ(page_.word(0).load(), 0u);
}

TEST_F(CudaCopies, WhereTheDeviceCannotTheCpuDoes) {
  open("FAKECUDA_FAIL=cuStreamWriteValue64:1:801");
  EXPECT_TRUE(copy(*backend_, in(1)).status.ok());
  EXPECT_EQ(page_.word(0).load(), 1u);
  EXPECT_TRUE(copy(*backend_, in(2)).status.ok());
  EXPECT_EQ(page_.word(0).load(), 2u);
}

TEST_F(CudaCopies, AWordInNoAdoptedPageIsTheCpus) {
  open("FAKECUDA_FAIL=cuStreamWriteValue64:1:700");
  backend_->release_page(page_.start(), {});
  EXPECT_TRUE(copy(*backend_, in(5)).status.ok());
  EXPECT_EQ(page_.word(0).load(), 5u);
}

TEST_F(CudaCopies, WhoSleepsOnAFenceOfTheDeviceIsWoken) {
  open("");
  std::thread waiter([&] {
    // Long enough that a missing wake shows as a hang of the test.
    const timespec limit{20, 0};
    while (page_.word(0).load() < 3) {
      ::syscall(SYS_futex, &page_.word(0), FUTEX_WAIT, 0, &limit, nullptr, 0);
    }
  });
  const auto start = kSteady.now();
  EXPECT_TRUE(copy(*backend_, in(3)).status.ok());
  waiter.join();
  EXPECT_LT(kSteady.now() - start, std::chrono::seconds(15)) << "it woke by its own timeout";
}

// Engines' kernels would wait for the SMs, which the driver's memset takes.
TEST_F(CudaCopies, SlabsThatAreMadeBesideEnginesAreZeroedByTheCopyEngine) {
  open("FAKECUDA_FAIL=cuMemsetD8Async:3:700");  // after the zeros and the fixture's slab
  const Slab made = slab_or_die(*backend_, Tier::kHbm, kMiB * 6);
  bool zeroed = false;
  EXPECT_TRUE(backend_
                  ->read_slab(made.address, kMiB * 6,
                              [&](std::span<const std::byte> bytes) { zeroed = all_zero(bytes); })
                  .ok());
  EXPECT_TRUE(zeroed) << "fresh memory of the fake driver is not zero";
}

// The driver waits for all streams of the process before it lets go of a page. Who releases one, on
// the control thread, does not.
TEST_F(CudaCopies, ReleasingAPageDoesNotWaitForStreams) {
  open("FAKECUDA_WAIT_LIMIT_MS=2000");
  const cuda::Driver& driver = *cuda::Driver::load().value();
  const auto context = cuda::PrimaryContext::retain(driver, cuda::find_device(driver, {}).value());
  const cuda::ScopedCurrent current(*context);
  const SharedPage gate;
  const auto word =
      cuda::HostRegistration::make(driver, reinterpret_cast<std::uintptr_t>(gate.start()), kPage);
  const auto stream = cuda::Stream::create(driver);
  ASSERT_TRUE(context.ok() && word.ok() && stream.ok());
  ASSERT_EQ(driver.stream_wait_value64(stream->get(), word->device_address(), 1, 0), CUDA_SUCCESS);
  auto mapping = std::make_shared<const int>(0);
  const std::weak_ptr<const int> held = mapping;
  backend_->release_page(page_.start(), std::exchange(mapping, nullptr));
  EXPECT_FALSE(held.expired()) << "unmapped while it is registered";
  gate.word(0).store(1);
  for (int i = 0; i < 20'000 && !held.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(driver.stream_synchronize(stream->get()), CUDA_SUCCESS);
}

TEST_F(CudaCopies, PagesThatMakeNoSenseAreRefused) {
  open("");
  const auto code = [&](std::size_t offset, Bytes size) {
    return backend_->adopt_page(static_cast<std::byte*>(page_.start()) + offset, size).code();
  };
  EXPECT_EQ(code(0, kPage), ErrorCode::kInvalidArgument) << "adopted already";
  EXPECT_EQ(code(8, kPage), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(0, Bytes(100)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(0, Bytes(0)), ErrorCode::kInvalidArgument);
  auto mapping = std::make_shared<const int>(0);
  const std::weak_ptr<const int> held = mapping;
  backend_->release_page(page_.start(), std::exchange(mapping, nullptr));
  backend_->release_page(page_.start(), {});
  for (int i = 0; i < 20'000 && !held.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(code(0, kPage), ErrorCode::kOk);
}

TEST_F(CudaCopies, ARefusedBatchFailsAloneAndUnfenced) {
  CudaConfig config;
  config.burst_time = Nanoseconds(0);  // so large that a batch is one call
  config.burst = kMiB * 16;
  open("FAKECUDA_FAIL=cuMemcpyBatchAsync:2:1", config);
  ASSERT_TRUE(copy(*backend_, in(1)).status.ok());
  const Completion failed = copy(*backend_, in(2));
  EXPECT_EQ(failed.status.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.bytes, Bytes(0));
  EXPECT_EQ(page_.word(0).load(), 1u);
  EXPECT_TRUE(copy(*backend_, in(3)).status.ok());
  EXPECT_EQ(page_.word(0).load(), 3u);
  EXPECT_TRUE(backend_->health().ok());
}

TEST_F(CudaCopies, AStickyErrorFailsEverythingAndFencesNothing) {
  CudaConfig config;
  config.burst = kKiB * 64;
  open("FAKECUDA_STICKY=cuMemcpyBatchAsync:3:719", config);
  for (std::uint64_t t = 1; t <= 4; ++t) {
    // Once the device is known to be lost, batches are refused at the door.
    const Status submitted = backend_->submit(in(t));
    EXPECT_TRUE(submitted.ok() || submitted.code() == ErrorCode::kDeviceError);
  }
  const auto accepted = backend_->counters().batches_submitted[0];
  ASSERT_GE(accepted, 1u);
  for (const Completion& done : wait_for(*backend_, accepted)) {
    EXPECT_EQ(done.status.code(), ErrorCode::kDeviceError);
  }
  EXPECT_EQ(page_.word(0).load(), 0u);
  expect_lost("(719)");
  // Memory that a stray copy may touch stays, whoever releases it.
  backend_->release_page(page_.start(), {});
  EXPECT_TRUE(backend_->destroy_slab(host_.handle).ok());
  EXPECT_TRUE(backend_->destroy_slab(device_.handle).ok());
  EXPECT_EQ(::msync(bytes_of(host_).data(), 4096, MS_ASYNC), 0) << "unmapped under a copy";
}

TEST_F(CudaCopies, ACopyThatDoesNotMoveLosesTheDevice) {
  open("FAKECUDA_STALL=h2d", {}, clock_);
  ASSERT_TRUE(copy(*backend_, out(1)).status.ok()) << "the other direction is not stuck";
  ASSERT_TRUE(backend_->submit(in(2)).ok());
  ASSERT_TRUE(backend_->submit(in(3)).ok());
  for (const Completion& done : wait_while_time_passes(*backend_, clock_, 2)) {
    EXPECT_EQ(done.status.code(), ErrorCode::kDeviceError);
  }
  EXPECT_EQ(page_.word(0).load(), 0u);
  expect_lost("have not moved for 30000 ms");
  backend_->release_page(page_.start(), {});
  EXPECT_TRUE(backend_->destroy_slab(host_.handle).ok());
  EXPECT_EQ(::msync(bytes_of(host_).data(), 4096, MS_ASYNC), 0) << "unmapped under a copy";
}

TEST_F(CudaCopies, OneDirectionStuckFailsTheOtherToo) {
  open("FAKECUDA_STALL=d2h", {}, clock_);
  ASSERT_TRUE(backend_->submit(out(1)).ok());
  wait_while_time_passes(*backend_, clock_, 1);
  EXPECT_EQ(backend_->submit(in(2)).code(), ErrorCode::kDeviceError);
}

TEST_F(CudaCopies, AReadThatDoesNotMoveLosesTheDevice) {
  CudaConfig config;
  config.stall_limit = std::chrono::milliseconds(50);
  open("FAKECUDA_STALL=d2h", config);
  const Status read =
      backend_->read_slab(device_.address, kMiB, [](std::span<const std::byte>) { FAIL(); });
  EXPECT_EQ(read.code(), ErrorCode::kDeviceError);
  EXPECT_EQ(backend_->health().code(), ErrorCode::kDeviceError);
}

/// Bursts of 256 KiB, so that a batch of `in(ticket, word, kBurst)` is one.
constexpr Bytes kBurst = kKiB * 256;
CudaConfig in_small_bursts() {
  CudaConfig config;
  config.burst = kBurst;
  return config;
}

/// What the watchdog says of five bursts that do not move, where a call of the driver would fail.
class CudaGate : public CudaCopies {
 protected:
  void submit_all(int batches) {
    const auto held = clock_.hold();  // so that all batches are there when the queue begins
    for (int i = 0; i < batches; ++i) {
      ASSERT_TRUE(backend_->submit(in(++ticket_, 0, kBurst)).ok());
    }
  }
  std::uint64_t ticket_ = 0;
};

// The third call would be a sticky error: only that shows that it came.
TEST_F(CudaGate, BurstsAreQueuedWhileOneRuns) {
  open("FAKECUDA_STALL=h2d FAKECUDA_FAIL=cuMemcpyBatchAsync:3:700", in_small_bursts(), clock_);
  submit_all(5);
  wait_while_time_passes(*backend_, clock_, 5);
  expect_lost("(700)");
}

// Here only the watchdog decides that it did not. Two bursts then stand before a closed gate.
TEST_F(CudaGate, NoMoreThanThreeBurstsAreQueuedOnTheDevice) {
  open("FAKECUDA_STALL=h2d FAKECUDA_FAIL=cuMemcpyBatchAsync:4:700", in_small_bursts(), clock_);
  submit_all(5);
  wait_while_time_passes(*backend_, clock_, 5);
  expect_lost("have not moved");
  EXPECT_EQ(page_.word(0).load(), 0u);
}

TEST_F(CudaGate, ShutdownWithAClosedGateEndsAndKeepsWhatACopyMayTouch) {
  CudaConfig config = in_small_bursts();
  config.stop_limit = std::chrono::milliseconds(50);
  open("FAKECUDA_STALL=h2d", config, clock_);
  submit_all(5);
  clock_.wait_for_reads(10);
  backend_.reset();
  EXPECT_EQ(::msync(bytes_of(host_).data(), 4096, MS_ASYNC), 0) << "unmapped under a copy";
  EXPECT_EQ(page_.word(0).load(), 0u);
}

TEST_F(CudaGate, ShutdownWaitsForTheBurstsThatAreQueued) {
  open("FAKECUDA_DELAY_US=2000", in_small_bursts());
  submit_all(40);
  backend_.reset();  // the strict driver aborts on memory that goes while it is copied
  FakeDriver::expect_no_leaks();
  EXPECT_LT(page_.word(0).load(), 40u);
}

/// Calls that fail once in the middle of bursts that stand before a gate.
struct GateCase {
  const char* fails;
  std::size_t failed;  // batches
};
class GateFaults : public CudaGate, public ::testing::WithParamInterface<GateCase> {};
INSTANTIATE_TEST_SUITE_P(Calls, GateFaults,
                         ::testing::Values(GateCase{"cuMemcpyBatchAsync:3:1", 1},
                                           GateCase{"cuStreamWaitValue64:1:801", 0},
                                           GateCase{"cuStreamWaitValue64:2:801", 0},
                                           GateCase{"cuStreamWriteValue64:1:801", 0},
                                           GateCase{"cuStreamWriteValue64:5:801", 0}));

TEST_P(GateFaults, CostNoMoreThanTheirBatch) {
  open(std::string("FAKECUDA_FAIL=") + GetParam().fails, in_small_bursts());
  submit_all(12);
  std::size_t failed = 0;
  for (const Completion& done : wait_for(*backend_, 12)) failed += done.status.ok() ? 0u : 1u;
  EXPECT_EQ(failed, GetParam().failed);
  EXPECT_EQ(page_.word(0).load(), 12u);
  EXPECT_TRUE(backend_->health().ok());
  backend_->release_page(page_.start(), {});
  backend_.reset();
  FakeDriver::expect_no_leaks();
}

class GateLosses : public CudaGate, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Calls, GateLosses,
                         ::testing::Values("STICKY=cuStreamWaitValue64:2:719",
                                           "STICKY=cuStreamWriteValue64:2:719",
                                           "FAIL=cuStreamWaitEvent:3:1", "FAIL=cuEventRecord:3:1"));

TEST_P(GateLosses, LoseTheDeviceAndEndAllBatches) {
  open(std::string("FAKECUDA_") + GetParam(), in_small_bursts());
  for (int i = 0; i < 12; ++i) (void)backend_->submit(in(++ticket_, 0, kBurst));
  const auto accepted = backend_->counters().batches_submitted[0];
  EXPECT_EQ(wait_for(*backend_, accepted).size(), accepted);
  EXPECT_EQ(backend_->health().code(), ErrorCode::kDeviceError);
}

// All streams of the process are worked on one after the other then: who opens a gate must not be
// queued behind who waits there.
TEST_F(CudaGate, OneHardwareQueueIsEnough) {
  open("CUDA_DEVICE_MAX_CONNECTIONS=1 FAKECUDA_WAIT_LIMIT_MS=5000", in_small_bursts());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(backend_->submit(in(++ticket_, 0, kBurst)).ok());
    ASSERT_TRUE(backend_->submit(out(++ticket_, 1, kBurst)).ok());
  }
  for (const Completion& done : wait_for(*backend_, 40)) EXPECT_TRUE(done.status.ok());
  EXPECT_EQ(page_.word(0).load(), 39u);
  EXPECT_EQ(page_.word(1).load(), 40u);
}

TEST_F(CudaGate, WhereStreamsDoNotWaitOnMemoryTheCpuMakesTheGap) {
  open("FAKECUDA_STREAM_MEMORY_OPERATIONS=0", in_small_bursts());
  submit_all(12);
  for (const Completion& done : wait_for(*backend_, 12)) EXPECT_TRUE(done.status.ok());
  EXPECT_EQ(page_.word(0).load(), 12u);
}

TEST_F(CudaCopies, SmallBatchesShareABurst) {
  open("FAKECUDA_STALL=h2d FAKECUDA_FAIL=cuMemcpyBatchAsync:4:700", {}, clock_);
  {
    const auto held = clock_.hold();  // which holds the queue until all batches are there
    for (std::uint64_t t = 1; t <= 10; ++t) ASSERT_TRUE(backend_->submit(in(t, 0, kKiB * 64)).ok());
  }
  wait_while_time_passes(*backend_, clock_, 10);
  expect_lost("(700)");
}

TEST_F(CudaCopies, BusyTimeAddsUpToNoMoreThanTheTimeThatPassed) {
  open("FAKECUDA_DELAY_US=300");
  const TimePoint start = kSteady.now();
  for (std::uint64_t t = 1; t <= 30; ++t) ASSERT_TRUE(backend_->submit(in(t)).ok());
  Nanoseconds busy{0};
  for (const Completion& done : wait_for(*backend_, 30)) busy += done.busy;
  EXPECT_GT(busy, Nanoseconds(0));
  EXPECT_LE(busy, kSteady.now() - start);
}

TEST_F(CudaCopies, DestructionDropsWhatHasNotStartedAndWaitsForWhatHas) {
  open("FAKECUDA_DELAY_US=2000");
  for (std::uint64_t t = 1; t <= 50; ++t) ASSERT_TRUE(backend_->submit(in(t, 0, kMiB * 4)).ok());
  backend_.reset();  // the strict driver aborts on memory that goes while it is copied
  FakeDriver::expect_no_leaks();
  EXPECT_LT(page_.word(0).load(), 50u);
}

TEST_F(CudaCopies, DestructionDoesNotWaitForeverAndKeepsWhatACopyMayTouch) {
  CudaConfig config;
  config.stop_limit = std::chrono::milliseconds(50);
  open("FAKECUDA_STALL=d2h", config, clock_);
  ASSERT_TRUE(backend_->submit(out(1)).ok());
  clock_.wait_for_reads(10);
  backend_.reset();
  EXPECT_EQ(::msync(bytes_of(host_).data(), 4096, MS_ASYNC), 0) << "unmapped under a copy";
  EXPECT_EQ(page_.word(1).load(), 0u);
}

TEST_F(CudaCopies, APageReleasedUnderAQueuedFenceStaysRegistered) {
  open("FAKECUDA_DELAY_US=2000");
  ASSERT_TRUE(backend_->submit(in(1, 0, kMiB * 4)).ok());
  backend_->release_page(page_.start(), {});  // strict: aborts if it were unregistered in flight
  EXPECT_TRUE(wait_for(*backend_, 1).front().status.ok());
  EXPECT_EQ(page_.word(0).load(), 1u);
}

TEST_F(CudaCopies, ScrubbingWritesZerosInBothTiers) {
  open("");
  fill_pattern(bytes_of(host_), 3);
  copy(*backend_, batch_of(1, kIn, {{device_.address, host_.address, kMiB * 4}}));
  // All but the first and the last KiB, with a length that is no multiple of anything.
  const Bytes length = kMiB * 4 - kKiB * 2 - Bytes(1);
  copy(*backend_, batch_of(2, kIn, {{device_.address + kKiB.size(), 0, length}}));
  copy(*backend_, batch_of(3, kOut, {{host_.address, device_.address, kMiB * 4}}));
  const auto bytes = bytes_of(host_);
  EXPECT_TRUE(has_pattern(bytes.first(kKiB.size()), 3));
  EXPECT_TRUE(all_zero(bytes.subspan(kKiB.size(), length.size())));
  EXPECT_EQ(bytes[kKiB.size() + length.size()], pattern_at(kKiB.size() + length.size(), 3));

  fill_pattern(bytes, 4);
  copy(*backend_, batch_of(4, kOut, {{host_.address + 1, 0, length}}));
  EXPECT_EQ(bytes[0], pattern_at(0, 4));
  EXPECT_TRUE(all_zero(bytes.subspan(1, length.size())));
  EXPECT_EQ(bytes[1 + length.size()], pattern_at(1 + length.size(), 4));
}

TEST(CudaBackend, NonsenseInTheConfigurationIsRefused) {
  const FakeDriver fake;
  CudaConfig no_burst;
  no_burst.burst = Bytes(0);
  const auto backend = CudaBackend::create(no_burst, kSteady);
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::kernels
