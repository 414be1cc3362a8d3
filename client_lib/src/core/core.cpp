#include "client_lib/src/core/core.hpp"

#include <utility>

#include "client_lib/src/core/convert.hpp"

namespace kvd::client {

Core::Core(Introduction introduction, Nanoseconds attach_timeout, std::string model)
    : link(std::move(introduction), attach_timeout),
      regions(link),
      requests(link, std::move(model)),
      caches(link) {}

void Core::close() {
  regions.stop();
  const auto turn = link.enter();
  const SessionPtr session = link.connector().session();
  const bool attached = session && !session->gone();
  if (attached) session->end_waits();
  // Memory that is lent, or may still be in use, stays mapped. The daemon must not be told that it
  // is unmapped, so the session just ends, and the daemon keeps the memory back until this process
  // has ended.
  const bool maps_nothing = link.regions().clear(kLongestDrain);
  if (attached && maps_nothing) session->leave();
}

Result<wire::Welcome> Core::welcome() const {
  KVD_TRY(link.check_fork());
  return link.connector().session()->welcome();
}

int Core::device() const {
  const SessionPtr session = link.connector().session();
  return session->gpu() != nullptr ? session->gpu()->ordinal() : SlabRange::kNoDevice;
}

Status Core::ping(Nanoseconds timeout) {
  return link.on_memory(timeout, [](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(wire::PingCommand{}, until));
    return {};
  });
}

Result<kvd_client::Stats> Core::stats(Nanoseconds timeout) {
  return link.on_memory(timeout, [](const SessionPtr& session, TimePoint until) {
    return answer_of<wire::StatsReplyBody>(
        session->call(wire::StatsCommand{}, until),
        [](const wire::StatsReplyBody& stats) { return to_public(stats); });
  });
}

}  // namespace kvd::client
