#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fakecuda/config.hpp"
#include "tests/support/fakecuda/fakecuda.h"
#include "tests/support/fakecuda/memory/host_registry.hpp"
#include "tests/support/fakecuda/memory/vmm.hpp"
#include "tests/support/fakecuda/streams/capture.hpp"
#include "tests/support/fakecuda/streams/stream.hpp"

struct CUfunc_st {
  FakecudaKernel kernel = nullptr;
  std::vector<std::size_t> sizes;
};

struct CUmod_st {};

namespace fakecuda {

/// The copy engine that a copy takes. There is one for each direction and one for the rest, shared
/// by all streams.
enum class Lane : std::uint8_t { kHostToDevice, kDeviceToHost, kOther };
constexpr std::size_t kLanes = 3;

/// A copy engine: one copy at a time.
class Engine {
 public:
  /// False when the stream was given up meanwhile.
  bool acquire(const CUstream_st& stream);
  void release();

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  bool busy_ = false;
};

/// Everything this process's driver knows. `mutex` guards what has no lock of its own; it is never
/// held while a stream works, and a stream's lock is only taken inside it.
struct Driver {
  explicit Driver(Config from_environment);

  const Config config;
  std::mutex mutex;
  bool initialized = false;
  std::map<std::string, unsigned> calls;            // of each entry point
  std::vector<std::unique_ptr<CUctx_st>> contexts;  // one a device
  std::vector<std::array<Engine, kLanes>> engines;  // by device
  std::map<CUstream, std::shared_ptr<CUstream_st>> streams;
  std::map<CUevent, std::unique_ptr<CUevent_st>> events;
  std::vector<std::weak_ptr<CUstream_st>> every_stream;  // destroyed ones still draining included
  Captures captures;
  std::map<CUgraph, std::unique_ptr<CUgraph_st>> graphs;
  std::map<CUmodule, std::unique_ptr<CUmod_st>> modules;
  std::map<std::string, std::unique_ptr<CUfunc_st>> kernels;
  Vmm vmm;
  HostRegistry host;
  std::array<std::atomic<std::uint64_t>, kLanes> bytes{};
  std::atomic<std::uint64_t> pageable_copies{0};
  std::uint64_t streams_made = 0;
  std::mutex host_functions;  // run one at a time
};

Driver& driver();

/// What an entry point needs before it does its work.
enum class Needs : std::uint8_t {
  kNothing,  ///< answers always
  kInit,     ///< cuInit; answers even with a latched error, so that a program can clean up
  kHealthy,  ///< cuInit, and no error latched in the current context if there is one
  kContext,  ///< a current context without a latched error
};

/// The first line of every entry point: counts the call, injects faults, checks `needs`.
CUresult enter(const char* entry, Needs needs);
/// Waits for all streams of the current context, where the driver is told to be like that: cuda.h
/// lets calls that change mappings, registrations and streams wait for the device, and does not say
/// when they do (its \\note_sync).
void synchronize_if_told();
/// Waits for all streams of the current context.
void synchronize();
/// The calling thread's context, or null.
CUcontext current_context();
/// The contexts of the calling thread, innermost last.
std::vector<CUcontext>& context_stack();
/// Keeps the first error; every later call in the context returns it.
void latch(CUcontext context, CUresult code);
/// The stream whose host function or kernel runs on this thread.
CUstream_st*& running_stream();
/// True while a host function runs on this thread: it must not call CUDA.
bool& in_host_function();

/// What an address range is, at the time of the call.
enum class Space : std::uint8_t { kDevice, kHost, kPageable, kBroken };
/// kBroken: partly known memory, or two registrations. With driver().mutex.
Space classify(CUdeviceptr pointer, std::size_t size);
/// The bytes at the time a copy engine touches them. Empty after reporting a fault, as which the
/// caller latches CUDA_ERROR_ILLEGAL_ADDRESS.
std::vector<Segment> touch(int device, CUdeviceptr pointer, std::size_t size, bool write);
/// Whether queued or running work touches the range. With driver().mutex.
bool in_flight(CUdeviceptr pointer, std::size_t size);

/// The stream of a handle, for work in the current context; NULL is the legacy stream.
CUresult find_stream(CUstream handle, std::shared_ptr<CUstream_st>& stream);
/// Adds the legacy stream's rules and queues; returns the operation's number.
std::uint64_t enqueue(const std::shared_ptr<CUstream_st>& stream, Operation operation);
/// A started stream of the context. With driver().mutex.
std::shared_ptr<CUstream_st> make_stream(CUcontext context, unsigned flags);
/// Ends the streams of a context (all when null) without finishing them.
void abandon_streams(CUcontext context);

}  // namespace fakecuda
