#pragma once

#include <cstdint>

#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Below three groups, staging and open blocks take what streaming would save.
inline constexpr std::uint32_t kLeastGroups = 3;
/// One part in so many of HBM is kept for prompts that prefill layer by layer. Source: LayerKV's
/// threshold of free blocks; its number is not published, so this one is ours.
inline constexpr std::int64_t kLayerwiseShare = 20;

/// How much memory a request needs in order to run, and how much its domain can come to have.
///
/// Owner: control thread. Cost: O(1), layers_stream O(requests of the session).
class Needs : private Part {
 public:
  explicit Needs(Ground& ground) : Part(ground) {}

  /// HBM that the request needs to run, as its engine runs now: in all, or on one device.
  [[nodiscard]] Bytes to_run(const Request& request) const;
  [[nodiscard]] Bytes to_run(const Request& request, DeviceId device) const;
  /// The same with all its layers streamed: a staging set for each rank, the open block of every
  /// group, and one block to grow into.
  [[nodiscard]] Bytes to_stream(const Request& request) const;
  [[nodiscard]] Bytes to_stream(const Request& request, DeviceId device) const;
  /// Its engine waits for layers, and the placement policy streams.
  [[nodiscard]] bool layers_may_stream(const Session& session) const;
  /// They may stream, and its requests are so large that streaming pays.
  [[nodiscard]] bool layers_stream(const Session& session) const;
  /// Its prompts may prefill layer by layer into DRAM, a few blocks of HBM at a time. They do not
  /// where its ranks have several devices, since a prompt is chosen for it on one device.
  [[nodiscard]] bool prefills_layerwise(const Session& session) const;
  /// The most tokens of one request that HBM holds with everything else out of the way.
  [[nodiscard]] Tokens most_tokens(const Session& session) const;
  /// The most slots of the session's class that its domain can come to have in the tier.
  [[nodiscard]] static std::int64_t most_slots(const pool::TierPool& tier, const Session& session);
  /// The same in HBM, as far as all ranks can use equally many.
  [[nodiscard]] std::int64_t most_hbm_slots(const Session& session) const;
  /// The most of the device's HBM that the domain may have.
  [[nodiscard]] Bytes hbm_limit(Share share) const;
  [[nodiscard]] Bytes dram_limit(DomainId domain) const;

 private:
  /// Whether its requests are so large that few of them fill the device's HBM, so that streaming
  /// pays.
  [[nodiscard]] bool has_large_requests(const Session& session, DeviceId device) const;
};

}  // namespace kvd::core
