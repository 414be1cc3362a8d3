#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/wire/codec.hpp"
#include "kvd_client/result.hpp"
#include "kvd_client/types.hpp"

/// Converts between the public types, which programs compile in, and the types of the wire.
namespace kvd::client {

wire::ModelShape to_wire(const kvd_client::ModelShape& shape);
wire::SubmitBody to_wire(const kvd_client::Request& request);
std::vector<wire::StepReport> to_wire(std::span<const kvd_client::StepReport> reports);
std::vector<wire::ScheduleRequest> to_wire(std::span<const kvd_client::ScheduleRequest> requests);
std::vector<wire::RequestGap> to_wire(std::span<const kvd_client::RequestGap> gaps);
std::vector<wire::SpaceNeed> to_wire(std::span<const kvd_client::Need> needs);
wire::ScheduleBody to_wire(const kvd_client::ScheduleInput& input);
wire::TargetBody target_of(RequestId request);
wire::TargetBody target_of(RegionId region);
wire::TargetBody space_target(RegionId space);
/// The target that stands for this many bytes of regions of an earlier boot.
wire::TargetBody orphaned_target(Bytes bytes);

/// Returns the fingerprint of blocks of requests. `shape`: as the daemon granted it.
std::array<std::uint8_t, 32> fingerprint_of(const std::string& model,
                                            const wire::ModelShape& shape);

kvd_client::SessionInfo to_public(const wire::Welcome& welcome);
kvd_client::StepResult to_public(const wire::StepReply& step);
kvd_client::Placement to_public(const wire::PlaceReply& plan);
kvd_client::Stats to_public(const wire::StatsReplyBody& stats);
kvd_client::CacheChanges to_public(const wire::CacheChangesReply& reply);
kvd_client::ScheduleResult to_public(const wire::ScheduleReply& answer);

kvd_client::Error public_error(const Error& error);
kvd_client::Status public_result(const Status& status);

template <class T>
kvd_client::Result<T> public_result(Result<T> result) {
  if (!result.ok()) return public_error(result.error());
  return std::move(result).value();
}

/// Converts a reply whose body is not the one that belongs to its command.
Error wrong_reply();
Error invalid(std::string message);

/// The body of a reply, translated; the reply's failure; or wrong_reply().
template <class Body, class Translate>
auto answer_of(const Result<wire::Reply>& reply, Translate translate)
    -> Result<std::invoke_result_t<Translate, const Body&>> {
  if (!reply.ok()) return reply.error();
  const auto* body = std::get_if<Body>(&reply->body);
  if (body == nullptr) return wrong_reply();
  return translate(*body);
}

Result<std::uint64_t> value_of(const Result<wire::Reply>& reply);

}  // namespace kvd::client
