#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>

#include "ipc/vocabulary/fair_shares.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/core/door/config.hpp"
#include "kvd/core/ledger/request.hpp"
#include "kvd/core/ledger/session.hpp"

namespace kvd::core {

/// Holds sessions, their requests, and lists of these that are kept up to date at each change, so
/// that a step costs what it touches and not what waits. A domain or session has a list of its
/// requests in line, in order of arrival; a domain also has one of its claims. Thousands may wait
/// in line; they hold nothing, so they are looked at only where somebody is let in.
///
/// Owner: control thread. Cost: O(log requests), walks what they walk.
class Requests {
 public:
  explicit Requests(std::uint32_t max_domains = Config{}.max_domains);

  [[nodiscard]] std::map<EngineId, Session>& sessions() { return sessions_; }
  [[nodiscard]] const std::map<EngineId, Session>& sessions() const { return sessions_; }
  /// The domains that have requests.
  [[nodiscard]] const std::map<DomainId, Domain>& domains() const { return domains_; }
  /// By key, so that every walk is deterministic.
  [[nodiscard]] const std::map<RequestKey, Request>& all() const { return requests_; }

  [[nodiscard]] Request* find(EngineId engine, RequestId request);
  /// The same, in no time where ids are asked for in the order of those inside: `next` is where the
  /// last one stood, 0 at first.
  [[nodiscard]] Request* find(const Session& session, RequestId request, std::size_t& next);
  [[nodiscard]] Request& at(const RequestKey& key) { return requests_.at(key); }
  [[nodiscard]] Session& session_of(const Seen& request) { return *request.session; }
  [[nodiscard]] const Session& session_of(const Seen& request) const { return *request.session; }
  [[nodiscard]] std::size_t count(DomainId domain) const;

  /// Visits the requests of a session or domain, in order of their ids. `visit` neither adds nor
  /// removes any.
  template <class F>
  void each_request_of(EngineId engine, F visit);
  template <class F>
  void each_request_in(DomainId domain, F visit);
  /// The same without those that wait in line, which hold nothing.
  template <class F>
  void each_inside_of(EngineId engine, F visit);
  template <class F>
  void each_inside_in(DomainId domain, F visit);
  /// Visits requests of engines that have HBM on the device.
  template <class F>
  void each_inside_on(Share share, F visit);

  Request& add(Request request);
  using Ended = std::map<RequestKey, Request>::node_type;
  /// Forgets it, and hands it over: its table stays where it is.
  Ended end(const Request& request);
  /// Some that have ended still have memory: it comes back by itself, within a few events.
  [[nodiscard]] bool is_behind() const { return behind_; }
  void set_behind(bool behind) { behind_ = behind; }
  /// After its state or claim has changed.
  void requeue(Request& request);
  void make_claim(Request& request);
  void drop_claim(Request& request);
  /// Its goal is looked at once it may have passed.
  void watch(Request& request);
  /// The first whose goal has passed, which is not looked at again before watch(); null: none.
  /// `looks` counts down those that were looked at, and ends at none.
  [[nodiscard]] Request* next_late(TimePoint now, std::size_t& looks);
  /// Somebody got on: of the engine, or, where it is gone, of the domain.
  void progressed(EngineId engine, DomainId domain);

  // ---- bytes that engines make kvd keep, added up by domain ----
  /// QuotaExceeded: with so many more the domain would have more than its share of
  /// kKeptForEngines.
  [[nodiscard]] Status may_keep(DomainId domain, Bytes more) const;
  /// For the session, until it ends. Negative: no longer.
  void keep(Session& session, Bytes change);
  /// Digests that the request has been given; it keeps them until it ends.
  void tell(Request& request, std::span<const Digest> digests);
  /// What so many digests count as.
  [[nodiscard]] static Bytes bytes_of_digests(std::size_t count);
  /// The session is no more, and nothing is kept for it.
  Session take(EngineId engine);

  /// Empty while all lists are those of a walk; else the fault in words.
  [[nodiscard]] std::string validate() const;

 private:
  void enlist(Request& request);
  void lift_served(Session& session) const;
  void delist(Request& request);

  std::map<EngineId, Session> sessions_;
  std::map<RequestKey, Request> requests_;
  std::map<DomainId, Domain> domains_;
  std::set<Request*, ByGoal> watched_;
  FairShares<DomainId> kept_;  ///< in bytes
  std::uint64_t last_claim_ = 0;
  std::uint64_t last_progress_ = 0;
  bool behind_ = false;
};

template <class F>
void Requests::each_request_of(EngineId engine, F visit) {
  const auto session = sessions_.find(engine);
  if (session == sessions_.end()) return;
  for (Request* request : session->second.active) visit(*request);
}

template <class F>
void Requests::each_request_in(DomainId domain, F visit) {
  for (auto& [id, session] : sessions_) {
    if (session.info.domain != domain) continue;
    for (Request* request : session.active) visit(*request);
  }
}

template <class F>
void Requests::each_inside_of(EngineId engine, F visit) {
  const auto session = sessions_.find(engine);
  if (session == sessions_.end()) return;
  for (Request* request : session->second.inside) visit(*request);
}

template <class F>
void Requests::each_inside_in(DomainId domain, F visit) {
  for (auto& [id, session] : sessions_) {
    if (session.info.domain != domain) continue;
    for (Request* request : session.inside) visit(*request);
  }
}

template <class F>
void Requests::each_inside_on(Share share, F visit) {
  for (auto& [id, session] : sessions_) {
    if (session.info.domain != share.domain || !session.on(share.device)) continue;
    for (Request* request : session.inside) visit(*request);
  }
}

}  // namespace kvd::core
