#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvd::transport {

/// One connection of ZeroMQ's wire protocol, from its listening end: ZMTP 3.x with the mechanism
/// NULL, a ROUTER towards a DEALER. Only messages of one part and at most wire::kMaxCommandFrame
/// bytes are taken. Anything else shows in its first bytes, before any of it is kept. A state
/// machine over bytes, without I/O. Source: ZMTP 3.1 (https://rfc.zeromq.org/spec/37).
/// Owner: one thread.
class ZmtpPeer {
 public:
  /// Flags and length of a frame.
  static constexpr std::size_t kMaxHead = 9;

  /// What stands at the start of the bytes that came.
  struct Piece {
    std::size_t taken = 0;  ///< done with these; 0: the rest of it is missing
    bool broken = false;    ///< nothing we serve: hang up
    std::optional<std::span<const std::byte>> message;  ///< in the bytes that came
  };

  /// What this end says first, whoever the peer is.
  [[nodiscard]] static std::span<const std::byte> greeting();

  /// The next piece of `bytes`. What is to be sent in return is added to `answer`.
  [[nodiscard]] Piece next(std::span<const std::byte> bytes, std::vector<std::byte>& answer);

  /// The head of an outgoing message of this many bytes, and the length of the head.
  static std::size_t head_of(std::size_t message, std::array<std::byte, kMaxHead>& head);

 private:
  enum class State : std::uint8_t { kGreeting, kHandshake, kMessages };

  [[nodiscard]] Piece take_greeting(std::span<const std::byte> bytes,
                                    std::vector<std::byte>& answer);
  [[nodiscard]] Piece take_command(std::span<const std::byte> body, std::size_t taken,
                                   std::vector<std::byte>& answer);

  State state_ = State::kGreeting;
};

}  // namespace kvd::transport
