#include "kvd/core/promises.hpp"

namespace kvd::core {

void Promises::preempt(Request& request, EngineId caller, Promise why) {
  if (request.leaving || request.promised) return;
  if (request.key.engine == caller) {
    request.leaving = true;
    return;
  }
  request.promised = true;
  request.promise = why;
  ++context_.counters.promises;
}

void Promises::acknowledge(Session& session) {
  requests_.each_inside_of(session.id, [](Request& r) {
    if (!r.promised) return;
    r.promised = false;
    r.leaving = r.state == RequestState::kRunning;
  });
}

void Promises::expire(DomainId domain) {
  bool waits = false, promised = false;
  requests_.each_inside_in(domain, [&](const Request& r) {
    waits = waits || r.claim != 0 || r.starved;
    promised = promised || r.promised;
  });
  if (!promised) return;
  // A promise ends with its need: what is free or already on its way out may do by now, or nobody
  // waits any more. One made for a region ends with that.
  Bytes spare = supply_.of(domain);
  requests_.each_inside_in(domain, [&](Request& r) {
    if (!r.promised) return;
    const bool needless = r.promise == Promise::kForBytes ? spare >= memory_.hbm_bytes(r) : !waits;
    if (!requests_.session_of(r).responsive || (needless && !supply_.in_retiring_slab(r))) {
      spare -= memory_.hbm_bytes(r);
      r.promised = false;
      ++context_.counters.promises_expired;
    }
  });
}

}  // namespace kvd::core
