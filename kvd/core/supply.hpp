#pragma once

#include <set>
#include <string>

#include "kvd/core/ground.hpp"
#include "kvd/core/needs.hpp"

namespace kvd::core {

/// What HBM a domain has to give: free, on its way out, or what plans could still make free, less
/// what is claimed already.
///
/// Owner: control thread. Cost: O(requests of the domain that do not wait in line).
class Supply {
 public:
  Supply(Ground& ground, Needs& needs)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        memory_(ground.memory),
        needs_(needs) {}

  /// The domain has slabs retire for a region.
  [[nodiscard]] bool retires(DomainId domain) const { return retiring_.contains(domain); }
  [[nodiscard]] const std::set<DomainId>& retiring() const { return retiring_; }
  void begin_retiring(DomainId domain) { retiring_.insert(domain); }
  void end_retiring(DomainId domain) { retiring_.erase(domain); }
  /// HBM for whoever comes next; below zero where more is claimed than there is.
  [[nodiscard]] Bytes of(DomainId domain);
  /// Some of its HBM is in slabs that retire for a region.
  [[nodiscard]] bool in_retiring_slab(const Request& request) const;
  /// HBM that victims will give back to requests: nothing of slabs that retire for a region.
  [[nodiscard]] Bytes incoming(DomainId domain);
  /// HBM kept from who would come in, for prompts that prefill layer by layer.
  [[nodiscard]] Bytes layerwise_reserve(DomainId domain);
  /// Which silent engine of the domain holds blocks, and what to do about it; empty: none.
  [[nodiscard]] std::string silent_holder(DomainId domain);

 private:
  [[nodiscard]] Bytes kept(const Request& request) const;  ///< of its HBM, in retiring slabs
  [[nodiscard]] Bytes claimed(DomainId domain);
  [[nodiscard]] Bytes yieldable(DomainId domain);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  RequestMemory& memory_;
  Needs& needs_;
  std::set<DomainId> retiring_;
};

}  // namespace kvd::core
