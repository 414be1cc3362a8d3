#include "kernels/device/cuda/copies/bursts/burst_streams.hpp"

#include <utility>

namespace kvd::kernels::cuda {

Result<BurstStreams> BurstStreams::create(const Driver& driver, bool with_gate) {
  std::vector<Stream> streams;
  while (streams.size() < kCopying + 1) {
    KVD_ASSIGN_OR_RETURN(Stream stream, Stream::create(driver));
    streams.push_back(std::move(stream));
  }
  std::vector<Event> events;
  while (events.size() < 2 * kParts) {
    KVD_ASSIGN_OR_RETURN(Event event, Event::create(driver));
    events.push_back(std::move(event));
  }
  std::optional<Gate> gate;
  if (with_gate) {
    KVD_ASSIGN_OR_RETURN(Gate made, Gate::make(driver));
    gate.emplace(std::move(made));
  }
  return BurstStreams(driver, std::move(streams), std::move(events), std::move(gate));
}

CUresult BurstStreams::open_gate(std::uint64_t burst) const { return write(gate_->word(), burst); }

CUresult BurstStreams::wait_at_gate(std::uint64_t burst) const {
  for (std::size_t i = 0; i < kCopying; ++i) {
    const CUresult result = driver_->stream_wait_value64(streams_[i].get(), gate_->word(), burst,
                                                         CU_STREAM_WAIT_VALUE_GEQ);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult BurstStreams::copy(std::uint64_t part, CopyList& list, CopyForm form) const {
  return copying(part).copy(list, form);
}

CUresult BurstStreams::end_part(std::uint64_t part) const {
  const CUresult result = copied(part).record(copying(part));
  if (result != CUDA_SUCCESS) return result;
  return driver_->stream_wait_event(following().get(), copied(part).get(), 0);
}

CUresult BurstStreams::write(CUdeviceptr address, std::uint64_t value) const {
  return driver_->stream_write_value64(following().get(), address, value,
                                       CU_STREAM_WRITE_VALUE_DEFAULT);
}

CUresult BurstStreams::end_writes(std::uint64_t part) const {
  return written(part).record(following());
}

CUresult BurstStreams::query(std::uint64_t part, bool writes) const {
  return (writes ? written(part) : copied(part)).query();
}

}  // namespace kvd::kernels::cuda
