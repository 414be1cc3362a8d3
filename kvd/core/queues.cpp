#include <algorithm>
#include <utility>

#include "kvd/core/state.hpp"

/// Lists kept at each change, so that a step costs what it touches and not what waits: of each
/// domain and session those in line, in order of arrival, and of each domain the claims. Thousands
/// may wait in line; they hold nothing, so only who lets somebody in looks at them.
namespace kvd::core {

namespace {

bool waits_in_line(const Request& request) {
  return request.state == RequestState::kWaiting && request.claim == 0;
}

void insert_by_key(std::vector<Request*>& list, Request& request) {
  const auto after = std::upper_bound(
      list.begin(), list.end(), request.key,
      [](const RequestKey& key, const Request* other) { return key < other->key; });
  list.insert(after, &request);
}

}  // namespace

void Controller::State::enlist(Request& request) {
  Session& session = session_of(request);
  Domain& domain = domains[session.info.domain];
  insert_by_key(session.active, request);
  ++domain.requests;
  request.in_line = true;
  session.line.insert(&request);
  domain.line.insert(&request);
}

void Controller::State::delist(Request& request) {
  Session& session = session_of(request);
  const auto domain = domains.find(session.info.domain);
  std::erase(session.active, &request);
  session.ahead.wanting.erase(&request);
  if (request.in_line) {
    session.line.erase(&request);
    domain->second.line.erase(&request);
  } else {
    std::erase(session.inside, &request);
  }
  if (request.claim != 0) domain->second.claims.erase(request.claim);
  if (--domain->second.requests == 0) domains.erase(domain);
}

void Controller::State::requeue(Request& request) {
  const bool in_line = waits_in_line(request);
  if (in_line == request.in_line) return;
  request.in_line = in_line;
  Session& session = session_of(request);
  Domain& domain = domains.at(session.info.domain);
  if (in_line) {
    std::erase(session.inside, &request);
    session.line.insert(&request);
    domain.line.insert(&request);
  } else {
    session.line.erase(&request);
    domain.line.erase(&request);
    insert_by_key(session.inside, request);
  }
}

void Controller::State::make_claim(Request& request) {
  request.claim = ++last.claim;
  domains.at(session_of(request).info.domain).claims.emplace(request.claim, &request);
  requeue(request);
}

void Controller::State::drop_claim(Request& request) {
  if (request.claim == 0) return;
  domains.at(session_of(request).info.domain).claims.erase(std::exchange(request.claim, 0));
  requeue(request);
}

std::size_t Controller::State::requests_of(DomainId domain) const {
  const auto found = domains.find(domain);
  return found == domains.end() ? 0 : found->second.requests;
}

std::string Controller::State::validate_queues() const {
  std::map<DomainId, Domain> counted;
  for (const auto& [id, session] : sessions) {
    Line line;
    std::vector<Request*> inside;
    for (Request* r : session.active) {
      Domain& domain = counted[session.info.domain];
      ++domain.requests;
      if (r->claim != 0) domain.claims.emplace(r->claim, r);
      if (!waits_in_line(*r)) {
        inside.push_back(r);
        continue;
      }
      if (!r->table.empty() || !r->staging.empty()) return "one that waits in line holds memory";
      line.insert(r);
      domain.line.insert(r);
    }
    if (line != session.line || inside != session.inside) return "a session's line is not kept";
    const auto is_lost = [&, &of = session](Request* r) {
      return r->synced < r->sealed && !of.ahead.wanting.contains(r);
    };
    if (std::any_of(inside.begin(), inside.end(), is_lost)) {
      return "a request with blocks to copy ahead is not listed";
    }
  }
  const auto same = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.line == b.second.line &&
           a.second.claims == b.second.claims && a.second.requests == b.second.requests;
  };
  const bool kept =
      std::equal(counted.begin(), counted.end(), domains.begin(), domains.end(), same);
  return kept ? std::string() : "a domain's line or claims are not kept";
}

}  // namespace kvd::core
