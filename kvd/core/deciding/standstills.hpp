#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kvd/core/deciding/silence.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/supply.hpp"

namespace kvd::core {

/// Requests of a domain want memory of a device, none runs there or where a group waits for its
/// turn, and nothing is under way.
struct Standstill {
  std::uint64_t progress = 0;  ///< the latest Domain::progress of the devices when it began
  TimePoint since{0};
  bool told = false;
};

/// What nobody should see: requests that want memory, none that runs, and nothing under way that
/// could change it. Policies let requests in where there is room, so the room is held by something
/// that does not move: a region, another domain's loan, or requests of which none can grow or
/// leave. A standstill is logged once, and after `standstill_after` the latest request ends; those
/// that hold memory end first. None ends while another domain that has more than its part makes way
/// (shares.hpp), however long its requests run.
///
/// A group comes in on all its devices at once, so a device that has room for it does not stand
/// still before the others do.
///
/// Owner: control thread. Cost: O(requests of a share in which nobody runs), else O(sessions).
class Standstills : private Part {
 public:
  Standstills(Ground& ground, Needs& needs, Supply& supply, Silence& silence)
      : Part(ground), needs_(needs), supply_(supply), silence_(silence) {}

  /// At every tick.
  void watch();
  /// Called at its engine's step, once the reports of it have been taken, so that the reply tells
  /// of its end.
  void end_given_up(Session& session);

 private:
  void watch(Share share);
  /// The devices that requests of the share wait for: its own, and others that groups need, too.
  /// Empty where anything moves there, or nobody waits.
  [[nodiscard]] std::vector<DeviceId> standing(Share share);
  void add_awaited(Share share, std::vector<DeviceId>& devices);
  [[nodiscard]] std::uint64_t progress_on(DomainId domain,
                                          const std::vector<DeviceId>& devices) const;
  [[nodiscard]] bool moves(Share share);
  [[nodiscard]] bool somebody_wants(Share share);
  /// Requests of another domain run there, and what they hold is for this one once they end.
  [[nodiscard]] bool another_makes_way(Share share);
  void tell(Share share, const Standstill& standstill);
  [[nodiscard]] std::string name_of(DomainId domain) const;
  /// Names who holds the device's HBM, for people to read.
  [[nodiscard]] std::string holders(DeviceId device);
  void give_up_latest(Share share);

  Needs& needs_;
  Supply& supply_;
  Silence& silence_;
  std::map<Share, Standstill> still_;
};

}  // namespace kvd::core
