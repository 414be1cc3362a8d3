#include "tests/gpu/lane.hpp"

#include "tests/gpu/slots.hpp"

namespace kvd::gpu {
namespace {

constexpr std::size_t kFirstSlot = 8;  // behind those of slots.hpp

}  // namespace

Result<std::unique_ptr<Lane>> Lane::make(const Gpu& gpu, const PinnedMemory& page, unsigned slot,
                                         const LaneShape& shape) {
  // Every other piece of each side, so that no two are neighbours, and two bursts of them.
  const Bytes size(shape.piece.value * static_cast<std::int64_t>(shape.pieces * kQueued * 2));
  const auto grains = (size.value + gpu.grain().value - 1) / gpu.grain().value;
  KVD_ASSIGN_OR_RETURN(GpuSlab device, GpuSlab::make(gpu, gpu.grain() * grains));
  KVD_ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::make(gpu, size));
  KVD_ASSIGN_OR_RETURN(cuda::Stream copies, cuda::Stream::create(gpu.driver()));
  KVD_ASSIGN_OR_RETURN(cuda::Stream opener, cuda::Stream::create(gpu.driver()));
  std::vector<cuda::Event> events;
  for (std::size_t i = 0; i < kQueued; ++i) {
    KVD_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::create(gpu.driver()));
    events.push_back(std::move(event));
  }
  const std::size_t word = (kFirstSlot + slot) * 8;
  store(page.words() + word, 1);
  return std::unique_ptr<Lane>(new Lane(gpu, shape, std::move(device), std::move(host),
                                        {std::move(copies), std::move(opener)}, std::move(events),
                                        page.device_address() + word * 8));
}

kernels::cuda::CopyList Lane::next_pieces() {
  const bool in = shape_.direction == kernels::Direction::kHostToDevice;
  kernels::cuda::CopyList list;
  for (std::size_t i = 0; i < shape_.pieces; ++i) {
    const std::size_t offset = at_ * shape_.piece.size() * 2;
    at_ = (at_ + 1) % (shape_.pieces * kQueued);
    const CUdeviceptr device = device_.address() + offset, host = host_.address() + offset;
    list.to.push_back(in ? device : host);
    list.from.push_back(in ? host : device);
    list.lengths.push_back(shape_.piece.size());
    list.bytes += shape_.piece;
  }
  return list;
}

Status Lane::queue_burst() {
  const cuda::Stream &copies = streams_[0], &opener = streams_[1];
  const cuda::Event& end = events_[queued_ % kQueued];
  ++queued_;
  if (shape_.gated) KVD_TRY(queue_wait(gpu_, copies.get(), gate_, queued_));
  if (leader_ != nullptr && leader_->queued_ > 0) {
    const cuda::Event& before = leader_->events_[(leader_->queued_ - 1) % kQueued];
    KVD_TRY(gpu_.check(gpu_.driver().stream_wait_event(copies.get(), before.get(), 0),
                       "waiting for the other lane"));
  }
  kernels::cuda::CopyList list = next_pieces();
  KVD_TRY(gpu_.check(copies.copy(list), "a burst of copies"));
  KVD_TRY(gpu_.check(end.record(copies), "marking a burst's end"));
  if (!shape_.gated) return {};
  KVD_TRY(gpu_.check(gpu_.driver().stream_wait_event(opener.get(), end.get(), 0),
                     "waiting for a burst's end"));
  return queue_write(gpu_, opener.get(), gate_, queued_ + 1);
}

Status Lane::advance() {
  while (over_ < queued_) {
    const CUresult end = events_[over_ % kQueued].query();
    if (end == CUDA_ERROR_NOT_READY) break;
    KVD_TRY(gpu_.check(end, "a burst of copies"));
    bytes_ += static_cast<double>(shape_.piece.value) * static_cast<double>(shape_.pieces);
    ++over_;
  }
  while (queued_ < over_ + kQueued) KVD_TRY(queue_burst());
  return {};
}

Status Lane::drain() {
  KVD_TRY(gpu_.finish(streams_[0].get()));
  return gpu_.finish(streams_[1].get());
}

Result<double> run_lanes(const std::vector<Lane*>& lanes, const std::function<bool()>& stop) {
  const double start = now_s();
  do {
    for (Lane* lane : lanes) KVD_TRY(lane->advance());
  } while (!stop());
  const double seconds = now_s() - start;
  double bytes = 0;
  for (Lane* lane : lanes) {
    KVD_TRY(lane->drain());
    bytes += lane->bytes();
  }
  return bytes / seconds;
}

}  // namespace kvd::gpu
