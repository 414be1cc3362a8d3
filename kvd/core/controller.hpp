#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/config.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::core {

/// Decides everything: who holds which slot, who runs, what is copied where. Deterministic: the
/// same events at the same times give the same effects. The daemon feeds it sockets, copies and the
/// steady clock; the simulator a trace and a virtual one.
/// Source:  kvd/DESIGN.md, whole; SuperInfer Algorithm 1 for the rotation.
/// Owner:   control thread.
/// Errors:  every command is answered by exactly one Reply effect, now or by its deadline. Two
/// commands may wait: a region, for slabs to be zeroed and for requests of its domain to be rotated
/// out of slabs that retire for it; and the step of a rank that is ahead of its group.
class Controller {
 public:
  using Config = core::Config;

  /// InvalidArgument naming every fault of the configuration.
  static Result<std::unique_ptr<Controller>> create(Config config);
  ~Controller();

  /// Admits a peer, or says why not (InvalidArgument for an impossible shape, QuotaExceeded, …).
  [[nodiscard]] Result<AttachGrant> attach(const Attach& attach, TimePoint now);
  /// Appends the effects of one event, in the order they must be carried out.
  void on(const Event& event, TimePoint now, std::vector<Effect>& effects);

  [[nodiscard]] ControllerStatus status(TimePoint now) const;
  [[nodiscard]] const Tuning& tuning() const;
  /// An event left work for later ones: a Tick goes on with it at once.
  [[nodiscard]] bool is_behind() const;
  /// The whole node is out of service.
  [[nodiscard]] bool drains() const;
  /// It is, and nothing is left: no request that has begun, no block for the remote store.
  [[nodiscard]] bool drained() const;
  /// Blocks that the files of a class have, for the next daemon.
  [[nodiscard]] std::vector<DiskFound::Block> on_disk(DiskId disk) const;
  /// Bytes that domains hold beyond what they are now allowed; they give them back as they come
  /// free.
  [[nodiscard]] std::map<DomainId, Bytes> excess(Tier tier) const;
  /// Bytes in an engine's regions, for accounting at its death.
  [[nodiscard]] Bytes region_bytes(EngineId engine) const;
  [[nodiscard]] std::string validate() const;

 private:
  struct House;
  explicit Controller(std::unique_ptr<House> house);
  std::unique_ptr<House> house_;
};

}  // namespace kvd::core
