// E7, E8: how fast a stream in one process wakes for what another did, and what frees it when that
// one is dead.

#include <algorithm>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/slots.hpp"

namespace kvd::gpu {
namespace {

/// Waits by looking until the slot holds `value`. Errors: DeadlineExceeded after 10 s.
Status await(const PinnedMemory& page, Slot slot, std::uint64_t value) {
  for (const double end = now_s() + 10; load(slot_word(page, slot)) < value;) {
    if (now_s() > end) return make_error(ErrorCode::kDeadlineExceeded, "a stream was not woken");
  }
  return {};
}

/// What was queued a moment ago has surely reached its wait. Long against a launch (microseconds).
void settle() {
  for (const double end = now_s() + 100e-6; now_s() < end;) {
  }
}

/// Runs `arm(i)` for i = first, … and opens the gate; microseconds from the gate's store until the
/// answer is there.
template <class Arm>
Result<std::vector<double>> gated(const PinnedMemory& page, std::uint64_t& sequence, int samples,
                                  Arm arm) {
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    const std::uint64_t now = ++sequence;
    KVD_TRY(arm(now));
    settle();
    const double start = now_s();
    store(slot_word(page, Slot::kGate), now);
    KVD_TRY(await(page, Slot::kAnswer, now));
    times.push_back((now_s() - start) * 1e6);
  }
  return times;
}

struct Bench {
  const Lab& lab;
  const Gpu& gpu;
  const PinnedMemory& page;
  const Peer& peer;
  std::uint64_t sequence = 0;
  int samples = 0;
  double baseline = 0;
};

Status arm_gate(const Bench& bench, CUstream stream, std::uint64_t sequence) {
  return queue_wait(bench.gpu, stream, slot_address(bench.page, Slot::kGate), sequence);
}

/// Baseline: one stream of this process that waits for the gate and answers.
Status measure_baseline(Bench& bench) {
  CUstream stream = bench.gpu.stream().get();
  KVD_ASSIGN_OR_RETURN(
      const auto times,
      gated(bench.page, bench.sequence, bench.samples, [&](std::uint64_t now) -> Status {
        KVD_TRY(arm_gate(bench, stream, now));
        return queue_write(bench.gpu, stream, slot_address(bench.page, Slot::kAnswer), now);
      }));
  bench.baseline = percentile(times, 0.5);
  bench.lab.out.figure("CPU store, stream wakes and writes, CPU sees it: median", bench.baseline,
                       "us");
  bench.lab.out.figure("the same: p99", percentile(times, 0.99), "us");
  return {};
}

/// The gate wakes this process's stream, which signals; the peer's stream wakes and answers.
template <class Signal>
Result<std::vector<double>> through_peer(Bench& bench, const std::string& how, Signal signal) {
  return gated(bench.page, bench.sequence, bench.samples, [&](std::uint64_t now) -> Status {
    CUstream stream = bench.gpu.stream().get();
    KVD_TRY(arm_gate(bench, stream, now));
    KVD_TRY(signal(stream, now));
    KVD_TRY(bench.peer.ask("arm " + how + " " + std::to_string(now)));
    return {};
  });
}

void report_hop(const Bench& bench, const std::string& what, const std::vector<double>& times) {
  bench.lab.out.figure(what + ", one hop more than the baseline: median",
                       percentile(times, 0.5) - bench.baseline, "us");
  bench.lab.out.figure(what + ": p99", percentile(times, 0.99) - bench.baseline, "us");
}

Status host_slot(Bench& bench) {
  KVD_ASSIGN_OR_RETURN(
      const auto times, through_peer(bench, "host", [&](CUstream stream, std::uint64_t now) {
        return queue_write(bench.gpu, stream, slot_address(bench.page, Slot::kSignal), now);
      }));
  bench.lab.out.at_most("host slot wakes another process's stream: median",
                        percentile(times, 0.5) - bench.baseline, "us", 10);
  bench.lab.out.at_most("host slot: p99", percentile(times, 0.99) - bench.baseline, "us", 50);
  return {};
}

Status device_slot(Bench& bench) {
  const Bytes size = bench.gpu.grain();
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(bench.gpu, size));
  KVD_TRY(bench.gpu.check(
      bench.gpu.driver().memset_d32_async(slab.address(), 0, 16, bench.gpu.stream().get()),
      "clearing a slot"));
  KVD_TRY(bench.gpu.finish());
  KVD_ASSIGN_OR_RETURN(const UniqueFd fd, slab.memory().export_fd());
  KVD_TRY(bench.peer.ask("import " + std::to_string(size.value) + " w", {fd.get()}));
  KVD_ASSIGN_OR_RETURN(const auto times,
                       through_peer(bench, "device", [&](CUstream stream, std::uint64_t now) {
                         return queue_write(bench.gpu, stream, slab.address(), now);
                       }));
  report_hop(bench, "device slot", times);
  return bench.gpu.finish();
}

Status shared_event(Bench& bench) {
  const Result<SharedEvent> event = share_event(bench.gpu);
  if (!event.ok()) {
    bench.lab.out.note("events between processes not measured: " + event.error().message);
    return {};
  }
  KVD_TRY(bench.peer.ask("event " + event->handle));
  KVD_ASSIGN_OR_RETURN(
      const auto times, through_peer(bench, "event", [&](CUstream stream, std::uint64_t) {
        return bench.gpu.check(bench.gpu.driver().event_record(event->event, stream), "a record");
      }));
  report_hop(bench, "event between processes", times);
  return {};
}

/// An event between two streams of this process.
Status own_event(Bench& bench) {
  KVD_ASSIGN_OR_RETURN(const cuda::Stream second, cuda::Stream::create(bench.gpu.driver()));
  CUevent raw = nullptr;
  KVD_TRY(bench.gpu.check(bench.gpu.driver().event_create(&raw, CU_EVENT_DISABLE_TIMING),
                          "making an event"));
  KVD_ASSIGN_OR_RETURN(
      const auto times,
      gated(bench.page, bench.sequence, bench.samples, [&](std::uint64_t now) -> Status {
        KVD_TRY(arm_gate(bench, bench.gpu.stream().get(), now));
        KVD_TRY(bench.gpu.check(bench.gpu.driver().event_record(raw, bench.gpu.stream().get()),
                                "a record"));
        KVD_TRY(bench.gpu.check(bench.gpu.driver().stream_wait_event(second.get(), raw, 0),
                                "an event's wait"));
        return queue_write(bench.gpu, second.get(), slot_address(bench.page, Slot::kAnswer), now);
      }));
  report_hop(bench, "event within a process", times);
  KVD_TRY(bench.gpu.finish(second.get()));
  return bench.gpu.check(bench.gpu.driver().event_destroy(raw), "dropping an event");
}

}  // namespace

Status ordering_latency(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const Peer peer, Peer::start());
  KVD_TRY(peer.ask("page", {page.fd()}));
  Bench bench{lab, *gpu, page, peer, 0, lab.quick ? 10 : 1000, 0};
  KVD_TRY(measure_baseline(bench));
  KVD_TRY(own_event(bench));
  KVD_TRY(host_slot(bench));
  KVD_TRY(device_slot(bench));
  KVD_TRY(shared_event(bench));
  lab.out.require("every wait was released and in order", true);
  return {};
}

Status dead_waiter(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  double slowest = 0;
  const int rounds = lab.quick ? 2 : 10;
  // It dies in the first round; in the others it has been dead for a while.
  KVD_ASSIGN_OR_RETURN(Peer daemon, Peer::start());
  KVD_TRY(daemon.ask("page", {page.fd()}));
  for (int round = 1; round <= rounds; ++round) {
    const auto sequence = static_cast<std::uint64_t>(round);
    KVD_TRY(queue_wait(*gpu, gpu->stream().get(), slot_address(page, Slot::kSignal), sequence));
    KVD_TRY(gpu->launch(Gpu::Kernel::kRead, gpu->stream().get(), page.device_address() + 2048,
                        Bytes(2048), 1, 1));
    settle();
    daemon.kill();
    const bool held = gpu->driver().stream_query(gpu->stream().get()) == CUDA_ERROR_NOT_READY;
    lab.out.require("the dead release nobody, round " + std::to_string(round), held);
    const double start = now_s();
    store(slot_word(page, Slot::kSignal), sequence);
    KVD_TRY(gpu->finish());
    slowest = std::max(slowest, (now_s() - start) * 1e3);
  }
  lab.out.at_most("CPU store to drained stream, slowest", slowest, "ms", 1);
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(*gpu, gpu->grain()));
  lab.out.require("the context works on", gpu->free_memory().ok());
  return {};
}

}  // namespace kvd::gpu
