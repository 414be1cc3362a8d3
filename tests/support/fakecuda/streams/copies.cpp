// Copies and fills. A copy is checked as far as the driver can when it is queued; the memory it
// names is looked up when the copy engine gets to it.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "tests/support/fakecuda/report.hpp"
#include "tests/support/fakecuda/streams/copy_work.hpp"
#include "tests/support/fakecuda/streams/dma.hpp"

namespace fakecuda {
namespace {

struct Kinds {
  Space to, from;
};

Kinds kinds_of(const Piece& piece) {
  const std::lock_guard lock(driver().mutex);
  return {classify(piece.to, piece.size), classify(piece.from, piece.size)};
}

Lane lane_of(const Kinds& kinds) {
  const bool to_device = kinds.to == Space::kDevice;
  const bool from_device = kinds.from == Space::kDevice;
  if (to_device == from_device) return Lane::kOther;
  return to_device ? Lane::kHostToDevice : Lane::kDeviceToHost;
}

// What the source holds now, for copies that may read ahead of stream order. Device memory without
// access is left to the copy engine to fault on.
void read_early(Piece& piece) {
  Driver& d = driver();
  std::vector<Segment> from;
  {
    const std::lock_guard lock(d.mutex);
    const Space space = classify(piece.from, piece.size);
    const CUdeviceptr host =
        space == Space::kPageable ? piece.from : d.host.host_address(piece.from, piece.size);
    from = host != 0 ? std::vector<Segment>{{reinterpret_cast<std::byte*>(host), piece.size, {}}}
                     : d.vmm.access(current_context()->device, piece.from, piece.size, false);
  }
  if (from.empty()) return;
  piece.early.resize(piece.size);
  copy_part({{piece.early.data(), piece.size, nullptr}}, from, 0, piece.size);
}

std::vector<Range> ranges_of(const Pieces& pieces) {
  std::vector<Range> ranges;
  for (const Piece& piece : pieces) {
    ranges.push_back({piece.to, piece.size});
    if (piece.early.empty()) ranges.push_back({piece.from, piece.size});
  }
  return ranges;
}

std::uint64_t queue_copies(const std::shared_ptr<CUstream_st>& stream, Pieces pieces) {
  Operation operation;
  operation.touches = ranges_of(pieces);
  const auto shared = std::make_shared<Pieces>(std::move(pieces));
  operation.run = [shared](CUstream_st& self) { return run_copies(self, *shared); };
  return enqueue(stream, std::move(operation));
}

// Pageable memory: the source is staged before the call returns, a target is complete by then.
CUresult copy(CUstream handle, Pieces pieces) {
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = find_stream(handle, stream)) return r;
  bool wait = false;
  for (Piece& piece : pieces) {
    if (piece.size == 0) continue;
    const Kinds kinds = kinds_of(piece);
    if (kinds.to == Space::kBroken || kinds.from == Space::kBroken) return CUDA_ERROR_INVALID_VALUE;
    piece.lane = lane_of(kinds);
    piece.to_pageable = kinds.to == Space::kPageable;
    const bool pageable = kinds.from == Space::kPageable || kinds.to == Space::kPageable;
    if (pageable) ++driver().pageable_copies;
    if (kinds.from == Space::kPageable) read_early(piece);
    wait = wait || piece.to_pageable;
  }
  const std::uint64_t number = queue_copies(stream, std::move(pieces));
  if (!wait) return CUDA_SUCCESS;
  stream->wait(number, [&] { return stream->given_up(); });
  return stream->context->latched;
}

// Copies of one batch have no order, so none may touch what another writes.
void check_independent(const Pieces& pieces) {
  struct Side {
    CUdeviceptr start, end;
    bool write;
  };
  std::vector<Side> sides;
  for (const Piece& piece : pieces) {
    sides.push_back({piece.to, piece.to + piece.size, true});
    sides.push_back({piece.from, piece.from + piece.size, false});
  }
  std::sort(sides.begin(), sides.end(),
            [](const Side& a, const Side& b) { return a.start < b.start; });
  CUdeviceptr read_end = 0, write_end = 0;
  for (const Side& side : sides) {
    if (side.start < write_end || (side.write && side.start < read_end)) {
      return violation("batch_copies_overlap", hex(side.start));
    }
    CUdeviceptr& end = side.write ? write_end : read_end;
    end = std::max(end, side.end);
  }
}

/// A batch as the two versions of the entry point pass it.
struct Batch {
  const CUdeviceptr* to;
  const CUdeviceptr* from;
  const std::size_t* sizes;
  std::size_t count;
  const CUmemcpyAttributes* attributes;
  const std::size_t* first;
  std::size_t attribute_count;
};

bool attributes_are_valid(const Batch& batch) {
  if (batch.attributes == nullptr || batch.first == nullptr || batch.attribute_count == 0 ||
      batch.attribute_count > batch.count || batch.first[0] != 0) {
    return false;
  }
  for (std::size_t i = 0; i < batch.attribute_count; ++i) {
    const auto order = batch.attributes[i].srcAccessOrder;
    const bool rising = i == 0 || batch.first[i] > batch.first[i - 1];
    const unsigned unknown =
        batch.attributes[i].flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
    if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
        !rising || batch.first[i] >= batch.count || unknown != 0) {
      return false;
    }
  }
  return true;
}

// Half of the copies that may be read ahead of stream order are.
bool reads_early(CUmemcpySrcAccessOrder order, std::mt19937_64& random) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         (order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && random() % 2 == 0);
}

// A batch is not translated as a plain copy is (sgl-project/sglang#40232).
bool by_host(CUdeviceptr pointer) {
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().host.find(pointer);
  return found != driver().host.none() && pointer - found->first < found->second.size;
}

CUresult check_pieces(const Batch& batch, Pieces& pieces) {
  for (std::size_t i = 0; i < batch.count; ++i) {
    Piece piece{batch.to[i], batch.from[i], batch.sizes[i]};
    const Kinds kinds = kinds_of(piece);
    const bool known = kinds.to != Space::kBroken && kinds.to != Space::kPageable &&
                       kinds.from != Space::kBroken && kinds.from != Space::kPageable;
    if (piece.size == 0 || !known) return CUDA_ERROR_INVALID_VALUE;
    piece.foreign = !driver().config.host_addresses && (by_host(piece.to) || by_host(piece.from));
    piece.lane = lane_of(kinds);
    pieces.push_back(std::move(piece));
  }
  return CUDA_SUCCESS;
}

void read_early(const Batch& batch, Pieces& pieces) {
  thread_local std::mt19937_64 random(driver().config.seed);
  for (std::size_t k = 0; k < batch.attribute_count; ++k) {
    const bool last = k + 1 == batch.attribute_count;
    const std::size_t end = last ? batch.count : batch.first[k + 1];
    for (std::size_t i = batch.first[k]; i < end; ++i) {
      if (reads_early(batch.attributes[k].srcAccessOrder, random)) read_early(pieces[i]);
    }
  }
}

CUresult copy_batch(const Batch& batch, CUstream handle) {
  if (const CUresult r = enter("cuMemcpyBatchAsync", Needs::kContext)) return r;
  if (batch.to == nullptr || batch.from == nullptr || batch.sizes == nullptr || batch.count == 0 ||
      handle == nullptr || handle == CU_STREAM_LEGACY || !attributes_are_valid(batch)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = find_stream(handle, stream)) return r;
  Pieces pieces;
  if (const CUresult r = check_pieces(batch, pieces)) return r;
  check_independent(pieces);
  read_early(batch, pieces);
  queue_copies(stream, std::move(pieces));
  return CUDA_SUCCESS;
}

CUresult fill(const char* entry, CUdeviceptr to, unsigned value, std::size_t width,
              std::size_t count, CUstream handle) {
  if (const CUresult r = enter(entry, Needs::kContext)) return r;
  if (to % width != 0) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = find_stream(handle, stream)) return r;
  const std::size_t size = width * count;
  const Space space = kinds_of({to, to, size}).to;
  if (space != Space::kDevice && space != Space::kHost) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  operation.touches = {{to, size}};
  operation.run = [=](CUstream_st& self) {
    self.pause();
    const auto segments = touch(self.context->device, to, size, true);
    if (segments.empty()) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (const Segment& segment : segments) dma_fill(segment.data, value, width, segment.size);
    return CUDA_SUCCESS;
  };
  enqueue(stream, std::move(operation));
  return CUDA_SUCCESS;
}

// The address where the memory of a 2D side begins.
CUdeviceptr base_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device;
}

// One side of a 2D copy.
bool takes_rows(CUdeviceptr base, std::size_t pitch, const CUDA_MEMCPY2D& copy) {
  if (pitch < copy.WidthInBytes || pitch > kMostPitch) return false;
  if (copy.Height == 0) return true;
  const std::lock_guard lock(driver().mutex);
  return classify(base, (copy.Height - 1) * pitch + copy.WidthInBytes) != Space::kBroken;
}

}  // namespace
}  // namespace fakecuda

using fakecuda::enter;
using fakecuda::Needs;

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size,
                               CUstream stream) {
  if (const CUresult r = enter("cuMemcpyAsync", Needs::kContext)) return r;
  return fakecuda::copy(stream, {{to, from, size}});
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t size,
                                   CUstream stream) {
  if (const CUresult r = enter("cuMemcpyHtoDAsync", Needs::kContext)) return r;
  return fakecuda::copy(stream, {{to, reinterpret_cast<CUdeviceptr>(from), size}});
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  if (const CUresult r = enter("cuMemcpyDtoHAsync", Needs::kContext)) return r;
  return fakecuda::copy(stream, {{reinterpret_cast<CUdeviceptr>(to), from, size}});
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) {
  if (const CUresult r = enter("cuMemcpy2DAsync", Needs::kContext)) return r;
  if (copy == nullptr || copy->srcMemoryType == CU_MEMORYTYPE_ARRAY ||
      copy->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUdeviceptr from = fakecuda::base_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice) +
                           copy->srcY * copy->srcPitch + copy->srcXInBytes;
  const CUdeviceptr to = fakecuda::base_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice) +
                         copy->dstY * copy->dstPitch + copy->dstXInBytes;
  if (!fakecuda::takes_rows(from, copy->srcPitch, *copy) ||
      !fakecuda::takes_rows(to, copy->dstPitch, *copy)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  fakecuda::Pieces rows;
  for (std::size_t row = 0; row < copy->Height; ++row) {
    rows.push_back({to + row * copy->dstPitch, from + row * copy->srcPitch, copy->WidthInBytes});
  }
  return fakecuda::copy(stream, std::move(rows));
}

CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes,
                                    std::size_t count, CUmemcpyAttributes* attributes,
                                    std::size_t* first, std::size_t attribute_count,
                                    CUstream stream) {
  return fakecuda::copy_batch({to, from, sizes, count, attributes, first, attribute_count}, stream);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                 CUstream stream) {
  return fakecuda::fill("cuMemsetD8Async", to, value, 1, count, stream);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned int value, std::size_t count,
                                  CUstream stream) {
  return fakecuda::fill("cuMemsetD32Async", to, value, 4, count, stream);
}
