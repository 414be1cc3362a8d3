#pragma once

#include <optional>

#include "ipc/vocabulary/result.hpp"
#include "ipc/wire/codec.hpp"
#include "ipc/wire/messages.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"

/// Between the messages of the wire and the events and effects of the Controller. Pure.
namespace kvd::daemon {

/// The shape with its defaults filled in, slots of about 256 KiB where it names no size; none for
/// layers = 0 (level 1). Errors: InvalidArgument for a shape that is out of range or makes a
/// slot larger than a slab.
[[nodiscard]] Result<std::optional<core::ModelClass>> complete_shape(const wire::ModelShape& shape,
                                                                     Bytes slab_bytes);

[[nodiscard]] wire::ModelShape to_wire(const core::ModelClass& shape);

/// The body of a decoded command that arrived now. Errors: InvalidArgument for an unknown kind or
/// direction.
[[nodiscard]] Result<decltype(core::Command::body)> to_core(const wire::CommandBody& body,
                                                            TimePoint now);

/// What a reply needs besides its body.
struct ReplyHead {
  BootId boot;
  Generation generation;
  std::uint64_t sequence = 0;
  std::uint16_t version = wire::kVersionMax;
  wire::MessageType command = wire::MessageType::kReserved;
};

/// Encodes the answer into `out`.
Status encode(const ReplyHead& head, const decltype(core::Reply::body)& body,
              wire::FrameBuffer& out);

}  // namespace kvd::daemon
