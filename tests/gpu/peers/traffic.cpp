#include "tests/gpu/peers/traffic.hpp"

#include <poll.h>

#include <algorithm>
#include <vector>

#include "tests/gpu/lab.hpp"

namespace kvd::gpu {
namespace {

using kernels::CopyBatch;
using kernels::Direction;

constexpr Bytes kBatch = kMiB * 16;  // what one rotation moves at a time
constexpr unsigned kInFlight = 3;    // batches a direction: the queue never runs dry
constexpr int kPatienceMs = 30'000;

}  // namespace

Result<std::unique_ptr<Traffic>> Traffic::make(Bytes half, const kernels::CudaConfig& config) {
  std::unique_ptr<Traffic> traffic(new Traffic());
  traffic->half_ = half;
  KVD_ASSIGN_OR_RETURN(traffic->backend_, kernels::CudaBackend::create(config, traffic->clock_));
  KVD_ASSIGN_OR_RETURN(traffic->hbm_, traffic->backend_->create_slab(Tier::kHbm, half * 2));
  KVD_ASSIGN_OR_RETURN(traffic->dram_, traffic->backend_->create_slab(Tier::kDram, half * 2));
  return traffic;
}

Status Traffic::submit(std::size_t direction, Bytes segment) {
  CopyBatch batch;
  batch.ticket = Ticket(++ticket_);
  batch.direction = static_cast<Direction>(direction);
  const std::uintptr_t hbm = hbm_.address + direction * half_.size();
  const std::uintptr_t dram = dram_.address + direction * half_.size();
  Bytes& at = at_[direction];
  // Every other segment, so that no two merge into a longer run.
  for (Bytes bytes; bytes < std::min(kBatch, half_) && at + segment <= half_; bytes += segment) {
    const std::uintptr_t h = hbm + at.size(), d = dram + at.size();
    batch.extents.push_back(direction == 0 ? kernels::CopyExtent{h, d, segment}
                                           : kernels::CopyExtent{d, h, segment});
    at += segment * 2;
  }
  if (at + segment > half_) at = Bytes(0);
  ++in_flight_[direction];
  return backend_->submit(std::move(batch));
}

Status Traffic::reap(std::array<double, 2>* bytes) {
  pollfd ready{backend_->completion_fd(), POLLIN, 0};
  if (::poll(&ready, 1, kPatienceMs) != 1) {
    return make_error(ErrorCode::kDeadlineExceeded, "no copy ended in 30 s");
  }
  std::vector<kernels::Completion> completed;
  const auto before = backend_->counters().bytes;
  backend_->poll(completed);
  const auto after = backend_->counters().bytes;
  for (std::size_t d = 0; d < 2 && bytes != nullptr; ++d) {
    (*bytes)[d] += static_cast<double>((after[d] - before[d]).value);
  }
  const auto counters = backend_->counters();
  for (std::size_t d = 0; d < 2; ++d) {
    in_flight_[d] =
        static_cast<unsigned>(counters.batches_submitted[d] - counters.batches_completed[d]);
  }
  for (const kernels::Completion& done : completed) KVD_TRY(done.status);
  return {};
}

Result<Traffic::Rates> Traffic::run(bool h2d, bool d2h, Bytes segment,
                                    const std::function<bool()>& stop) {
  const std::array<bool, 2> wanted{h2d, d2h};
  std::array<double, 2> bytes{};
  const double start = now_s();
  do {
    for (std::size_t d = 0; d < 2; ++d) {
      while (wanted[d] && in_flight_[d] < kInFlight) KVD_TRY(submit(d, segment));
    }
    KVD_TRY(reap(&bytes));
  } while (!stop());
  const double seconds = now_s() - start;
  while (in_flight_[0] + in_flight_[1] > 0) KVD_TRY(reap(nullptr));
  return Rates{bytes[0] / seconds, bytes[1] / seconds};
}

Result<double> Traffic::scrub() {
  CopyBatch batch;
  batch.ticket = Ticket(++ticket_);
  batch.extents = {{hbm_.address, 0, half_}};
  const double start = now_s();
  KVD_TRY(backend_->submit(std::move(batch)));
  do {
    KVD_TRY(reap(nullptr));
  } while (in_flight_[0] + in_flight_[1] > 0);
  return static_cast<double>(half_.value) / (now_s() - start);
}

}  // namespace kvd::gpu
