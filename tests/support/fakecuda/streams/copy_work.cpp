#include "tests/support/fakecuda/streams/copy_work.hpp"

#include <algorithm>

#include "tests/support/fakecuda/streams/dma.hpp"

namespace fakecuda {
namespace {

constexpr std::size_t kSplit = std::size_t{64} << 10;

/// The bytes of a range that may cross mappings, from `offset` on.
template <class Work>
void walk(const std::vector<Segment>& segments, std::size_t offset, std::size_t size, Work work) {
  for (const Segment& segment : segments) {
    if (offset >= segment.size) {
      offset -= segment.size;
      continue;
    }
    const std::size_t part = std::min(size, segment.size - offset);
    if (part == 0) return;
    work(segment.data + offset, part);
    size -= part;
    offset = 0;
  }
}

// Nothing promises an order within a copy: now and then the second half goes first.
bool copy_piece(CUstream_st& stream, Piece& piece) {
  if (piece.foreign) return false;
  const int device = stream.context->device;
  std::vector<Segment> from;
  if (piece.early.empty()) {
    from = touch(device, piece.from, piece.size, false);
  } else {
    from.push_back({piece.early.data(), piece.size, nullptr});
  }
  const std::vector<Segment> to =
      piece.to_pageable
          ? std::vector<Segment>{{reinterpret_cast<std::byte*>(piece.to), piece.size, {}}}
          : touch(device, piece.to, piece.size, true);
  if (from.empty() || to.empty()) return false;
  const std::size_t half = piece.size >= kSplit ? piece.size / 2 : piece.size;
  const bool swapped = stream.coin(2);
  copy_part(to, from, swapped ? half : 0, swapped ? piece.size - half : half);
  if (half < piece.size && stream.coin(8)) stream.pause();
  copy_part(to, from, swapped ? 0 : half, swapped ? half : piece.size - half);
  return true;
}

bool stalled(Lane lane) {
  const Config& config = driver().config;
  const bool named = (lane == Lane::kHostToDevice && config.stall_h2d) ||
                     (lane == Lane::kDeviceToHost && config.stall_d2h);
  return named && driver().bytes[static_cast<std::size_t>(lane)] >= config.stall_after;
}

void hold_until_given_up(const CUstream_st& stream) {
  stream.wait(UINT64_MAX, [&] { return stream.given_up(); });
}

// The pieces of one lane, in no particular order.
CUresult run_lane(CUstream_st& stream, Lane lane, Pieces& pieces) {
  const auto index = static_cast<std::size_t>(lane);
  Engine& engine = driver().engines[static_cast<std::size_t>(stream.context->device)][index];
  stream.pause();  // it is done here, so that the streams of a direction come to it in any order
  if (!engine.acquire(stream)) return CUDA_SUCCESS;
  if (stalled(lane)) hold_until_given_up(stream);
  CUresult result = CUDA_SUCCESS;
  for (Piece& piece : pieces) {
    if (piece.lane != lane || piece.size == 0) continue;
    if (stream.given_up()) break;
    if (!copy_piece(stream, piece)) {
      result = CUDA_ERROR_ILLEGAL_ADDRESS;
      break;
    }
    driver().bytes[index] += piece.size;
    if (stream.coin(16)) stream.pause();
  }
  engine.release();
  return result;
}

}  // namespace

void copy_part(const std::vector<Segment>& to, const std::vector<Segment>& from, std::size_t offset,
               std::size_t size) {
  walk(to, offset, size, [&](std::byte* target, std::size_t part) {
    walk(from, offset, part, [&](std::byte* source, std::size_t length) {
      dma_copy(target, source, length);
      target += length;
    });
    offset += part;
  });
}

CUresult run_copies(CUstream_st& stream, Pieces& pieces) {
  std::shuffle(pieces.begin(), pieces.end(), stream.random);
  for (const Lane lane : {Lane::kHostToDevice, Lane::kDeviceToHost, Lane::kOther}) {
    const bool any = std::any_of(pieces.begin(), pieces.end(),
                                 [&](const Piece& piece) { return piece.lane == lane; });
    if (!any) continue;
    if (const CUresult r = run_lane(stream, lane, pieces)) return r;
  }
  return CUDA_SUCCESS;
}

}  // namespace fakecuda
