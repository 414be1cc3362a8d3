#pragma once

#include <sys/eventfd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ipc/shm/client_page.hpp"
#include "ipc/transport/attach.hpp"
#include "ipc/transport/command_client.hpp"
#include "ipc/transport/ring.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::test {

/// An engine without the client library: it can say anything, at any time, in any order, and never
/// reads what it does not ask for.
/// Owner: one thread.
class RawEngine {
 public:
  /// A session; `shape.layers` 0: level 1. Errors: the daemon's refusal.
  static Result<RawEngine> attach(const std::string& endpoint, const std::string& name,
                                  const wire::ModelShape& shape = {},
                                  wire::TransportKind transport = wire::TransportKind::kZmq);

  [[nodiscard]] const wire::Welcome& welcome() const { return welcome_; }
  [[nodiscard]] transport::AttachConnection& connection() { return connection_; }
  [[nodiscard]] shm::ClientPage& page() { return page_.page(); }
  /// A second mapping of its end of the ring. Precondition: attached with the ring transport.
  [[nodiscard]] shm::RingPair& ring() { return ring_->pair(); }
  void ring_the_bell() { ::eventfd_write(daemon_bell_.get(), 1); }
  /// Commands go over this from now on.
  void use(std::unique_ptr<transport::CommandClient> commands) { commands_ = std::move(commands); }

  /// Locks the keeper mutex in the calling thread and beats once, as the library's keeper does.
  Status keep();
  void beat() { page().heartbeat.fetch_add(1); }

  /// Sends the command with the next sequence, after `edit`. Returns the code of the answer.
  Status call(const wire::CommandBody& body,
              const std::function<void(wire::CommandHeader&)>& edit = {});
  /// Sends these bytes as they are. The answer carries the same `sequence`.
  Status call_bytes(std::span<const std::byte> frame, std::uint64_t sequence);
  /// The frame of a good command with the next sequence, which is taken.
  std::span<const std::byte> next_frame(const wire::CommandBody& body);
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// The last answer; valid until the next call.
  [[nodiscard]] const wire::Reply& reply() const { return reply_; }

  /// Maps nothing, but says so: acknowledges every slab that has come.
  void acknowledge_slabs();

 private:
  RawEngine(transport::AttachConnection connection, const wire::Welcome& welcome,
            shm::MappedClientPage page)
      : connection_(std::move(connection)), welcome_(welcome), page_(std::move(page)) {}
  Status open_commands(transport::AttachFrame& frame, bool ring);
  [[nodiscard]] wire::Command command_of(const wire::CommandBody& body, std::uint64_t sequence);

  transport::AttachConnection connection_;
  wire::Welcome welcome_;
  shm::MappedClientPage page_;
  std::unique_ptr<transport::CommandClient> commands_;
  std::optional<shm::RingMapping> ring_;
  UniqueFd daemon_bell_;
  wire::FrameBuffer frame_;
  wire::Reply reply_;
  std::uint64_t sequence_ = 0;
};

/// Sends one frame to an attach socket and returns the daemon's refusal; Ok when it was welcome.
struct AttachAnswer {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
};
[[nodiscard]] AttachAnswer say(const std::string& endpoint, std::span<const std::byte> frame);

}  // namespace kvd::test
