#include "kernels/device/cuda/copies/readback.hpp"

#include <algorithm>
#include <utility>

#include "kernels/device/host/page_facts.hpp"

namespace kvd::kernels::cuda {

Status Readback::read(CUdeviceptr from, Bytes length, const Look& look) {
  KVD_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, take());
  Status status = make_room(*reader, length);
  if (status.ok()) status = fill(*reader, from, length);
  if (status.ok()) {
    look({reinterpret_cast<const std::byte*>(reader->room->address()), length.size()});
  }
  // This waits after an error as well: a copy that did not end in time may still write into this
  // room.
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(reader));
  return status;
}

Result<std::unique_ptr<Readback::Reader>> Readback::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Reader> reader = std::move(idle_.back());
      idle_.pop_back();
      return reader;
    }
  }
  KVD_ASSIGN_OR_RETURN(Stream stream, Stream::create(world_.driver));
  return std::make_unique<Reader>(std::move(stream));
}

Status Readback::make_room(Reader& reader, Bytes length) const {
  if (reader.size >= length) return {};
  reader.room.reset();
  reader.size = {};
  const Bytes size = kHugePage * ((length + kHugePage - Bytes(1)) / kHugePage);
  HostMemoryRequest request{"kvd-readback", size, PagePreference::kSmall, {}, 1};
  KVD_ASSIGN_OR_RETURN(DramSlab room,
                       DramSlab::create(world_.driver, std::move(request), world_.capabilities));
  reader.room.emplace(std::move(room));
  reader.size = size;
  return {};
}

Status Readback::fill(Reader& reader, CUdeviceptr from, Bytes length) const {
  for (Bytes done; done < length;) {
    const Bytes piece = std::min(kPiece, length - done);
    void* to = reinterpret_cast<void*>(reader.room->address() + done.size());
    const CUresult queued =
        world_.driver.memcpy_dtoh_async(to, from + done.size(), piece.size(), reader.stream.get());
    KVD_TRY(world_.health.check(queued, "reading device memory"));
    const CUresult ended = reader.stream.drain(world_.stall_limit);
    Status status = world_.health.check(ended, "reading device memory");
    if (!status.ok()) {
      world_.health.lose(status.error());
      return status;
    }
    done += piece;
  }
  return {};
}

}  // namespace kvd::kernels::cuda
