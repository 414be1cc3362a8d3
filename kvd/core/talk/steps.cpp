#include "kvd/core/talk/steps.hpp"

namespace kvd::core {

Result<StepReply> Steps::next(Session& session, const Step& step) {
  KVD_TRY(reports_.check(session, step));
  ++context_.counters.steps;
  ++session.totals.steps;
  const bool running = step.iteration_running != 0;
  const double since_last = to_seconds(context_.now - session.life.last_step);
  const bool computed = Knowledge::was_iteration(session, running);
  session.iterations.overlapped = running;
  session.life.last_step = context_.now;
  session.life.responsive = true;
  session.streaming = needs_.layers_stream(session);
  if (!session.streaming) plans_.forget(session);  // before unpaused requests grow

  // What is over comes first: it may free memory, and nothing is decided about an ended request.
  reports_.take(session, step);
  standstills_.end_given_up(session);
  drains_.end_left(session);
  if (computed) knowledge_.measure_step(session, since_last);
  knowledge_.look_ahead(session);
  streams_.end(session);
  // Earlier decisions come next: promises are kept or given back, regions get their memory, the
  // plan in force moves layers. The decisions below count on what these free.
  for (const DeviceId device : session.devices().all()) {
    promises_.expire({session.info.domain, device});
  }
  promises_.acknowledge(session);
  for (const DeviceId device : session.devices().all()) {
    regions_.yield({session.info.domain, device}, session.id);
  }
  streams_.install(session);
  // Admission comes before rotation, which passes over requests that are held back.
  line_.begin_step(session.info.domain);
  admission_.admit(session);
  rotation_.decide(session);
  line_.end_step();
  // Requests leave before others grow, and again afterwards: growth may have chosen one more to
  // leave.
  swaps_.start_leaving(session);
  claims_.grow_running(session);
  swaps_.start_leaving(session);
  // The next plan is for the batch that results.
  plans_.renew(session);
  // Copies ahead come last, as they can wait: they take DRAM that no leaving request needs.
  copies_.make_ahead(session);
  compactor_.start();
  claims_.serve_everyone();
  return replies_.build(session);
}

}  // namespace kvd::core
