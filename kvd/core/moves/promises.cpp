#include "kvd/core/moves/promises.hpp"

#include <algorithm>

namespace kvd::core {

namespace {

bool waits_for_memory(const Request& request) {
  return request.order.claim != 0 || request.starved;
}

}  // namespace

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

void Promises::expire(Share share) {
  bool waits = false, promised = false;
  requests_.each_inside_on(share, [&](const Request& r) {
    waits = waits || waits_for_memory(r);
    promised = promised || r.promised;
  });
  if (!promised) return;
  // A promise ends with its need: memory that is free or already on its way out may do by now, or
  // nobody waits any more. A promise made for a region ends with the region's wait.
  Bytes spare = supply_.of(share);
  requests_.each_inside_on(share, [&](Request& r) {
    if (!r.promised) return;
    const Bytes gives = memory_.hbm_bytes(r, share.device);
    const bool needless = *r.promised == Promise::kForBytes ? spare >= gives : !waits;
    const bool ends = needless && !supply_.in_retiring_slab(r) && !needed_elsewhere(r, share);
    if (!requests_.session_of(r).life.responsive || ends) {
      spare -= gives;
      r.promised.reset();
      ++context_.counters.promises_expired;
    }
  });
}

// A victim with several devices may have been promised for another of them.
bool Promises::needed_elsewhere(const Request& request, Share share) {
  const std::vector<DeviceId>& devices = requests_.session_of(request).devices().all();
  return std::any_of(devices.begin(), devices.end(), [&](DeviceId device) {
    if (device == share.device) return false;
    const Share other{share.domain, device};
    if (*request.promised == Promise::kForBytes) {
      return supply_.of(other) < memory_.hbm_bytes(request, device);
    }
    bool waits = false;
    requests_.each_inside_on(other,
                             [&](const Request& r) { waits = waits || waits_for_memory(r); });
    return waits;
  });
}

}  // namespace kvd::core
