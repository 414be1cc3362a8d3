#include <thread>

#include "tests/unit/fakecuda/fake_world.hpp"

namespace kvd::tests {
namespace {

class CaptureTest : public FakeCuda {
 protected:
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) const {
    EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamBeginCapture(stream_, mode));
  }
  CUresult end() const {
    CUgraph graph = nullptr;
    const CUresult result = ::cuStreamEndCapture(stream_, &graph);
    EXPECT_EQ(result == CUDA_SUCCESS, graph != nullptr);
    if (graph != nullptr) {
      EXPECT_CUDA(CUDA_SUCCESS, ::cuGraphDestroy(graph));
    }
    return result;
  }
  CUstreamCaptureStatus status() const {
    CUstreamCaptureStatus status{};
    EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamIsCapturing(stream_, &status));
    return status;
  }
  /// The call's result in another thread of the same context.
  template <class Call>
  CUresult elsewhere(Call call) const {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSetCurrent(context_));
      result = call();
    }).join();
    return result;
  }
  CUresult query_an_event() const {
    CUevent mark = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, ::cuEventCreate(&mark, CU_EVENT_DISABLE_TIMING));
    return ::cuEventQuery(mark);
  }
};

TEST_F(CaptureTest, WorkIsTakenInAndNotDone) {
  const auto device = device_memory();
  begin();
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_OK(::cuMemsetD8Async(device.at, 7, kGranule, stream_));
  EXPECT_CUDA(CUDA_SUCCESS, end());
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_NONE);
  const HostMemory out(kGranule);
  pin(out);
  read(device.at, out);
  EXPECT_TRUE(out.all(std::byte{0xa5}));
}

// Others measured this on one GPU. It holds for every mode and thread.
TEST_F(CaptureTest, WaitingForTheContextEndsEveryCaptureInIt) {
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    begin(mode);
    EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, elsewhere([] {
                  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
                  EXPECT_CUDA(CUDA_SUCCESS, ::cuThreadExchangeStreamCaptureMode(&relaxed));
                  EXPECT_EQ(relaxed, CU_STREAM_CAPTURE_MODE_GLOBAL);
                  return ::cuCtxSynchronize();
                }));
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ::cuMemsetD8Async(0, 0, 1, stream_));
    EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  }
  EXPECT_CUDA(CUDA_SUCCESS, ::cuCtxSynchronize());
}

TEST_F(CaptureTest, AGlobalCaptureForbidsUnsafeCallsToEveryThreadThatDidNotRelax) {
  const auto query = [this] { return query_an_event(); };
  begin();
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, elsewhere(query));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    begin();
    EXPECT_CUDA(CUDA_SUCCESS, elsewhere([&] {
                  CUstreamCaptureMode mine = mode;
                  EXPECT_CUDA(CUDA_SUCCESS, ::cuThreadExchangeStreamCaptureMode(&mine));
                  return query();
                }));
    EXPECT_CUDA(CUDA_SUCCESS, end());
  }
}

TEST_F(CaptureTest, AThreadLocalCaptureForbidsThemToItsOwnThreadAlone) {
  const auto query = [this] { return query_an_event(); };
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_CUDA(CUDA_SUCCESS, elsewhere(query));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, query());
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_CUDA(CUDA_SUCCESS, query());
  EXPECT_CUDA(CUDA_SUCCESS, end());
}

TEST_F(CaptureTest, WhatChangesMemoryOrCodeIsUnsafe) {
  const HostMemory host(4096);
  const auto handle = create();
  const CUdeviceptr at = reserve(kGranule);
  CUmodule module = nullptr;
  const auto refused = [&](CUresult result) {
    EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, result);
    EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
    begin();
  };
  begin();
  refused(::cuMemHostRegister(host.data(), host.size(), 0));
  refused(::cuMemMap(at, kGranule, 0, handle, 0));
  refused(::cuMemAddressFree(at, kGranule));
  refused(::cuMemRelease(handle));
  refused(::cuModuleLoadData(&module, "any image"));
  EXPECT_CUDA(CUDA_SUCCESS, end());
}

TEST_F(CaptureTest, ACapturedStreamHasNoTimeOfItsOwn) {
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, ::cuStreamQuery(stream_));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  CUevent inside = nullptr, outside = nullptr;
  ASSERT_OK(::cuEventCreate(&inside, 0));
  ASSERT_OK(::cuEventCreate(&outside, 0));
  ASSERT_OK(::cuEventRecord(outside, stream_));
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_OK(::cuEventRecord(inside, stream_));
  EXPECT_CUDA(CUDA_ERROR_CAPTURED_EVENT, ::cuEventQuery(inside));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, ::cuStreamWaitEvent(stream_, outside, 0));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
}

TEST_F(CaptureTest, TheLegacyStreamIsOfNoUseWhileABlockingStreamIsCaptured) {
  CUstream blocking = nullptr;
  ASSERT_OK(::cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
              ::cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
  ASSERT_OK(::cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status{};
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, ::cuStreamIsCapturing(nullptr, &status));
  CUgraph graph = nullptr;
  EXPECT_CUDA(CUDA_SUCCESS, ::cuStreamEndCapture(blocking, &graph)) << "asking ends nothing";
  ASSERT_OK(::cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, ::cuStreamQuery(nullptr));
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ::cuStreamEndCapture(blocking, &graph));
}

TEST_F(CaptureTest, EndsInTheThreadThatBeganIt) {
  begin();
  EXPECT_CUDA(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, elsewhere([this] { return end(); }));
  EXPECT_CUDA(CUDA_SUCCESS, end());
  EXPECT_CUDA(CUDA_ERROR_ILLEGAL_STATE, end());
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_CUDA(CUDA_SUCCESS, elsewhere([this] { return end(); }));
}

}  // namespace
}  // namespace kvd::tests
