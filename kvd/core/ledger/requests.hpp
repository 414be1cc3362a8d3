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
/// requests in line, in order of arrival; a domain also has a list of its claims. Thousands may
/// wait in line. They hold nothing, so they are looked at only where a request is let in.
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
  /// The same, without a search where ids are asked for in the order of those inside: `next` is
  /// where the last one stood, and 0 at first.
  [[nodiscard]] Request* find(const Session& session, RequestId request, std::size_t& next);
  [[nodiscard]] Request& at(const RequestKey& key) { return requests_.at(key); }
  [[nodiscard]] Session& session_of(const Seen& request) { return *request.session; }
  [[nodiscard]] const Session& session_of(const Seen& request) const { return *request.session; }
  [[nodiscard]] std::size_t count(DomainId domain) const;

  /// Visits the requests of a session or domain in order of their ids. `visit` neither adds nor
  /// removes any.
  template <class F>
  void each_request_of(EngineId engine, F visit);
  template <class F>
  void each_request_in(DomainId domain, F visit);
  /// The same without the requests that wait in line, which hold nothing.
  template <class F>
  void each_inside_of(EngineId engine, F visit);
  template <class F>
  void each_inside_in(DomainId domain, F visit);
  /// Visits the requests of engines that have HBM on the device.
  template <class F>
  void each_inside_on(Share share, F visit);

  Request& add(Request request);
  using Ended = std::map<RequestKey, Request>::node_type;
  /// Forgets the request and hands it over: its table stays where it is.
  Ended end(const Request& request);
  /// Some ended requests still have memory. It comes back by itself, within a few events.
  [[nodiscard]] bool is_behind() const { return behind_; }
  void set_behind(bool behind) { behind_ = behind; }
  /// Called after the request's state or claim has changed.
  void requeue(Request& request);
  void make_claim(Request& request);
  void drop_claim(Request& request);
  /// Has the request's goal looked at once it may have passed.
  void watch(Request& request);
  /// The first request whose goal has passed; it is not looked at again before watch(). Null: there
  /// is none. `looks` counts down the requests that were looked at, and the search ends when it
  /// reaches zero.
  [[nodiscard]] Request* next_late(TimePoint now, std::size_t& looks);
  /// A request of the engine, or, where the engine is gone, of the domain made progress.
  void progressed(EngineId engine, DomainId domain);

  // ---- bytes that engines make kvd keep, summed by domain ----
  // QuotaExceeded: with `more` the domain would have more than its share of kKeptForEngines.
  [[nodiscard]] Status may_keep(DomainId domain, Bytes more) const;
  /// Counts bytes for the session until it ends. Negative: they are no longer kept.
  void keep(Session& session, Bytes change);
  /// The request was given these digests, and keeps them until it ends.
  void tell(Request& request, std::span<const Digest> digests);
  /// The bytes that `count` digests count as.
  [[nodiscard]] static Bytes bytes_of_digests(std::size_t count);
  /// Takes the session out: it has ended, and nothing is kept for it.
  Session take(EngineId engine);

  /// Empty if all lists are what a walk would give; otherwise the fault in words.
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
