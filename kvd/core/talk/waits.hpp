#pragma once

#include <map>
#include <set>
#include <vector>

#include "kvd/core/door/inputs.hpp"
#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Explains why requests whose blocks kvd places make no token, for people to read.
///
/// Owner: control thread. Cost: O(requests) to make, then O(log requests).
class Waits {
 public:
  /// `asked`: what the rotation policy would be asked now.
  Waits(Ground& ground, const std::vector<RotationInput>& asked);

  [[nodiscard]] WaitReason of(const Request& request) const;

 private:
  /// The room for a request that the policy would be asked about, after those before it.
  struct Room {
    bool in_hbm = true;
    bool in_dram = true;  ///< room for those that would leave for it
  };
  void add(const RotationInput& asked);
  [[nodiscard]] WaitReason inside(const Request& request) const;
  [[nodiscard]] WaitReason outside(const Request& request) const;

  Requests& requests_;
  ServingOrder& line_;
  const Drains& drains_;
  std::map<RequestKey, Room> room_;
  std::set<DomainId> makes_way_;  ///< domains in which a request is promised to others
};

}  // namespace kvd::core
