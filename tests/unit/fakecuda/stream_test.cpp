#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/unit/fakecuda/fake_world.hpp"

namespace kvd::tests {
namespace {

class StreamTest : public FakeCuda {
 protected:
  void SetUp() override {
    FakeCuda::SetUp();
    adopt_words();
  }
  void adopt_words() {
    pin(words_);
    device_words_ = device_pointer(words_);
  }
  std::uint64_t* word(std::size_t index) const {
    return reinterpret_cast<std::uint64_t*>(words_.data()) + index;
  }
  CUdeviceptr word_on_device(std::size_t index) const { return device_words_ + index * 8; }
  void set(std::size_t index, std::uint64_t value) const {
    __atomic_store_n(word(index), value, __ATOMIC_RELEASE);
  }
  std::uint64_t get(std::size_t index) const {
    return __atomic_load_n(word(index), __ATOMIC_ACQUIRE);
  }
  CUresult wait_for(std::uint64_t value, unsigned flags = 0, std::size_t index = 0) const {
    return ::cuStreamWaitValue64(stream_, word_on_device(index), value, flags);
  }
  CUresult write(std::size_t index, std::uint64_t value, CUstream stream) const {
    return ::cuStreamWriteValue64(stream, word_on_device(index), value, 0);
  }
  static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamCreateWithPriority(&made, flags, 0));
    return made;
  }
  static CUevent event(unsigned flags = 0) {
    CUevent made = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuEventCreate(&made, flags));
    return made;
  }

  const HostMemory words_{4096};
  CUdeviceptr device_words_ = 0;
};

TEST_F(StreamTest, PrioritiesAreCutToWhatThereIs) {
  for (const int priority : {-1000, 0, 1000}) {
    CUstream made = nullptr;
    ASSERT_OK(::cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, priority));
    EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamSynchronize(made));
  }
}

TEST_F(StreamTest, AStreamThatWaitsForAValueHoldsNoCopyEngine) {
  const HostMemory host(kGranule);
  pin(host);
  const auto device = device_memory();
  ASSERT_OK(wait_for(1));
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, host.data(), kGranule, stream_));
  const CUstream other = stream();
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, host.data(), kGranule, other));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamSynchronize(other));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(stream_));
  set(0, 1);
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(StreamTest, CallsNeedACurrentContext) {
  ASSERT_OK(::cuCtxSetCurrent(nullptr));
  CUstream made = nullptr;
  CUevent mark = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, ::cuStreamCreateWithPriority(&made, 0, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, ::cuEventCreate(&mark, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, sync());
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, ::cuMemHostRegister(&made, 8, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, ::cuCtxSynchronize());
  const auto handle = create();
  EXPECT_CUDA(CUDA_SUCCESS, ::cuMemRelease(handle)) << "memory needs none";
  std::thread([&] { EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, sync()); }).join();
}

TEST_F(StreamTest, StreamsAndEventsBelongToTheirContext) {
  start({{"FAKECUDA_DEVICES", "2"}});
  const auto here = event();
  CUcontext other = nullptr;
  ASSERT_OK(::cuDevicePrimaryCtxRetain(&other, 1));
  ASSERT_OK(::cuCtxPushCurrent(other));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, sync());
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, ::cuEventRecord(here, stream()));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, ::cuStreamSynchronize(reinterpret_cast<CUstream>(64)));
  CUcontext popped = nullptr;
  ASSERT_OK(::cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, other);
  EXPECT_CUDA(CUDA_SUCCESS, ::cuEventRecord(here, stream_));
}

TEST_F(StreamTest, AReleasedContextIsGoneWithAllThatWasInIt) {
  ASSERT_OK(::cuDevicePrimaryCtxRelease(0));
  EXPECT_CUDA(CUDA_ERROR_CONTEXT_IS_DESTROYED, sync());
  EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, ::cuDevicePrimaryCtxRelease(0));
  CUcontext again = nullptr;
  ASSERT_OK(::cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, sync());
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, ::cuMemHostUnregister(words_.data()));
  EXPECT_EQ(::fakecuda_violations("context_destroyed_in_flight"), 0u);
}

TEST_F(StreamTest, AContextIsNotDestroyedUnderItsWork) {
  ASSERT_OK(wait_for(1));
  ASSERT_OK(::cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(::fakecuda_violations("context_destroyed_in_flight"), 1u);
}

TEST_F(StreamTest, AnErrorSticksToItsContextAlone) {
  start({{"FAKECUDA_DEVICES", "2"}, {"FAKECUDA_STICKY", "cuStreamQuery:1:719"}});
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_FAILED, ::cuStreamQuery(stream_));
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_FAILED, sync());
  CUcontext other = nullptr, current = nullptr;
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDevicePrimaryCtxRetain(&other, 1));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSetCurrent(other));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxGetCurrent(&current));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSynchronize());
  EXPECT_CUDA(CUDA_SUCCESS, ::cuDevicePrimaryCtxRelease(0)) << "cleaning up is possible";
}

TEST_F(StreamTest, AWaitIsCyclicGreaterOrEqual) {
  const std::uint64_t near_end = ~std::uint64_t{0} - 1;
  set(0, near_end);
  ASSERT_OK(wait_for(near_end));
  ASSERT_OK(wait_for(near_end - 5));
  ASSERT_OK(sync());
  ASSERT_OK(wait_for(near_end + 4));  // wrapped round
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(stream_));
  set(0, near_end + 4);
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(StreamTest, TheOtherConditions) {
  set(0, 6);
  ASSERT_OK(wait_for(6, CU_STREAM_WAIT_VALUE_EQ));
  ASSERT_OK(wait_for(3, CU_STREAM_WAIT_VALUE_AND));
  ASSERT_OK(wait_for(0, CU_STREAM_WAIT_VALUE_NOR));
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(StreamTest, MemoryOperationsAreChecked) {
  const auto at = word_on_device(0);
  const HostMemory plain(4096);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuStreamWaitValue64(stream_, at + 4, 0, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuStreamWaitValue64(stream_, words_.address(), 0, 0))
      << "the host's address of registered memory";
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuStreamWaitValue64(stream_, plain.address(), 0, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuStreamWaitValue64(stream_, at, 0, 4));
  EXPECT_CUDA(CUDA_ERROR_NOT_SUPPORTED,
              ::cuStreamWaitValue64(stream_, at, 0, CU_STREAM_WAIT_VALUE_FLUSH));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              ::cuStreamWriteValue64(stream_, at, 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
  std::vector<CUstreamBatchMemOpParams> many(256);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuStreamBatchMemOp(stream_, 256, many.data(), 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuStreamBatchMemOp(stream_, 0, many.data(), 0));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamQuery(stream_)) << "nothing was queued";
}

TEST_F(StreamTest, MemoryOperationsMayBeMissing) {
  start({{"FAKECUDA_STREAM_MEMORY_OPERATIONS", "0"}});
  adopt_words();
  int value = -1;
  ASSERT_OK(::cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
  EXPECT_EQ(value, 0);
  EXPECT_CUDA(CUDA_ERROR_NOT_SUPPORTED, wait_for(1));
  EXPECT_CUDA(CUDA_ERROR_NOT_SUPPORTED, write(0, 1, stream_));
}

TEST_F(StreamTest, ABatchOfMemoryOperationsRunsInItsOrder) {
  const auto device = device_memory();
  std::vector<CUstreamBatchMemOpParams> items(4);
  items[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, device.at, {}, 0, 0};
  items[0].writeValue.value64 = 9;
  items[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64, device.at, {}, 0, 0};
  items[1].waitValue.value64 = 9;
  items[2].memoryBarrier = {CU_STREAM_MEM_OP_BARRIER, 0};
  items[3].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, word_on_device(1), {}, 0, 0};
  items[3].writeValue.value = 77;
  ASSERT_OK(::cuStreamBatchMemOp(stream_, 4, items.data(), 0));
  ASSERT_OK(sync());
  EXPECT_EQ(get(1), 77u);
}

TEST_F(StreamTest, AWaitThatNobodyEndsIsFound) {
  start({{"FAKECUDA_WAIT_LIMIT_MS", "20"}});
  adopt_words();
  ASSERT_OK(wait_for(1));
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_TIMEOUT, sync());
  EXPECT_EQ(::fakecuda_violations("wait_value_deadlock"), 1u);
}

TEST_F(StreamTest, AValueIsWrittenAfterTheBytesBeforeIt) {
  start({{"FAKECUDA_DELAY_US", "2000"}});
  adopt_words();
  const auto device = device_memory();
  const HostMemory out(kGranule);
  pin(out);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    const auto value = static_cast<unsigned char>(round);
    ASSERT_OK(::cuMemsetD8Async(device.at, value, kGranule, stream_));
    ASSERT_OK(::cuMemcpyDtoHAsync(out.data(), device.at, kGranule, stream_));
    ASSERT_OK(write(0, round, stream_));
    while (get(0) < round) std::this_thread::yield();
    ASSERT_TRUE(out.all(static_cast<std::byte>(value))) << round;
  }
}

TEST_F(StreamTest, WithoutAWaitTheBytesAreNotThereYet) {
  start({{"FAKECUDA_DELAY_US", "2000"}});
  const auto device = device_memory();
  const HostMemory out(kGranule);
  pin(out);
  std::size_t wrong = 0;
  for (int round = 1; round <= 20; ++round) {
    ASSERT_OK(::cuMemsetD8Async(device.at, static_cast<unsigned char>(round), kGranule, stream_));
    ASSERT_OK(::cuMemcpyDtoHAsync(out.data(), device.at, kGranule, stream_));
    const auto seen = static_cast<volatile std::byte*>(out.data())[kGranule - 1];
    wrong += seen != static_cast<std::byte>(round) ? 1 : 0;
    ASSERT_OK(sync());
  }
  EXPECT_GT(wrong, 0u);
}

TEST_F(StreamTest, StreamsRunAtOnceAndEventsOrderThem) {
  const CUstream other = stream();
  const CUevent mark = event();
  ASSERT_OK(wait_for(1));
  ASSERT_OK(::cuEventRecord(mark, stream_));
  ASSERT_OK(write(1, 5, other));
  ASSERT_OK(::cuStreamSynchronize(other)) << "not behind the waiting stream";
  ASSERT_OK(::cuStreamWaitEvent(other, mark, 0));
  ASSERT_OK(write(1, 6, other));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(other));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuEventQuery(mark));
  EXPECT_EQ(get(1), 5u);
  set(0, 1);
  ASSERT_OK(::cuEventSynchronize(mark));
  ASSERT_OK(::cuStreamSynchronize(other));
  EXPECT_EQ(get(1), 6u);
}

TEST_F(StreamTest, EventsCaptureWhatWasQueuedWhenTheyWereRecorded) {
  const CUevent mark = event();
  EXPECT_CUDA(CUDA_SUCCESS, ::cuEventQuery(mark)) << "never recorded";
  ASSERT_OK(::cuEventRecord(mark, stream_));
  ASSERT_OK(wait_for(1));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuEventSynchronize(mark)) << "later work is no part of it";
  set(0, 1);
  ASSERT_OK(::cuEventDestroy(mark));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, ::cuEventQuery(mark));
  EXPECT_CUDA(CUDA_SUCCESS, sync());
}

TEST_F(StreamTest, EventsTellElapsedTimeUnlessTheyWereMadeWithoutIt) {
  const CUevent from = event(), to = event(), untimed = event(CU_EVENT_DISABLE_TIMING);
  float ms = -1;
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, ::cuEventElapsedTime(&ms, from, to));
  ASSERT_OK(::cuEventRecord(from, stream_));
  ASSERT_OK(wait_for(1));
  ASSERT_OK(::cuEventRecord(to, stream_));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuEventElapsedTime(&ms, from, to));
  set(0, 1);
  ASSERT_OK(sync());
  ASSERT_OK(::cuEventElapsedTime(&ms, from, to));
  EXPECT_GE(ms, 0.0f);
  ASSERT_OK(::cuEventRecord(untimed, stream_));
  ASSERT_OK(sync());
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, ::cuEventElapsedTime(&ms, from, untimed));
  CUevent shared = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, ::cuEventCreate(&shared, CU_EVENT_INTERPROCESS));
}

TEST_F(StreamTest, CopiesOfOneDirectionShareAnEngineAndTheDirectionsDoNot) {
  start({{"FAKECUDA_STALL", "h2d"}});
  const auto device = device_memory();
  const HostMemory host(kGranule), other_host(kGranule);
  pin(host), pin(other_host);
  const CUstream other = stream(), out = stream();
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at, host.data(), 512, stream_));
  ASSERT_OK(::cuMemcpyHtoDAsync(device.at + 512, host.data(), 512, other));
  ASSERT_OK(::cuMemcpyDtoHAsync(other_host.data(), device.at + 4096, 512, out));
  EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamSynchronize(out));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(stream_));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(other)) << "behind the stalled copy";
}

TEST_F(StreamTest, TwoCopiesOfOneDirectionNeverMix) {
  const auto device = device_memory(4 * kGranule);
  const HostMemory ones(4 * kGranule, std::byte{1}), twos(4 * kGranule, std::byte{2});
  const HostMemory out(4 * kGranule);
  pin(ones), pin(twos), pin(out);
  const CUstream other = stream();
  for (int round = 0; round < 50; ++round) {
    ASSERT_OK(::cuMemcpyHtoDAsync(device.at, ones.data(), ones.size(), stream_));
    ASSERT_OK(::cuMemcpyHtoDAsync(device.at, twos.data(), twos.size(), other));
    ASSERT_OK(::cuStreamSynchronize(other));
    ASSERT_OK(sync());
    read(device.at, out);
    ASSERT_TRUE(out.all(std::byte{1}) || out.all(std::byte{2})) << round;
  }
}

TEST_F(StreamTest, TheLegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT), late = stream(CU_STREAM_DEFAULT);
  ASSERT_OK(::cuStreamWaitValue64(blocking, word_on_device(0), 1, 0));
  ASSERT_OK(write(1, 1, nullptr));
  ASSERT_OK(write(2, 1, stream_));
  ASSERT_OK(sync());
  EXPECT_EQ(get(2), 1u) << "a non-blocking stream takes no part";
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(nullptr));
  ASSERT_OK(write(3, 1, late));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(late)) << "queued after the legacy stream's";
  set(0, 1);
  ASSERT_OK(::cuStreamSynchronize(late));
  EXPECT_EQ(get(1), 1u);
  EXPECT_EQ(get(3), 1u);
}

TEST_F(StreamTest, ADestroyedStreamFinishesItsWork) {
  const CUstream other = stream();
  ASSERT_OK(::cuStreamWaitValue64(other, word_on_device(0), 1, 0));
  ASSERT_OK(write(1, 4, other));
  ASSERT_OK(::cuStreamDestroy(other));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, ::cuStreamQuery(other));
  set(0, 1);
  ASSERT_OK(::cuCtxSynchronize());
  EXPECT_EQ(get(1), 4u);
}

struct Called {
  std::atomic<int> times{0};
  std::atomic<CUresult> inside{CUDA_SUCCESS};
};

void call(void* data) {
  auto* called = static_cast<Called*>(data);
  ++called->times;
  called->inside = ::cuCtxSynchronize();
}

TEST_F(StreamTest, HostFunctionsRunInOrderAndMayNotCallCuda) {
  Called called;
  ASSERT_OK(wait_for(1));
  ASSERT_OK(::cuLaunchHostFunc(stream_, call, &called));
  EXPECT_EQ(called.times, 0);
  set(0, 1);
  ASSERT_OK(sync());
  EXPECT_EQ(called.times, 1);
  EXPECT_CUDA(CUDA_ERROR_NOT_PERMITTED, called.inside.load());
  EXPECT_EQ(::fakecuda_violations("call_in_host_function"), 1u);
}

void wait_for_other(void* data) {
  auto* counts = static_cast<std::atomic<int>*>(data);
  const int mine = ++counts[0];
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (counts[0] != mine) ++counts[1];
}

TEST_F(StreamTest, HostFunctionsRunOneAtATime) {
  std::atomic<int> counts[2] = {0, 0};
  const CUstream other = stream();
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(::cuLaunchHostFunc(i % 2 == 0 ? stream_ : other, wait_for_other, counts));
  }
  ASSERT_OK(sync());
  ASSERT_OK(::cuStreamSynchronize(other));
  EXPECT_EQ(counts[0], 20);
  EXPECT_EQ(counts[1], 0) << "two at once";
}

TEST_F(StreamTest, WhoQueuesMoreThanAStreamHoldsWaits) {
  ASSERT_OK(wait_for(1));
  std::atomic<int> queued{0};
  std::thread launcher([&] {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSetCurrent(context_));
    for (; queued < 2000; ++queued) EXPECT_CUDA(CUDA_SUCCESS, write(1, 7, stream_));
  });
  while (queued < 1000) std::this_thread::yield();
  EXPECT_LT(queued, 1100);
  set(0, 1);
  launcher.join();
  ASSERT_OK(sync());
}

TEST_F(StreamTest, AWaitHoldsUpTheNinthStreamButNoEarlierOne) {
  start({{"FAKECUDA_WAIT_LIMIT_MS", "1000"}});
  adopt_words();
  ASSERT_OK(wait_for(1));
  for (std::uint64_t i = 2; i <= 8; ++i) {
    const CUstream other = stream();
    ASSERT_OK(write(1, i, other));
    ASSERT_OK(::cuStreamSynchronize(other)) << "a hardware queue of its own";
  }
  ASSERT_OK(write(0, 1, stream())) << "queued behind the wait that it would end";
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_TIMEOUT, sync());
  EXPECT_EQ(::fakecuda_violations("wait_value_deadlock"), 1u);
}

TEST_F(StreamTest, AProgramMayAskForFewerHardwareQueues) {
  start({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}, {"FAKECUDA_WAIT_LIMIT_MS", "50"}});
  adopt_words();
  ASSERT_OK(wait_for(1));
  ASSERT_OK(write(0, 1, stream()));
  EXPECT_CUDA(CUDA_ERROR_LAUNCH_TIMEOUT, sync());
}

TEST_F(StreamTest, WhatWasQueuedBeforeAWaitEndsItOnTheSameHardwareQueue) {
  start({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}});
  adopt_words();
  for (std::uint64_t round = 1; round <= 50; ++round) {
    const CUstream other = stream();
    ASSERT_OK(write(0, round, other));
    ASSERT_OK(wait_for(round));
    ASSERT_OK(::cuStreamDestroy(other));
  }
  ASSERT_OK(sync());
}

/// The index of the time slice that runs now.
std::int64_t slice_now(std::chrono::microseconds slice) {
  return std::chrono::steady_clock::now().time_since_epoch() / slice;
}

void note_slice(void* slice) {
  *static_cast<std::int64_t*>(slice) = slice_now(std::chrono::milliseconds(20));
}

TEST_F(StreamTest, WorkWaitsForItsTimeSlice) {
  start({{"FAKECUDA_TIME_SLICE_US", "20000"}, {"FAKECUDA_DELAY_US", "0"}});
  std::int64_t launched = 0, run = 0;
  do {
    launched = slice_now(std::chrono::milliseconds(20));
  } while (launched % 2 == 0);  // until it belongs to the other process
  ASSERT_OK(::cuLaunchHostFunc(stream_, note_slice, &run));
  ASSERT_OK(sync());
  EXPECT_GT(run, launched);
}

TEST_F(StreamTest, CallsThatChangeMemoryMayWaitForTheDevice) {
  start({{"FAKECUDA_SYNCHRONOUS", "1"}});
  adopt_words();
  ASSERT_OK(wait_for(1));
  std::atomic<bool> made{false};
  std::thread maker([&] {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSetCurrent(context_));
    (void)stream();
    made = true;
  });
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, ::cuStreamQuery(stream_));
  EXPECT_FALSE(made);
  set(0, 1);
  maker.join();
}

TEST_F(StreamTest, OnlyWhatCanBePinnedIsRegistered) {
  const auto registered = [](int protection, int flags, int file) {
    void* const at = ::mmap(nullptr, 4096, protection, flags, file, 0);
    EXPECT_NE(at, MAP_FAILED);
    const CUresult result = ::cuMemHostRegister(at, 4096, 0);
    if (result == CUDA_SUCCESS) ::cuMemHostUnregister(at);
    ::munmap(at, 4096);
    return result;
  };
  constexpr int kRead = PROT_READ, kWrite = PROT_READ | PROT_WRITE;
  EXPECT_CUDA(CUDA_SUCCESS, registered(kWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1));
  EXPECT_CUDA(CUDA_SUCCESS, registered(kWrite, MAP_SHARED | MAP_ANONYMOUS, -1));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, registered(kRead, MAP_PRIVATE | MAP_ANONYMOUS, -1));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, registered(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::ftruncate(::fileno(file), 4096), 0);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, registered(kWrite, MAP_SHARED, ::fileno(file)));
  EXPECT_CUDA(CUDA_SUCCESS, registered(kWrite, MAP_PRIVATE, ::fileno(file)));
  std::fclose(file);
}

TEST_F(StreamTest, AfterAnErrorNothingThatIsQueuedRuns) {
  Called called;
  ASSERT_OK(wait_for(1));
  ASSERT_OK(::cuMemsetD8Async(reserve(kGranule), 0, 8, stream_));
  ASSERT_OK(::cuLaunchHostFunc(stream_, call, &called));
  set(0, 1);
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
  EXPECT_EQ(called.times, 0);
}

void add_to_each(const FakecudaLaunch* launch, void** parameters) {
  const auto at = *static_cast<CUdeviceptr*>(parameters[0]);
  const auto what = *static_cast<unsigned char*>(parameters[1]);
  auto* bytes = static_cast<unsigned char*>(::fakecuda_access(at, launch->grid[0], 1));
  for (unsigned i = 0; bytes != nullptr && i < launch->grid[0]; ++i) {
    bytes[i] = static_cast<unsigned char>(bytes[i] + what);
  }
}

constexpr const char* kPtx = "//\n.version 7.0\n.target sm_80\n";

TEST_F(StreamTest, AModuleIsAnImageThatTheDriverAndTheDeviceTake) {
  const auto load = [](const char* image) {
    CUmodule module = nullptr;
    return ::cuModuleLoadData(&module, image);
  };
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, load("any image"));
  EXPECT_CUDA(CUDA_SUCCESS, load("//\n.version 9.0\n.target sm_90\n"));
  EXPECT_CUDA(CUDA_ERROR_NO_BINARY_FOR_GPU, load("//\n.version 9.0\n.target sm_100\n"));
  EXPECT_CUDA(CUDA_SUCCESS, load("\x50\xed\x55\xba and so on"));
  start({{"FAKECUDA_DRIVER_VERSION", "12080"}, {"FAKECUDA_COMPUTE_CAPABILITY", "120"}});
  EXPECT_CUDA(CUDA_SUCCESS, load(kPtx));
  EXPECT_CUDA(CUDA_SUCCESS, load("//\n.version 8.7\n.target sm_120\n"));
  EXPECT_CUDA(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, load("//\n.version 8.8\n.target sm_80\n"));
  EXPECT_CUDA(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, load("\x50\xed\x55\xba and so on"));
}

TEST_F(StreamTest, KernelsRunTheirHostReferenceWithTheParametersOfTheLaunch) {
  const std::size_t sizes[] = {sizeof(CUdeviceptr), 1};
  ::fakecuda_register_kernel("add_to_each", add_to_each, sizes, 2);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_OK(::cuModuleLoadData(&module, kPtx));
  EXPECT_CUDA(CUDA_ERROR_NOT_FOUND, ::cuModuleGetFunction(&function, module, "unknown"));
  ASSERT_OK(::cuModuleGetFunction(&function, module, "add_to_each"));
  auto memory = device_memory();
  unsigned char what = 3;
  void* parameters[] = {&memory.at, &what};
  const auto launch = [&](unsigned blocks, unsigned threads) {
    return ::cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream_, parameters, nullptr);
  };
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch(1, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, launch(1, 1025));
  ASSERT_OK(wait_for(1));
  ASSERT_OK(launch(100, 1));
  what = 50;
  set(0, 1);
  const HostMemory out(128);
  pin(out);
  read(memory.at, out);
  EXPECT_EQ(out.count(std::byte{0xA8}), 100u);
  EXPECT_EQ(out.count(std::byte{0xA5}), 28u);
  memory.at += kGranule - 50;
  ASSERT_OK(launch(100, 1)) << "runs over the end";
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, sync());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_ADDRESS, ::cuModuleUnload(module));
}

}  // namespace
}  // namespace kvd::tests
