#pragma once

#include <set>
#include <string>
#include <utility>

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"

namespace kvd::core {

/// How much HBM a domain has to give on a device: what is free, what is on its way out, and what
/// plans could still make free, less what is already claimed.
///
/// Owner: control thread. Cost: O(requests of the domain that do not wait in line).
class Supply : private Part {
 public:
  Supply(Ground& ground, Needs& needs) : Part(ground), needs_(needs) {}

  /// Slabs of the domain on the device retire for a region.
  [[nodiscard]] bool retires(Share share) const { return retiring_.contains(share); }
  [[nodiscard]] const std::set<Share>& retiring() const { return retiring_; }
  void begin_retiring(Share share) { retiring_.insert(share); }
  void end_retiring(Share share) { retiring_.erase(share); }
  /// They retire because quotas now allow the domain less, and for as long as that takes.
  [[nodiscard]] bool shrinks(Share share) const { return shrinking_.contains(share); }
  [[nodiscard]] const std::set<Share>& shrinking() const { return shrinking_; }
  void set_shrinking(std::set<Share> shares) { shrinking_ = std::move(shares); }
  /// The domain has more than its part, which others wait for (shares.hpp): none of its requests
  /// comes in.
  [[nodiscard]] bool over_part(Share share) const { return over_.contains(share); }
  void set_over_part(Share share) { over_.insert(share); }
  void end_over_part() { over_.clear(); }
  /// HBM for the next request that comes in; below zero where more is claimed than there is.
  [[nodiscard]] Bytes of(Share share);
  /// Some of its HBM is in slabs that retire for a region.
  [[nodiscard]] bool in_retiring_slab(const Request& request) const;
  /// HBM that victims will give back to requests, without slabs that retire for a region.
  [[nodiscard]] Bytes incoming(Share share);
  /// HBM kept from new requests, for prompts that prefill layer by layer.
  [[nodiscard]] Bytes layerwise_reserve(Share share);
  /// Names a silent engine that holds blocks there, and what to do about it; empty: there is none.
  [[nodiscard]] std::string silent_holder(Share share);

 private:
  /// Bytes of the request's HBM on the device that are in retiring slabs.
  [[nodiscard]] Bytes kept(const Request& request, DeviceId device) const;
  [[nodiscard]] Bytes claimed(Share share);
  [[nodiscard]] Bytes yieldable(Share share);

  Needs& needs_;
  std::set<Share> retiring_;
  std::set<Share> shrinking_;
  std::set<Share> over_;
};

}  // namespace kvd::core
