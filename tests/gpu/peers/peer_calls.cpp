// The commands of a peer that makes calls while one of its streams waits, or is captured.
#include <cudaTypedefs.h>
#include <sys/mman.h>

#include <functional>
#include <thread>

#include "tests/gpu/peers/peer_state.hpp"
#include "tests/gpu/slots.hpp"

namespace kvd::gpu {
namespace {

using Call = std::function<Status()>;
using Made = Result<Call>;

constexpr int kLaunches = 2000;

template <class T>
std::shared_ptr<T> keep(PeerState& peer, T value) {
  auto kept = std::make_shared<T>(std::move(value));
  peer.kept.push_back(kept);
  return kept;
}

/// A call that makes something and keeps it.
template <class Make>
Call making(PeerState& peer, Make make) {
  return [&peer, make]() -> Status {
    auto made = make();
    if (!made.ok()) return made.error();
    keep(peer, std::move(made).value());
    return {};
  };
}

/// An allocation with addresses, mapped where asked for.
struct Parts {
  cuda::PhysicalMemory memory;
  cuda::AddressRange range;
  std::optional<cuda::Mapping> mapping;
};
Result<std::shared_ptr<Parts>> parts(PeerState& peer, bool mapped) {
  const Gpu& gpu = *peer.gpu;
  KVD_ASSIGN_OR_RETURN(
      cuda::PhysicalMemory memory,
      cuda::PhysicalMemory::create(gpu.driver(), gpu.device().handle, gpu.grain()));
  KVD_ASSIGN_OR_RETURN(cuda::AddressRange range,
                       cuda::AddressRange::reserve(gpu.driver(), gpu.grain()));
  auto made = keep(peer, Parts{std::move(memory), std::move(range), std::nullopt});
  if (mapped) {
    KVD_ASSIGN_OR_RETURN(cuda::Mapping mapping,
                         cuda::Mapping::map(made->range.address(), made->memory));
    made->mapping.emplace(std::move(mapping));
  }
  return made;
}

Made create(PeerState& peer) {
  return making(peer, [&gpu = *peer.gpu] {
    return cuda::PhysicalMemory::create(gpu.driver(), gpu.device().handle, gpu.grain());
  });
}

Made map(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(const auto made, parts(peer, false));
  return Call([made]() -> Status {
    KVD_ASSIGN_OR_RETURN(cuda::Mapping mapping,
                         cuda::Mapping::map(made->range.address(), made->memory));
    made->mapping.emplace(std::move(mapping));
    return {};
  });
}

Made grant(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(const auto made, parts(peer, true));
  return Call([made, &gpu = *peer.gpu] {
    return cuda::grant_access(gpu.driver(), made->range.address(), gpu.grain(), gpu.device().handle,
                              cuda::Access::kReadWrite);
  });
}

Made unmap(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(const auto made, parts(peer, true));
  return Call([made]() -> Status {
    made->mapping.reset();
    return {};
  });
}

/// Shared memory that is there, not registered; unmapped with the process.
Result<std::uintptr_t> pages(Bytes size) {
  void* at = ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) return make_error(ErrorCode::kOutOfMemory, "no memory to register");
  return reinterpret_cast<std::uintptr_t>(at);
}

Made host_register(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(const std::uintptr_t at, pages(kMiB));
  return making(peer, [&gpu = *peer.gpu, at] {
    return cuda::HostRegistration::make(gpu.driver(), at, kMiB);
  });
}

Made host_unregister(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(const std::uintptr_t at, pages(kMiB));
  KVD_ASSIGN_OR_RETURN(cuda::HostRegistration made,
                       cuda::HostRegistration::make(peer.gpu->driver(), at, kMiB));
  const auto kept = keep(peer, std::optional<cuda::HostRegistration>(std::move(made)));
  return Call([kept]() -> Status {
    kept->reset();
    return {};
  });
}

Made make_stream(PeerState& peer) {
  return making(peer, [&gpu = *peer.gpu] { return cuda::Stream::create(gpu.driver()); });
}

Made make_event(PeerState& peer) {
  return making(peer, [&gpu = *peer.gpu] { return cuda::Event::create(gpu.driver()); });
}

Made query_event(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(cuda::Event made, cuda::Event::create(peer.gpu->driver()));
  const auto kept = keep(peer, std::move(made));
  return Call([kept, &gpu = *peer.gpu] { return gpu.check(kept->query(), "asking an event"); });
}

Made load_module(PeerState& peer) {
  return Call([&gpu = *peer.gpu]() -> Status {
    KVD_TRY(gpu.load_module());
    return {};
  });
}

Made memory_info(PeerState& peer) {
  return Call([&gpu = *peer.gpu]() -> Status {
    KVD_TRY(gpu.free_memory());
    return {};
  });
}

/// As many behind the wait as a queue of a channel certainly does not hold.
Made launches(PeerState& peer) {
  KVD_ASSIGN_OR_RETURN(GpuSlab slab, GpuSlab::make(*peer.gpu, peer.gpu->grain()));
  const auto kept = keep(peer, std::move(slab));
  return Call([kept, &gpu = *peer.gpu]() -> Status {
    for (int i = 0; i < kLaunches; ++i) {
      KVD_TRY(
          gpu.launch(Gpu::Kernel::kRead, gpu.stream().get(), kept->address(), Bytes(4096), 1, 1));
    }
    return {};
  });
}

Made synchronize(PeerState& peer) {
  return Call([&gpu = *peer.gpu] {
    return gpu.check(gpu.driver().ctx_synchronize(), "waiting for the context");
  });
}

const std::map<std::string, Made (*)(PeerState&)>& calls() {
  static const std::map<std::string, Made (*)(PeerState&)> kAll = {{"create", create},
                                                                   {"map", map},
                                                                   {"grant", grant},
                                                                   {"unmap", unmap},
                                                                   {"register", host_register},
                                                                   {"unregister", host_unregister},
                                                                   {"stream", make_stream},
                                                                   {"event", make_event},
                                                                   {"query", query_event},
                                                                   {"module", load_module},
                                                                   {"info", memory_info},
                                                                   {"launches", launches},
                                                                   {"synchronize", synchronize}};
  return kAll;
}

Made call_of(PeerState& peer, const std::string& name) {
  const auto found = calls().find(name);
  if (found != calls().end()) return found->second(peer);
  return make_error(ErrorCode::kInvalidArgument, "no such call: " + name);
}

// "blocked CALL VALUE": makes the call while a stream waits for the signal slot to be VALUE;
// answers how many microseconds it took.
Result<Answer> blocked(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const std::string name = words.text();
  const std::uint64_t value = words.number();
  const Gpu& gpu = *peer.gpu;
  KVD_ASSIGN_OR_RETURN(const Call call, call_of(peer, name));
  KVD_TRY(queue_wait(gpu, gpu.stream().get(), slot_address(*peer.page, Slot::kSignal), value));
  // Long against a launch: the stream stands at its wait.
  for (const double end = now_s() + 1e-3; now_s() < end;) {
  }
  const double start = now_s();
  KVD_TRY(call());
  return Answer{std::to_string((now_s() - start) * 1e6), {}};
}

// "drained": the stream's work is done, and what was kept for it is given back.
Result<Answer> drained(PeerState& peer, Words&, std::vector<UniqueFd>&) {
  KVD_TRY(peer.gpu->finish());
  peer.kept.clear();
  return Answer{};
}

template <class Function>
Function entry(const Gpu& gpu, const char* name, int version) {
  void* address = nullptr;
  const CUresult found = gpu.driver().get_proc_address(name, &address, version,
                                                       CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
  return found == CUDA_SUCCESS ? reinterpret_cast<Function>(address) : nullptr;
}

struct Captures {
  explicit Captures(const Gpu& gpu)
      : begin(entry<PFN_cuStreamBeginCapture_v10010>(gpu, "cuStreamBeginCapture", 10010)),
        end(entry<PFN_cuStreamEndCapture_v10000>(gpu, "cuStreamEndCapture", 10000)),
        destroy(entry<PFN_cuGraphDestroy_v10000>(gpu, "cuGraphDestroy", 10000)),
        exchange(entry<PFN_cuThreadExchangeStreamCaptureMode_v10010>(
            gpu, "cuThreadExchangeStreamCaptureMode", 10010)) {}
  bool there() const {
    return begin != nullptr && end != nullptr && destroy != nullptr && exchange != nullptr;
  }
  PFN_cuStreamBeginCapture_v10010 begin;
  PFN_cuStreamEndCapture_v10000 end;
  PFN_cuGraphDestroy_v10000 destroy;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange;
};

/// The call in a thread of its own, in the relaxed mode if asked for; its result.
Status elsewhere(const Gpu& gpu, const Captures& captures, bool relaxed, const Call& call) {
  Status status;
  std::thread([&] {
    const cuda::ScopedCurrent current(gpu.context());
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (relaxed) captures.exchange(&mode);
    status = call();
  }).join();
  return status;
}

// "capture CALL MODE RELAXED": captures a stream in the mode (0 global, 1 thread-local, 2 relaxed),
// has another thread make the call meanwhile; answers whether the call went well, and the result of
// the capture's end.
Result<Answer> captured(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const std::string name = words.text();
  const auto mode = static_cast<CUstreamCaptureMode>(words.number());
  const bool relaxed = words.number() != 0;
  const Gpu& gpu = *peer.gpu;
  const Captures captures(gpu);
  if (!captures.there()) return make_error(ErrorCode::kUnsupported, "the driver captures nothing");
  KVD_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create(gpu.driver()));
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain()));
  KVD_ASSIGN_OR_RETURN(const Call call, call_of(peer, name));
  KVD_TRY(gpu.check(captures.begin(stream.get(), mode), "beginning a capture"));
  gpu.driver().memset_d8_async(slab.address(), 0, 4096, stream.get());
  const Status status = elsewhere(gpu, captures, relaxed, call);
  gpu.driver().memset_d8_async(slab.address(), 0, 4096, stream.get());
  CUgraph graph = nullptr;
  const CUresult ended = captures.end(stream.get(), &graph);
  if (graph != nullptr) captures.destroy(graph);
  peer.kept.clear();
  return Answer{std::string(status.ok() ? "1 " : "0 ") + std::to_string(static_cast<int>(ended)),
                {}};
}

}  // namespace

std::map<std::string, Command> call_commands() {
  return {{"blocked", blocked}, {"drained", drained}, {"capture", captured}};
}

}  // namespace kvd::gpu
