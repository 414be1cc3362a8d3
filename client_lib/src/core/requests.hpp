#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "client_lib/src/core/block_names.hpp"
#include "client_lib/src/core/daemon_link.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// The calls of level 3: requests that the daemon schedules, their steps and their blocks.
/// Owner:   thread-safe, by the link's gate; waits run beside other calls
class Requests {
 public:
  /// `model`: as kvd_client::Options::model.
  Requests(DaemonLink& link, std::string model) : link_(link), model_(std::move(model)) {}

  Status submit(const kvd_client::Request& request, Nanoseconds timeout);
  Status append_tokens(RequestId request, std::span<const std::uint32_t> tokens,
                       Nanoseconds timeout);
  Status name_blocks(RequestId request, std::uint32_t first,
                     std::span<const kvd_client::Digest> digests, Nanoseconds timeout);
  Result<kvd_client::StepResult> step(const wire::StepCommand& command, Nanoseconds timeout);
  Status wait_for_ticket(Ticket ticket, Nanoseconds timeout);
  Status wait_for_layer(std::uint64_t iteration, std::uint32_t group, Nanoseconds timeout);
  Status layer_done(std::uint64_t iteration, std::uint32_t group);
  Status wait_for_room(Nanoseconds timeout);
  Status wait_on_stream(Ticket ticket, void* stream);
  Status wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  Status layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  /// Unavailable once waits were ended without their copies.
  Status confirm();
  Result<std::byte*> block_address(std::uint32_t row, std::uint32_t group, std::uint32_t block);
  Status block_addresses(std::uint32_t row, std::uint32_t group, std::span<std::byte*> addresses);
  /// finish and abort.
  Status end(const wire::CommandBody& body, RequestId request, Nanoseconds timeout);
  Status rotate(const wire::RotateBody& body, Nanoseconds timeout);
  Result<std::uint32_t> allocate_blocks(RequestId request, Tokens tokens, Nanoseconds timeout);
  Result<kvd_client::Placement> place(std::span<const std::uint64_t> requests, Nanoseconds timeout);
  Status set_gaps(std::span<const wire::RequestGap> gaps, Nanoseconds timeout);
  /// Never attaches: its caller is in the middle of a step.
  Result<kvd_client::ScheduleResult> schedule(const wire::ScheduleCommand& command,
                                              Nanoseconds timeout);

 private:
  Status command(const wire::CommandBody& body, Nanoseconds timeout);
  /// Tells the daemon, in as many commands as it takes.
  Status tell(Session& session, std::span<const wire::BlockName> names, TimePoint deadline) const;

  DaemonLink& link_;
  const std::string model_;
  BlockNames names_;  ///< guarded by the link's gate
};

}  // namespace kvd::client
