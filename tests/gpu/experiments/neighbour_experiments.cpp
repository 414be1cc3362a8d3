// E6, E9: what kvd's work costs the engines' kernels, and whether fresh memory is clean.
#include <algorithm>
#include <functional>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/peers/traffic.hpp"

namespace kvd::gpu {
namespace {

constexpr unsigned kPaint = 0xC3A5F00D;

struct Steps {
  double p50 = 0, p99 = 0;
};
Result<Steps> steps_of(const Reply& reply) {
  Steps steps;
  KVD_ASSIGN_OR_RETURN(steps.p50, reply.number(0));
  KVD_ASSIGN_OR_RETURN(steps.p99, reply.number(1));
  return steps;
}

std::string steps_command(const Lab& lab, int step_us) {
  return "steps " + std::to_string(step_us) + " " + std::to_string(lab.quick ? 20 : 2500);
}

/// The engine's steps while `load` runs; it stops when asked.
Result<Steps> beside(const Lab& lab, const Peer& engine, int step_us,
                     const std::function<Status(const std::function<bool()>&)>& load) {
  KVD_TRY(engine.tell(steps_command(lab, step_us)));
  KVD_TRY(load([&] { return engine.answered(); }));
  KVD_ASSIGN_OR_RETURN(const Reply reply, engine.reply());
  return steps_of(reply);
}

void report(const Lab& lab, const std::string& what, int step_us, const Steps& steps,
            const Steps& alone) {
  const std::string name = "steps of " + std::to_string(step_us) + " us beside " + what;
  lab.out.figure(name + ": p99", steps.p99, "us");
  lab.out.figure(name + ": median over alone", steps.p50 / alone.p50, "");
}

/// Queues the work again and again and waits for it each time.
Status again(const Gpu& gpu, const std::function<CUresult()>& work,
             const std::function<bool()>& stop) {
  do {
    KVD_TRY(gpu.check(work(), "zeroing"));
    KVD_TRY(gpu.finish());
  } while (!stop());
  return {};
}

/// What kvd does not do, as it takes time slices, against steps of one length.
Status others_beside(const Lab& lab, const Gpu& gpu, const Peer& engine, int step_us,
                     const Steps& alone) {
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab,
                       GpuSlab::make(gpu, lab.quick ? gpu.grain() : kMiB * 256));
  KVD_ASSIGN_OR_RETURN(const GpuSlab zeros, GpuSlab::make(gpu, slab.size()));
  const auto memset = [&] {
    return gpu.driver().memset_d8_async(slab.address(), 0, slab.size().size(), gpu.stream().get());
  };
  KVD_ASSIGN_OR_RETURN(const Steps set, beside(lab, engine, step_us, [&](const auto& stop) {
                         return again(gpu, memset, stop);
                       }));
  report(lab, "memsets of another process", step_us, set, alone);
  // Whether scrubbing has to go over the link, as it does now to be safe.
  cuda::CopyList list{{slab.address()}, {zeros.address()}, {slab.size().size()}, slab.size()};
  const auto copy = [&] { return gpu.stream().copy(list); };
  KVD_ASSIGN_OR_RETURN(const Steps copied, beside(lab, engine, step_us, [&](const auto& stop) {
                         return again(gpu, copy, stop);
                       }));
  report(lab, "zeros that another process copies within the device", step_us, copied, alone);
  return {};
}

/// Plays one kernel length against every load, and the others after kvd's copies.
Status one_length(const Lab& lab, const Gpu& gpu, const Peer& engine, Traffic& traffic,
                  int step_us) {
  // The second run is the one that counts: clocks are up by then.
  KVD_TRY(engine.ask(steps_command(lab, step_us)));
  KVD_ASSIGN_OR_RETURN(const Reply reply, engine.ask(steps_command(lab, step_us)));
  KVD_ASSIGN_OR_RETURN(const Steps alone, steps_of(reply));
  const std::string length = "steps of " + std::to_string(step_us) + " us";
  lab.out.figure(length + " alone: median", alone.p50, "us");
  lab.out.figure(length + " alone: p99", alone.p99, "us");
  Traffic::Rates rates;
  KVD_ASSIGN_OR_RETURN(const Steps copies,
                       beside(lab, engine, step_us, [&](const auto& stop) -> Status {
                         KVD_ASSIGN_OR_RETURN(rates, traffic.run(true, true, kKiB * 256, stop));
                         return {};
                       }));
  report(lab, "copies both ways", step_us, copies, alone);
  lab.out.figure("kvd's copies beside " + length + ": H2D", rates.h2d / 1e9, "GB/s");
  lab.out.figure("kvd's copies beside " + length + ": D2H", rates.d2h / 1e9, "GB/s");
  lab.out.at_most(length + " beside copies both ways: p99 growth",
                  (copies.p99 / alone.p99 - 1) * 100, "%", 5);
  return others_beside(lab, gpu, engine, step_us, alone);
}

/// Paints memory in another process, lets it end, and looks for the paint in fresh memory here.
Result<std::uint64_t> foreign_words(const Lab& lab, const Gpu& gpu, bool everything) {
  const Bytes slab = lab.quick ? gpu.grain() * 4 : kMiB * 256;
  const Bytes limit = lab.quick ? slab * 2 : everything ? kGiB * 1024 : kGiB * 4;
  double painted = 0;
  {
    KVD_ASSIGN_OR_RETURN(const Peer painter, Peer::start());
    KVD_ASSIGN_OR_RETURN(
        const Reply reply,
        painter.ask("paint " + std::to_string((kMiB * 512).value * (lab.quick ? 0 : 1)) + " " +
                    std::to_string(slab.value) + " " + std::to_string(kPaint) + " " +
                    std::to_string(limit.value)));
    KVD_ASSIGN_OR_RETURN(painted, reply.number(0));
  }
  if (painted <= 0) return make_error(ErrorCode::kOutOfMemory, "no memory could be painted");
  // What the painter had may come back late: ask until a slab is there.
  std::uint64_t found = 0;
  std::vector<GpuSlab> fresh;
  const auto wanted = static_cast<std::size_t>(painted) / slab.size();
  for (const double end = now_s() + 10; fresh.size() < wanted && now_s() < end;) {
    auto one = GpuSlab::make(gpu, slab);
    if (!one.ok()) continue;
    KVD_ASSIGN_OR_RETURN(
        const std::uint64_t words,
        gpu.count(Gpu::Kernel::kCount, one->address(), slab, std::uint64_t{kPaint} << 32 | kPaint));
    found += words;
    fresh.push_back(std::move(one).value());
  }
  return found;
}

/// The paint is seen where it is: what foreign_words() would find if the driver did not clear.
Status control(const Lab& lab, const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(gpu, gpu.grain()));
  KVD_TRY(gpu.check(gpu.driver().memset_d32_async(slab.address(), kPaint, 2, gpu.stream().get()),
                    "painting"));
  KVD_ASSIGN_OR_RETURN(const std::uint64_t found,
                       gpu.count(Gpu::Kernel::kCount, slab.address(), Bytes(8),
                                 std::uint64_t{kPaint} << 32 | kPaint));
  lab.out.require("control: paint is seen where it is", found == 1);
  return {};
}

Status scrub_rates(const Lab& lab, const Gpu& gpu) {
  const Bytes size = lab.quick ? kMiB * 4 : kGiB;
  KVD_ASSIGN_OR_RETURN(const GpuSlab target, GpuSlab::make(gpu, size));
  KVD_ASSIGN_OR_RETURN(const GpuSlab zeros, GpuSlab::make(gpu, size));
  const auto bytes = static_cast<double>(size.value);
  const auto best = [&](const auto& work) -> Result<double> {
    double rate = 0;
    for (int round = 0; round < 3; ++round) {
      const double start = now_s();
      KVD_TRY(work());
      KVD_TRY(gpu.finish());
      rate = std::max(rate, bytes / (now_s() - start));
    }
    return rate;
  };
  KVD_ASSIGN_OR_RETURN(const double memset, best([&] {
                         return gpu.check(gpu.driver().memset_d8_async(
                                              target.address(), 0, size.size(), gpu.stream().get()),
                                          "a memset");
                       }));
  lab.out.figure("memset", memset / 1e9, "GB/s");
  cuda::Stream const& stream = gpu.stream();
  KVD_ASSIGN_OR_RETURN(const double engine, best([&] {
                         kernels::cuda::CopyList list;
                         list.to = {target.address()};
                         list.from = {zeros.address()};
                         list.lengths = {size.size()};
                         list.bytes = size;
                         return gpu.check(stream.copy(list), "copying zeros");
                       }));
  lab.out.at_least("zeros copied from device memory", engine / 1e9, "GB/s", 50);
  KVD_ASSIGN_OR_RETURN(const auto traffic, Traffic::make(lab.quick ? kMiB * 4 : kMiB * 512));
  KVD_TRY(traffic->scrub());
  KVD_ASSIGN_OR_RETURN(const double through_kvd, traffic->scrub());
  lab.out.figure("zeros as kvd copies them, from the host", through_kvd / 1e9, "GB/s");
  return {};
}

}  // namespace

Status interference(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const Peer engine, Peer::start());
  KVD_ASSIGN_OR_RETURN(const auto traffic, Traffic::make(lab.quick ? kMiB * 8 : kMiB * 256));
  for (const int step_us : {50, 500, 5000}) {
    if (lab.quick && step_us > 50) continue;
    KVD_TRY(one_length(lab, *gpu, engine, *traffic, step_us));
  }
  lab.out.note("not repeated under MPS: that needs a control daemon started for the whole GPU");
  return {};
}

Status scrub(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_TRY(control(lab, *gpu));
  std::uint64_t found = 0;
  const int rounds = lab.quick ? 2 : 10;
  for (int round = 0; round < rounds; ++round) {
    KVD_ASSIGN_OR_RETURN(const std::uint64_t words, foreign_words(lab, *gpu, round == 0));
    found += words;
  }
  lab.out.figure("rounds", rounds, "");
  lab.out.figure("foreign words found", static_cast<double>(found), "");
  lab.out.require("no foreign byte in fresh memory", found == 0);
  return scrub_rates(lab, *gpu);
}

}  // namespace kvd::gpu
