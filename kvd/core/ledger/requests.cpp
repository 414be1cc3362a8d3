#include "kvd/core/ledger/requests.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvd/core/door/kept_for_engines.hpp"

namespace kvd::core {

namespace {

/// A quarter of it is reserved for each domain in any case.
constexpr std::int64_t kKept = (kKeptForEngines - kKeptFrames).value;
/// The size of a request, including what lists and answers hold of it.
constexpr Bytes kRequestBytes{static_cast<std::int64_t>(2 * sizeof(Request))};

Bytes bytes_of(const Request& request) {
  return kRequestBytes + Requests::bytes_of_digests(request.content.chain.size());
}

bool waits_in_line(const Request& request) { return request.waits() && request.order.claim == 0; }

void insert_by_key(std::vector<Request*>& list, Request& request) {
  const auto after = std::upper_bound(
      list.begin(), list.end(), request.key,
      [](const RequestKey& key, const Request* other) { return key < other->key; });
  list.insert(after, &request);
}

}  // namespace

RequestState Seen::state() const {
  switch (place) {
    case Location::kOut:
      return RequestState::kWaiting;
    case Location::kIn:
      return phase == Phase::kPrompt ? RequestState::kPrefill : RequestState::kRunning;
    case Location::kGoing:
      return RequestState::kSwappingOut;
    case Location::kParked:
      return RequestState::kRotary;
    case Location::kComing:
      return RequestState::kSwappingIn;
  }
  return RequestState::kWaiting;
}

std::uint64_t Request::layers_version() {
  LayersSeen& seen = layers.known.seen;
  const bool fetches = static_cast<bool>(moves.fetch);
  if (seen.table == table.changes() && seen.staging == layers.staging.changes() &&
      seen.sealed == sealed && seen.paused == paused() && seen.fetching == fetches &&
      seen.away == layers.away) {
    return layers.known.version;
  }
  seen = {table.changes(), layers.staging.changes(), sealed, paused(), fetches, layers.away};
  return ++layers.known.version;
}

Request* Requests::find(EngineId engine, RequestId request) {
  const auto it = requests_.find(RequestKey{engine, request});
  return it == requests_.end() ? nullptr : &it->second;
}

Request* Requests::find(const Session& session, RequestId request, std::size_t& next) {
  const std::vector<Request*>& inside = session.inside;
  const auto here = [&] { return next < inside.size() && inside[next]->key.request == request; };
  if (!here()) {
    const auto from = std::lower_bound(
        inside.begin(), inside.end(), request,
        [](const Request* other, RequestId id) { return other->key.request < id; });
    next = static_cast<std::size_t>(from - inside.begin());
  }
  return here() ? inside[next++] : find(session.id, request);
}

Requests::Requests(std::uint32_t max_domains)
    : kept_(kKept / 4 * 3, kKept / 4 / std::max(1u, max_domains)) {}

// Counts a quarter more digests than there are, because lists grow by that much at a time.
Bytes Requests::bytes_of_digests(std::size_t count) {
  return Bytes(static_cast<std::int64_t>((count + count / 4) * sizeof(Digest)));
}

Status Requests::may_keep(DomainId domain, Bytes more) const {
  if (kept_.fits(domain, more.value)) return {};
  return make_error(ErrorCode::kQuotaExceeded,
                    "engines of the domain have kvd keep " + std::to_string(kept_.of(domain)) +
                        " bytes of names and tables, of the " + std::to_string(kept_.most(domain)) +
                        " that are its share now: finish requests, or close caches, spaces or "
                        "sessions");
}

void Requests::keep(Session& session, Bytes change) {
  session.leases.kept += change;
  kept_.add(session.info.domain, change.value);
}

void Requests::tell(Request& request, std::span<const Digest> digests) {
  std::vector<Digest>& chain = request.content.chain;
  const Bytes before = bytes_of(request);
  const std::size_t size = chain.size() + digests.size();
  if (size > chain.capacity()) chain.reserve(std::max(size, chain.size() + chain.size() / 4));
  chain.insert(chain.end(), digests.begin(), digests.end());
  kept_.add(request.session->info.domain, (bytes_of(request) - before).value);
}

Session Requests::take(EngineId engine) {
  Session session = std::move(sessions_.extract(engine).mapped());
  keep(session, Bytes(0) - session.leases.kept);
  return session;
}

Request& Requests::add(Request request) {
  Request& added = requests_.emplace(request.key, std::move(request)).first->second;
  added.session = &sessions_.at(added.key.engine);
  kept_.add(added.session->info.domain, bytes_of(added).value);
  enlist(added);
  watch(added);
  return added;
}

Requests::Ended Requests::end(const Request& request) {
  const auto found = requests_.find(RequestKey(request.key));
  kept_.add(found->second.session->info.domain, -bytes_of(found->second).value);
  delist(found->second);
  if (found->second.times.watched) watched_.erase(&found->second);
  Ended ended = requests_.extract(found);
  ended.mapped().content.chain = {};
  ended.mapped().session = nullptr;
  return ended;
}

// A request that stands too early moves once it is looked at, so most tokens cost nothing.
void Requests::watch(Request& request) {
  std::optional<TimePoint>& watched = request.times.watched;
  const std::optional<TimePoint> passes = request.goal_passes();
  if (watched && (!passes || *watched <= *passes)) return;
  if (watched) watched_.erase(&request);
  watched = passes;
  if (watched) watched_.insert(&request);
}

Request* Requests::next_late(TimePoint now, std::size_t& looks) {
  while (looks > 0 && !watched_.empty()) {
    Request* request = *watched_.begin();
    if (now <= *request->times.watched) return nullptr;
    --looks;
    watched_.erase(watched_.begin());
    request->times.watched.reset();
    const std::optional<TimePoint> passes = request->goal_passes();
    if (passes && now > *passes) return request;
    watch(*request);
  }
  return nullptr;
}

void Requests::progressed(EngineId engine, DomainId domain) {
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return;
  const auto session = sessions_.find(engine);
  ++last_progress_;
  for (auto& [device, progress] : found->second.progress) {
    if (session == sessions_.end() || session->second.on(device)) progress = last_progress_;
  }
}

void Requests::enlist(Request& request) {
  Session& session = session_of(request);
  Domain& domain = domains_[session.info.domain];
  if (session.active.empty()) lift_served(session);
  insert_by_key(session.active, request);
  ++domain.requests;
  for (const DeviceId device : session.devices().all()) {
    if (!domain.progress.contains(device)) domain.progress[device] = ++last_progress_;
  }
  request.order.in_line = true;
  session.line.insert(&request);
  domain.line.insert(&request);
}

void Requests::lift_served(Session& session) const {
  std::optional<Tokens> least;
  for (const auto& [id, other] : sessions_) {
    if (other.info.domain != session.info.domain || other.active.empty()) continue;
    least = least ? std::min(*least, other.totals.served) : other.totals.served;
  }
  session.totals.served = std::max(session.totals.served, least.value_or(Tokens(0)));
}

void Requests::delist(Request& request) {
  Session& session = session_of(request);
  const auto domain = domains_.find(session.info.domain);
  std::erase(session.active, &request);
  session.ahead.wanting.erase(&request);
  if (request.order.in_line) {
    session.line.erase(&request);
    domain->second.line.erase(&request);
  } else {
    std::erase(session.inside, &request);
  }
  if (request.order.claim != 0) domain->second.claims.erase(request.order.claim);
  if (--domain->second.requests == 0) domains_.erase(domain);
}

void Requests::requeue(Request& request) {
  const bool in_line = waits_in_line(request);
  if (in_line == request.order.in_line) return;
  request.order.in_line = in_line;
  Session& session = session_of(request);
  Domain& domain = domains_.at(session.info.domain);
  if (in_line) {
    std::erase(session.inside, &request);
    session.line.insert(&request);
    domain.line.insert(&request);
    request.order.curbed = request.order.sheltered = false;  // said only of requests inside
  } else {
    session.line.erase(&request);
    domain.line.erase(&request);
    insert_by_key(session.inside, request);
  }
}

void Requests::make_claim(Request& request) {
  request.order.claim = ++last_claim_;
  domains_.at(session_of(request).info.domain).claims.emplace(request.order.claim, &request);
  requeue(request);
}

void Requests::drop_claim(Request& request) {
  if (request.order.claim == 0) return;
  domains_.at(session_of(request).info.domain).claims.erase(std::exchange(request.order.claim, 0));
  requeue(request);
}

std::size_t Requests::count(DomainId domain) const {
  const auto found = domains_.find(domain);
  return found == domains_.end() ? 0 : found->second.requests;
}

std::string Requests::validate() const {
  std::map<DomainId, Domain> counted;
  std::map<DomainId, Bytes> bytes_kept;
  for (const auto& [id, session] : sessions_) {
    Bytes& of_domain = bytes_kept[session.info.domain];
    of_domain += session.leases.kept;
    for (Request* r : session.active) {
      of_domain += bytes_of(*r);
      if (r->times.watched.has_value() != watched_.contains(r)) return "a goal is not watched";
    }
    Line line;
    std::vector<Request*> inside;
    for (Request* r : session.active) {
      Domain& domain = counted[session.info.domain];
      ++domain.requests;
      if (r->order.claim != 0) domain.claims.emplace(r->order.claim, r);
      if (!waits_in_line(*r)) {
        inside.push_back(r);
        continue;
      }
      if (!r->table.empty() || !r->layers.staging.empty())
        return "one that waits in line holds memory";
      if (r->order.curbed || r->order.sheltered) return "one that waits in line is curbed";
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
  for (const auto& [domain, bytes] : bytes_kept) {
    if (bytes.value != kept_.of(domain)) return "what a domain has kvd keep is not added up";
  }
  const auto same = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.line == b.second.line &&
           a.second.claims == b.second.claims && a.second.requests == b.second.requests;
  };
  const bool kept =
      std::equal(counted.begin(), counted.end(), domains_.begin(), domains_.end(), same);
  return kept ? std::string() : "a domain's line or claims are not kept";
}

}  // namespace kvd::core
