#include "kvd/core/promises.hpp"

namespace kvd::core {

void Promises::preempt(Request& request, EngineId caller, Promise why) {
  if (request.leaving || request.promised) return;
  if (request.key.engine == caller) {
    request.leaving = true;
    return;
  }
  request.promised = why;
  ++context_.counters.promises;
}

void Promises::acknowledge(Session& session) {
  requests_.each_inside_of(session.id, [](Request& r) {
    if (!r.promised) return;
    r.promised.reset();
    r.leaving = r.decodes();
  });
}

void Promises::expire(DomainId domain) {
  bool waits = false, promised = false;
  requests_.each_inside_in(domain, [&](const Request& r) {
    waits = waits || r.order.claim != 0 || r.starved;
    promised = promised || r.promised;
  });
  if (!promised) return;
  // A promise ends with its need: what is free or already on its way out may do by now, or nobody
  // waits any more. One made for a region ends with that.
  Bytes spare = supply_.of(domain);
  requests_.each_inside_in(domain, [&](Request& r) {
    if (!r.promised) return;
    const bool needless =
        *r.promised == Promise::kForBytes ? spare >= memory_.hbm_bytes(r) : !waits;
    if (!requests_.session_of(r).life.responsive || (needless && !supply_.in_retiring_slab(r))) {
      spare -= memory_.hbm_bytes(r);
      r.promised.reset();
      ++context_.counters.promises_expired;
    }
  });
}

}  // namespace kvd::core
