#include "kvd/admin/link/drain.hpp"

#include <algorithm>
#include <string>

#include "kvd/admin/link/tags.hpp"

namespace kvd::admin::link {
namespace {

void add(TagSum& sum, std::int64_t who, const std::optional<core::DrainStatus>& drain) {
  if (!drain) return;
  sum.add(who);
  sum.add(drain->since.count());
  sum.add(drain->deadline ? drain->deadline->count() : -1);
}

}  // namespace

std::uint64_t tag_of_drain(const core::ControllerStatus& status) {
  TagSum sum;
  add(sum, 0, status.drain);
  sum.add(status.to_remote ? 1 : 0);
  for (const core::EngineStatus& engine : status.engines)
    add(sum, engine.id.value, engine.service.drain);
  return sum.value();
}

Result<std::vector<core::Drain>> drains_of(const core::ControllerStatus& status,
                                           const Change& change,
                                           std::span<const Assignment> assignments) {
  KVD_TRY(check_tags(change, tag_of_drain(status)));
  std::vector<core::Drain> drains;
  for (const Assignment& assignment : assignments) {
    const auto key = static_cast<DrainKey>(assignment.key);
    if (key != DrainKey::kDrain && key != DrainKey::kCancel && key != DrainKey::kDrainToRemote) {
      return make_error(ErrorCode::kInvalidArgument, ": no such key");
    }
    core::Drain drain;
    if (assignment.number >= 0 && assignment.number <= UINT32_MAX) {  // not so of NaN
      drain.engine = EngineId(static_cast<std::uint32_t>(assignment.number));
    }
    drain.cancel = key == DrainKey::kCancel;
    drain.to_remote = key == DrainKey::kDrainToRemote;
    if (drain.to_remote && drain.engine) {
      return make_error(ErrorCode::kInvalidArgument, "engines: only the node drains to_remote");
    }
    if (drain.to_remote && status.remote_servers.empty()) {
      return make_error(ErrorCode::kNotFound,
                        "node: there is no remote server; name one in remote.servers");
    }
    if (!drain.cancel && assignment.whole != kAutomatic) {
      drain.patience = Nanoseconds(std::max<std::int64_t>(0, assignment.whole));
    }
    const bool there = std::any_of(status.engines.begin(), status.engines.end(),
                                   [&](const auto& engine) { return engine.id == drain.engine; });
    if (drain.engine && !there) {
      return make_error(
          ErrorCode::kNotFound,
          "engines: no engine " + std::to_string(drain.engine.value) + " is attached");
    }
    drains.push_back(drain);
  }
  return drains;
}

}  // namespace kvd::admin::link
