// E19: how late kvd's fences come while another process has the SMs, by what raises them.
#include "kernels/device/cuda/copies/extent_cursor.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/slots.hpp"

namespace kvd::gpu {
namespace {

constexpr Bytes kCopy = kKiB * 64;
constexpr std::uint64_t kRuns = 16;                      // lengths of kernels, and ways of raising
constexpr std::size_t kMostFences = 1 << 15;             // of one run
constexpr std::uint64_t kNumbers = kRuns * kMostFences;  // no fence is raised twice

/// What raises a fence after a copy.
enum class Raise : std::uint8_t { kWriteValue, kCopyOfANumber, kCpu };
constexpr const char* kRaises[] = {"a written value", "a copy of 8 bytes", "the CPU"};

/// A page of slots, something to copy, and numbers in device memory that fences are copied from.
struct Bench {
  const Gpu& gpu;
  PinnedMemory page, host;
  GpuSlab device, numbers;
  cuda::Event mark;
  std::uint64_t sequence = 0;
};

Result<Bench> make_bench(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(PinnedMemory page, PinnedMemory::make(gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::make(gpu, kNumbers * Bytes(8)));
  KVD_ASSIGN_OR_RETURN(GpuSlab device, GpuSlab::make(gpu, gpu.grain()));
  KVD_ASSIGN_OR_RETURN(GpuSlab numbers, GpuSlab::make(gpu, kNumbers * Bytes(8)));
  KVD_ASSIGN_OR_RETURN(cuda::Event mark, cuda::Event::create(gpu.driver()));
  for (std::uint64_t i = 0; i < kNumbers; ++i) host.words()[i] = i;
  KVD_TRY(gpu.check(gpu.driver().memcpy_htod_async(numbers.address(), host.data(), kNumbers * 8,
                                                   gpu.stream().get()),
                    "copying numbers"));
  KVD_TRY(gpu.finish());
  return Bench{gpu,
               std::move(page),
               std::move(host),
               std::move(device),
               std::move(numbers),
               std::move(mark)};
}

/// Has the signal slot become the sequence after all that is queued in the stream; kCpu waits for
/// it here.
Status raise(Bench& bench, Raise how) {
  const Gpu& gpu = bench.gpu;
  if (how == Raise::kWriteValue) {
    return queue_write(gpu, gpu.stream().get(), slot_address(bench.page, Slot::kSignal),
                       bench.sequence);
  }
  if (how == Raise::kCopyOfANumber) {
    return gpu.check(gpu.driver().memcpy_dtoh_async(slot_word(bench.page, Slot::kSignal),
                                                    bench.numbers.address() + bench.sequence * 8, 8,
                                                    gpu.stream().get()),
                     "a fence that is a copy");
  }
  KVD_TRY(gpu.check(bench.mark.record(gpu.stream()), "marking a stream"));
  CUresult passed = CUDA_ERROR_NOT_READY;
  for (const double end = now_s() + 10; passed == CUDA_ERROR_NOT_READY && now_s() < end;) {
    passed = bench.mark.query();
  }
  store(slot_word(bench.page, Slot::kSignal), bench.sequence);
  return gpu.check(passed, "asking for a mark");
}

Status await(const PinnedMemory& page, Slot slot, std::uint64_t value) {
  for (const double end = now_s() + 10; load(slot_word(page, slot)) != value;) {
    if (now_s() > end) return make_error(ErrorCode::kDeadlineExceeded, "a fence was not raised");
  }
  return {};
}

/// Copies and raises until `stop`; microseconds from the call that queues the copy until the CPU
/// sees the fence or, with a waiter, until the waiter's stream has answered.
Result<std::vector<double>> fences(Bench& bench, Raise how, const Peer* waiter,
                                   const std::function<bool()>& stop) {
  const Gpu& gpu = bench.gpu;
  std::vector<double> samples;
  do {
    if (++bench.sequence == kNumbers) return make_error(ErrorCode::kInternal, "too many fences");
    if (waiter != nullptr) KVD_TRY(waiter->ask("arm host " + std::to_string(bench.sequence)));
    kernels::cuda::CopyList list;
    list.to = {bench.device.address()};
    list.from = {bench.host.address()};
    list.lengths = {kCopy.size()};
    list.bytes = kCopy;
    const double start = now_s();
    KVD_TRY(gpu.check(gpu.stream().copy(list), "a copy"));
    KVD_TRY(raise(bench, how));
    KVD_TRY(await(bench.page, waiter != nullptr ? Slot::kAnswer : Slot::kSignal, bench.sequence));
    samples.push_back((now_s() - start) * 1e6);
    KVD_TRY(gpu.finish());
  } while (!stop() && samples.size() < kMostFences);
  return samples;
}

void report(const Lab& lab, const std::string& what, const std::vector<double>& samples) {
  lab.out.figure(what + ": median", percentile(samples, 0.5), "us");
  lab.out.figure(what + ": p99", percentile(samples, 0.99), "us");
}

/// Every way of raising beside kernels of one length; zero: beside none.
Status one_length(const Lab& lab, Bench& bench, const Peer& engine, const Peer& waiter,
                  int kernel_us) {
  const int run_ms = lab.quick ? 20 : 1000;
  const std::string beside =
      kernel_us == 0 ? "alone" : "beside kernels of " + std::to_string(kernel_us) + " us";
  const auto measure = [&](Raise how, const Peer* woken) -> Result<std::vector<double>> {
    if (kernel_us == 0) {
      return fences(bench, how, woken, [end = now_s() + run_ms / 1e3] { return now_s() > end; });
    }
    KVD_TRY(engine.tell("steps " + std::to_string(kernel_us) + " " + std::to_string(run_ms)));
    KVD_ASSIGN_OR_RETURN(auto samples,
                         fences(bench, how, woken, [&] { return engine.answered(); }));
    KVD_TRY(engine.reply());
    return samples;
  };
  for (const Raise how : {Raise::kWriteValue, Raise::kCopyOfANumber, Raise::kCpu}) {
    KVD_ASSIGN_OR_RETURN(const auto samples, measure(how, nullptr));
    const std::string what = std::string("64 KiB and a fence by ") +
                             kRaises[static_cast<std::size_t>(how)] + ", " + beside;
    report(lab, what, samples);
    if (how != Raise::kWriteValue || kernel_us == 0) continue;
    lab.out.at_most(what + ": p99 of all", percentile(samples, 0.99), "us", 100);
  }
  KVD_ASSIGN_OR_RETURN(const auto woken, measure(Raise::kWriteValue, &waiter));
  report(lab, "64 KiB, a written value and another process's stream woken, " + beside, woken);
  return {};
}

}  // namespace

Status fences_beside_kernels(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(Bench bench, make_bench(*gpu));
  KVD_ASSIGN_OR_RETURN(const Peer engine, Peer::start());
  KVD_ASSIGN_OR_RETURN(const Peer waiter, Peer::start());
  KVD_TRY(waiter.ask("page", {bench.page.fd()}));
  for (const int kernel_us : {0, 50, 500, 5000}) {
    if (lab.quick && kernel_us > 50) continue;
    KVD_TRY(one_length(lab, bench, engine, waiter, kernel_us));
  }
  return {};
}

}  // namespace kvd::gpu
