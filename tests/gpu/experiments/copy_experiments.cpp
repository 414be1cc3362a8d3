// E5, E14: what the link moves, by method, and what kvd makes of it.
#include <algorithm>
#include <chrono>

#include "tests/gpu/copy_arena.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/peers/traffic.hpp"

namespace kvd::gpu {
namespace {

constexpr Bytes kSegment = kKiB * 64;

std::string label(const char* what, Method method, Bytes segment) {
  return std::string(what) + " " + name(method) + ", " + std::to_string(segment.value / 1024) +
         " KiB";
}

std::function<bool()> after(double seconds) {
  return [end = now_s() + seconds] { return now_s() >= end; };
}

struct Plan {
  std::vector<Bytes> segments;
  std::uint32_t most;
  double budget_s;
};
Plan plan(const Lab& lab) {
  if (lab.quick) return {{kKiB * 4, kKiB * 64}, 8, 0.001};
  return {{kKiB * 4, kKiB * 16, kKiB * 64, kKiB * 256, kMiB, kMiB * 8}, 4096, 0.06};
}

std::uint32_t count_of(const CopyArena& arena, const Plan& plan, Bytes segment) {
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(arena.half() / segment, std::int64_t{plan.most}));
}

/// All methods over all sizes in one direction; the batch's rate at 64 KiB over the direction's
/// peak is the criterion.
Status one_direction(const Lab& lab, CopyArena& arena, const Plan& plan, Direction direction) {
  double peak = 0, at_segment = 0;
  for (const Bytes segment : plan.segments) {
    const std::uint32_t count = count_of(arena, plan, segment);
    for (std::size_t m = 0; m < kMethods; ++m) {
      const auto method = static_cast<Method>(m);
      if (method == Method::kWaited) continue;
      const Result<double> rate = arena.rate(method, direction, segment, count, plan.budget_s);
      // Strided copies are there to compare with; kvd does not depend on them.
      if (!rate.ok() && (method == Method::kRows2D || method == Method::kRows3D)) {
        if (segment == plan.segments.front()) lab.out.note(rate.error().message);
        continue;
      }
      KVD_TRY(rate);
      lab.out.figure(label(kernels::name(direction), method, segment), *rate / 1e9, "GB/s");
      if (method == Method::kBatch || method == Method::kLoop) peak = std::max(peak, *rate);
      if (method == Method::kBatch && segment == kSegment) at_segment = *rate;
    }
  }
  lab.out.figure(std::string(kernels::name(direction)) + " peak", peak / 1e9, "GB/s");
  lab.out.at_least(std::string(kernels::name(direction)) + " batch at 64 KiB over the peak",
                   at_segment / peak, "", 0.85);
  return {};
}

Status duplex(const Lab& lab, CopyArena& arena, const Plan& plan) {
  for (const Bytes segment : plan.segments) {
    const std::uint32_t count = count_of(arena, plan, segment);
    for (const Method method : {Method::kBatch, Method::kLoop}) {
      KVD_ASSIGN_OR_RETURN(const double rate,
                           arena.duplex_rate(method, segment, count, plan.budget_s));
      lab.out.figure(label("duplex", method, segment), rate / 1e9, "GB/s");
    }
  }
  return {};
}

/// kvd's own rotation in both directions against the most that the link was seen to do with the
/// largest copies, and against copies one by one.
Status rotation(const Lab& lab, CopyArena& arena) {
  const double seconds = lab.quick ? 0.02 : 1.5;
  const Bytes large = std::min(arena.half(), kMiB * 64);
  const auto pieces = static_cast<std::uint32_t>(arena.half() / large);
  const auto small = static_cast<std::uint32_t>(
      std::min<std::int64_t>(arena.half() / kSegment, lab.quick ? 4 : 1024));
  KVD_ASSIGN_OR_RETURN(const auto traffic, Traffic::make(arena.half()));
  KVD_TRY(traffic->run(true, true, kSegment, after(seconds / 5)));
  KVD_ASSIGN_OR_RETURN(const double limit,
                       arena.duplex_rate(Method::kBatch, large, pieces, seconds / 3));
  KVD_ASSIGN_OR_RETURN(const auto rates, traffic->run(true, true, kSegment, after(seconds)));
  KVD_ASSIGN_OR_RETURN(const double again,
                       arena.duplex_rate(Method::kBatch, large, pieces, seconds / 3));
  KVD_ASSIGN_OR_RETURN(const double queued,
                       arena.duplex_rate(Method::kLoop, kSegment, small, seconds / 5));
  KVD_ASSIGN_OR_RETURN(const double waited,
                       arena.duplex_rate(Method::kWaited, kSegment, small, seconds / 5));
  const double rate = rates.h2d + rates.d2h;
  const double most = std::max(limit, again);
  lab.out.figure("duplex limit of the link (copies of 64 MiB)", most / 1e9, "GB/s");
  lab.out.figure("rotation through kvd, H2D share, 64 KiB", rates.h2d / 1e9, "GB/s");
  lab.out.figure("rotation through kvd, D2H share, 64 KiB", rates.d2h / 1e9, "GB/s");
  lab.out.at_least("rotation over the duplex limit, 64 KiB", rate / most, "", 0.95);
  lab.out.figure("copies one at a time, 64 KiB", waited / 1e9, "GB/s");
  lab.out.at_least("rotation over copies one at a time, 64 KiB", rate / waited, "", 4);
  lab.out.figure("rotation over single copies queued without waiting", rate / queued, "");
  return {};
}

constexpr Bytes kInputIds = kKiB * 4;

std::string small_copies(Bytes size, int milliseconds) {
  return "small " + std::to_string(milliseconds) + " " + std::to_string(size.value);
}

/// p99 of an engine's small copies while kvd copies, and kvd's rate.
struct Shared {
  double p50 = 0, p99 = 0, rate = 0;
};
Result<Shared> beside_bursts(const Lab& lab, const Peer& engine, const std::string& with,
                             const kernels::CudaConfig& config = {}, Bytes small = kInputIds) {
  KVD_ASSIGN_OR_RETURN(const auto traffic,
                       Traffic::make(lab.quick ? kMiB * 8 : kMiB * 256, config));
  KVD_TRY(engine.tell(small_copies(small, lab.quick ? 20 : 600)));
  KVD_ASSIGN_OR_RETURN(const auto rates,
                       traffic->run(true, false, kKiB * 256, [&] { return engine.answered(); }));
  KVD_ASSIGN_OR_RETURN(const Reply reply, engine.reply());
  Shared shared;
  KVD_ASSIGN_OR_RETURN(shared.p50, reply.number(0));
  KVD_ASSIGN_OR_RETURN(shared.p99, reply.number(1));
  shared.rate = rates.h2d;
  lab.out.figure(with + ": kvd's rate", shared.rate / 1e9, "GB/s");
  lab.out.figure(with + ": median of the small copy", shared.p50, "us");
  lab.out.figure(with + ": p99 of the small copy", shared.p99, "us");
  return shared;
}

/// The highest rate of bursts that are bounded by bytes, whatever time they take.
Result<double> peak_of_fixed_bursts(const Lab& lab, const Peer& engine) {
  double peak = 0;
  for (const Bytes burst : {kKiB * 256, kMiB, kMiB * 4, kMiB * 16, kMiB * 32}) {
    if (lab.quick && burst > kMiB * 4) continue;
    kernels::CudaConfig config;
    config.burst_time = Nanoseconds(0);
    config.burst = burst;
    const std::string with = "bursts of " + std::to_string(burst.value / 1024) + " KiB";
    KVD_ASSIGN_OR_RETURN(const Shared shared, beside_bursts(lab, engine, with, config));
    peak = std::max(peak, shared.rate);
  }
  return peak;
}

/// Bursts of so many microseconds, and what is between two.
struct Bursts {
  int microseconds;
  kernels::cuda::BurstOrder order;

  [[nodiscard]] kernels::CudaConfig config() const {
    kernels::CudaConfig config;
    config.burst_time = std::chrono::microseconds(microseconds);
    config.burst_order = order;
    return config;
  }
  [[nodiscard]] std::string name() const {
    constexpr const char* kBetween[] = {"behind a gate", "after a look", "in a row"};
    return "bursts of " + std::to_string(microseconds) + " us " +
           kBetween[static_cast<std::size_t>(order)];
  }
};

std::vector<Bursts> kinds_of_bursts(bool quick) {
  using Order = kernels::cuda::BurstOrder;
  if (quick) return {{50, Order::kGated}, {320, Order::kInARow}};
  return {{50, Order::kGated}, {100, Order::kGated}, {200, Order::kGated},
          {100, Order::kSeen}, {200, Order::kSeen},  {320, Order::kInARow}};
}

/// What other bursts would bring and cost, also where an engine's copy is not that small.
Status other_bursts(const Lab& lab, const Peer& engine) {
  for (const Bytes small : {kInputIds, kKiB * 256}) {
    const std::string beside = "copies of " + std::to_string(small.value / 1024) + " KiB";
    KVD_ASSIGN_OR_RETURN(const Reply alone, engine.ask(small_copies(small, lab.quick ? 20 : 500)));
    KVD_ASSIGN_OR_RETURN(const double p99, alone.number(1));
    lab.out.figure(beside + ", alone: p99", p99, "us");
    for (const Bursts& bursts : kinds_of_bursts(lab.quick)) {
      KVD_TRY(beside_bursts(lab, engine, bursts.name() + ", " + beside, bursts.config(), small));
    }
  }
  return {};
}

/// The same for kvd's rotation of small segments in both directions.
Status rotations_by_burst(const Lab& lab) {
  for (const Bytes segment : {kKiB * 64, kKiB * 256}) {
    for (const Bursts& bursts : kinds_of_bursts(lab.quick)) {
      KVD_ASSIGN_OR_RETURN(const auto traffic,
                           Traffic::make(lab.quick ? kMiB * 8 : kMiB * 256, bursts.config()));
      KVD_ASSIGN_OR_RETURN(const auto rates,
                           traffic->run(true, true, segment, after(lab.quick ? 0.02 : 0.3)));
      lab.out.figure(
          "rotation in " + bursts.name() + ", " + std::to_string(segment.value / 1024) + " KiB",
          (rates.h2d + rates.d2h) / 1e9, "GB/s");
    }
  }
  return {};
}

}  // namespace

Status copy_matrix(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const auto arena, CopyArena::make(*gpu, lab.quick ? kMiB * 4 : kMiB * 512));
  const Plan sizes = plan(lab);
  KVD_TRY(rotation(lab, *arena));
  KVD_TRY(one_direction(lab, *arena, sizes, Direction::kHostToDevice));
  KVD_TRY(one_direction(lab, *arena, sizes, Direction::kDeviceToHost));
  KVD_TRY(duplex(lab, *arena, sizes));
  return {};
}

Status burst_size(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const Peer engine, Peer::start());
  KVD_ASSIGN_OR_RETURN(const Reply alone,
                       engine.ask(small_copies(kInputIds, lab.quick ? 20 : 1000)));
  KVD_ASSIGN_OR_RETURN(const double alone_p50, alone.number(0));
  KVD_ASSIGN_OR_RETURN(const double alone_p99, alone.number(1));
  lab.out.figure("4 KiB to the device, alone: median", alone_p50, "us");
  lab.out.figure("alone: p99", alone_p99, "us");
  KVD_ASSIGN_OR_RETURN(const double peak, peak_of_fixed_bursts(lab, engine));
  const auto time =
      std::chrono::duration_cast<std::chrono::microseconds>(kernels::CudaConfig().burst_time);
  const std::string usual_bursts = "bursts of " + std::to_string(time.count()) + " us";
  KVD_ASSIGN_OR_RETURN(const Shared usual, beside_bursts(lab, engine, usual_bursts));
  // Once more while a third process has the SMs: its time slices may come between.
  KVD_ASSIGN_OR_RETURN(const Peer worker, Peer::start());
  KVD_TRY(worker.ask("steps 500 10"));
  KVD_TRY(worker.tell("steps 500 " + std::to_string(lab.quick ? 30 : 2500)));
  KVD_TRY(beside_bursts(lab, engine, usual_bursts + " beside kernels of 500 us"));
  KVD_TRY(worker.reply());
  KVD_TRY(other_bursts(lab, engine));
  KVD_TRY(rotations_by_burst(lab));
  lab.out.at_most("p99 added at the default burst", usual.p99 - alone_p99, "us", 100);
  lab.out.at_least("rate at the default burst over the peak",
                   usual.rate / std::max(peak, usual.rate), "", 0.90);
  return {};
}

}  // namespace kvd::gpu
