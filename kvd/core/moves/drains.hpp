#pragma once

#include <cstdint>
#include <optional>

#include "ipc/vocabulary/result.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/core/moves/request_memory.hpp"

namespace kvd::core {

/// Engines that an operator takes out of service, one or all of the node: they get nothing new, and
/// what they have begun runs to its end. Requests that wait end at once, as another engine can take
/// them at no loss; at the deadline, if there is one, so does all that is left. Both at a step of
/// the engine that finds no iteration with them under way: what it reports is counted first, and
/// the reply tells of the end.
///
/// Of an engine that places its blocks, kvd only says who comes in: nobody who has not begun. What
/// waits there is the engine's to send on, and at a deadline nothing of it ends. Regions are the
/// engine's until it gives them back.
///
/// Source: kvd/DESIGN.md "Out of service".
///
/// Owner: control thread. Cost: O(requests of the session) while it drains, else O(1).
class Drains {
 public:
  /// To whoever asks for something new.
  static constexpr const char* kRefusal =
      "this engine is taken out of service: send the request to another one, or put it back with "
      "kvdctl drain --cancel";

  Drains(Context& context, Requests& requests, RequestMemory& memory)
      : context_(context), requests_(requests), memory_(memory) {}

  /// Does nothing for an engine that is not there.
  void on_drain(const Drain& drain);
  /// Unavailable while the whole node drains.
  [[nodiscard]] Status takes_engines() const;
  /// By itself or with the node.
  [[nodiscard]] bool drains(const Session& session) const { return node_ || session.life.draining; }
  /// Ends what shall not run any more, after the step's reports were taken.
  void end_left(Session& session);
  /// At every tick: tells once when an engine has nothing left.
  void watch();

  /// None: it is in service. `left` counts its requests; of an engine that places, those that have
  /// begun; of one that kvd knows no requests of, its regions.
  [[nodiscard]] std::optional<DrainStatus> status(const Session& session) const;
  /// The same for the node; `left` counts engines that have something left.
  [[nodiscard]] std::optional<DrainStatus> status() const;

 private:
  [[nodiscard]] Draining drained(const Drain& drain, const std::optional<Draining>& before) const;
  void put_back(EngineId engine);

  Context& context_;
  Requests& requests_;
  RequestMemory& memory_;
  std::optional<Draining> node_;
};

}  // namespace kvd::core
