#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/device_backend.hpp"

namespace kvd::kernels {

/// The bytes of a slab that the CPU can reach (host backend: any; otherwise DRAM).
inline std::span<std::byte> bytes_of(const Slab& slab) {
  return {reinterpret_cast<std::byte*>(slab.address), slab.size.size()};
}

/// A byte that depends on its place and on `salt`, never zero.
inline std::byte pattern_at(std::size_t i, unsigned salt) {
  return static_cast<std::byte>((i * 166 + (i >> 12) * 2 + std::size_t{salt} * 28) | 1);
}

inline void fill_pattern(std::span<std::byte> bytes, unsigned salt) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_at(i, salt);
}

inline bool has_pattern(std::span<const std::byte> bytes, unsigned salt) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_at(i, salt)) return false;
  }
  return true;
}

inline bool all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// Whether `fd` becomes readable in time. No test passes by this deadline; it ends a hanging one.
inline bool readable(int fd, std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, static_cast<int>(deadline.count())) == 1;
}

/// Polls until `count` completions came; fewer only after the deadline.
inline std::vector<Completion> wait_for(DeviceBackend& backend, std::size_t count) {
  std::vector<Completion> completed;
  while (completed.size() < count && readable(backend.completion_fd())) backend.poll(completed);
  EXPECT_GE(completed.size(), count) << "copies did not finish";
  return completed;
}

inline CopyBatch batch_of(std::uint64_t ticket, Direction direction,
                          std::vector<CopyExtent> extents) {
  return {Ticket(ticket), direction, std::move(extents), {}};
}

/// Asks for a slab and fails the test when there is none.
inline Slab slab_or_die(DeviceBackend& backend, Tier tier, Bytes size) {
  auto slab = backend.create_slab(tier, size);
  if (slab.ok()) return *slab;
  ADD_FAILURE() << slab.error().to_string();
  return {};
}

}  // namespace kvd::kernels
