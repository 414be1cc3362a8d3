#pragma once

#include <cstddef>
#include <vector>

#include "tests/support/fakecuda/driver.hpp"

namespace fakecuda {

/// The largest pitch of a 2D copy on any device (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
constexpr std::size_t kMostPitch = (std::size_t{1} << 31) - 1;

/// One copy. `early` holds the source where it was read ahead of stream order.
struct Piece {
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  std::size_t size = 0;
  Lane lane = Lane::kOther;
  bool to_pageable = false;
  bool foreign = false;  // names memory by an address that the device does not know
  std::vector<std::byte> early = {};
};

using Pieces = std::vector<Piece>;

/// Copies between ranges that may cross mappings, from `offset` of both on.
void copy_part(const std::vector<Segment>& to, const std::vector<Segment>& from, std::size_t offset,
               std::size_t size);

/// A queued copy or batch when its stream gets there: in any order, each on the engine of its
/// direction. Gives what to latch.
CUresult run_copies(CUstream_st& stream, Pieces& pieces);

}  // namespace fakecuda
