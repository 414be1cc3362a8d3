#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/effects.hpp"
#include "kvd/core/events.hpp"
#include "kvd/core/status.hpp"
#include "kvd/core/tuning.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::core {

struct AttachGrant {
  EngineId engine;        ///< of rank 0; those of a group's other ranks follow, and stand for it
  Generation generation;  ///< likewise
  ClassId class_id;
  ModelClass model_class;
  std::uint32_t max_rows = 0;
};

/// Decides everything: who holds which slot, who runs, what is copied where. Deterministic: the
/// same events at the same times give the same effects. The daemon feeds it sockets, copies and the
/// steady clock; the simulator a trace and a virtual one.
/// Source:  kvd/DESIGN.md, whole; SuperInfer Algorithm 1 for the rotation.
/// Owner:   control thread.
/// Errors:  every command is answered by exactly one Reply effect, now or by its deadline. Two may
///          wait: a region, for slabs to be zeroed and for requests of its domain to be rotated
///          out of slabs that retire for it; and the step of a rank that is ahead of its group.
class Controller {
 public:
  struct Config {
    pool::TierPool::Config hbm;
    pool::TierPool::Config dram;
    pool::Quotas hbm_quotas;
    pool::Quotas dram_quotas;
    Tuning tuning;
    Nanoseconds step_timeout{5'000'000'000};
    /// A silent engine is to end after others have waited this long for what it holds; 0: never.
    Nanoseconds evict_after{0};
    /// Where nobody of a domain gets on for so long, its latest request ends; zero: never.
    Nanoseconds standstill_after{60'000'000'000};
    std::uint32_t max_requests_per_engine = 1024;
    std::uint32_t max_requests_per_domain = 8192;
    /// Block tables are made only for shells whose engines read them: the simulator's do not.
    bool publish_tables = true;
    /// The shell says of every request how long its answer will be (Submit::predicted).
    bool oracle = false;
    bool validate_each_event = false;  ///< tests: abort on a broken invariant after every event
  };

  /// InvalidArgument naming every fault of the configuration.
  static Result<std::unique_ptr<Controller>> create(Config config);
  ~Controller();

  /// Admits a peer, or says why not (InvalidArgument for an impossible shape, QuotaExceeded, …).
  [[nodiscard]] Result<AttachGrant> attach(const Attach& attach, TimePoint now);
  /// Appends the effects of one event, in the order they must be carried out.
  void on(const Event& event, TimePoint now, std::vector<Effect>& effects);

  [[nodiscard]] ControllerStatus status(TimePoint now) const;
  [[nodiscard]] const Tuning& tuning() const;
  /// Regions of an engine, for accounting at its death.
  [[nodiscard]] Bytes region_bytes(EngineId engine) const;
  [[nodiscard]] std::string validate() const;

 private:
  struct State;
  explicit Controller(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvd::core
