#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"
#include "kvd/core/ledger/requests.hpp"

namespace kvd::core {

/// Says which of the requests that want memory is served first. Under a rotation policy that serves
/// the late (RotationTraits) the request whose first token is due first is served first, whatever
/// its engine or class. With `rotation.overload` = goodput, a request that is late whatever is done
/// waits as if it had come planner::kPatience of its goals later: behind those of its class that it
/// would make late, and before those that have time. Late requests with one goal and blocks of one
/// size take turns by engine: first comes the engine that has had the fewest tokens, including
/// those that its requests inside will still make. (Blocks of two sizes in turn would leave less
/// room for guesses: reservations.hpp.) Other policies serve by arrival.
///
/// The time at which a request is due changes once, and no request that comes later is due earlier
/// than that. So everyone's turn comes.
///
/// Source: kvd design; earliest deadline first; between engines the virtual token counter of Sheng
/// et al., "Fairness in Serving Large Language Models" (OSDI 2024).
/// Owner: control thread. Cost: O(n) where the line is of one engine and class, else O(n log n).
class ServingOrder {
 public:
  ServingOrder(Context& context, Requests& requests, Knowledge& knowledge)
      : context_(context), requests_(requests), knowledge_(knowledge) {}

  /// When first tokens are due under the current rotation policy: made once for many requests.
  class Due {
   public:
    struct Time {
      TimePoint at{0};    ///< when it is due, or when it arrived where the policy serves by arrival
      bool late = false;  ///< its first token cannot come in time any more
    };
    explicit Due(const Context& context);
    [[nodiscard]] Time of(const Seen& request, const Knowledge& knowledge) const;
    /// How long after its arrival a request with this goal is due.
    [[nodiscard]] Nanoseconds after(Nanoseconds goal, bool late) const;
    [[nodiscard]] bool late_last() const { return late_last_; }

   private:
    bool counts_;
    bool late_last_;
  };

  /// Admission and rotation decide by one order. It is made here, and stays until the step ends; no
  /// request joins the line meanwhile.
  void begin_step(DomainId domain) {
    (void)in_line(domain);
    step_of_ = domain;
  }
  void end_step() { step_of_.reset(); }
  /// Lists the requests that wait in line of the domain, the next one first, and sets Order::place
  /// of each. The list is valid until the next call.
  [[nodiscard]] std::span<Request* const> in_line(DomainId domain);
  /// The request waits behind its class, because its first token is late whatever is done.
  /// Precondition: it has no token.
  [[nodiscard]] bool serves_last(const Request& request) const;
  /// Puts prompts that have begun in the order in which they are prefilled.
  void sort(std::vector<Request*>& begun) const;

 private:
  struct Entry {
    Due::Time due;
    Request* request = nullptr;
  };

  [[nodiscard]] Tokens work_of(const Request& request) const;
  [[nodiscard]] Tokens had_by(const Session& session) const;
  void take_turns();

  Context& context_;
  Requests& requests_;
  Knowledge& knowledge_;
  std::optional<DomainId> step_of_;
  std::vector<Entry> entries_;    ///< kept for its memory
  std::vector<Request*> served_;  ///< likewise
};

}  // namespace kvd::core
