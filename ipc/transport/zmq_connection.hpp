#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ipc/transport/zmtp.hpp"
#include "ipc/vocabulary/closer.hpp"
#include "ipc/vocabulary/fair_shares.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::transport {

/// One client of the command socket: its bytes in and out, never waiting for either.
/// Owner: one thread.
class ZmqConnection {
 public:
  /// A user, or a group that counts as one.
  struct User {
    bool group = false;
    std::uint32_t number = 0;
    friend auto operator<=>(const User&, const User&) = default;
  };
  struct Owner {
    uid_t uid = 0;
    pid_t pid = 0;
    User user{};  ///< the user whose share of the kept bytes this connection uses
  };

  using Kept = FairShares<User>;  ///< in bytes
  struct Bounds {
    std::size_t unread_answers = 0;  ///< answers that may wait for the peer
    Kept& kept;                      ///< outlives the connection
  };

  ZmqConnection(UniqueFd socket, Owner owner, const Bounds& bounds, std::shared_ptr<Closer> closer);
  ~ZmqConnection();
  ZmqConnection(const ZmqConnection&) = delete;
  ZmqConnection& operator=(const ZmqConnection&) = delete;

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] const Owner& owner() const { return owner_; }

  /// One bounded piece of work.
  enum class Work : std::uint8_t {
    kMessage,  ///< message() is one
    kSome,     ///< there may be more to do
    kNone,     ///< nothing is left until more comes
    kBroken,   ///< the peer said what nobody serves
    kGone,     ///< it hung up
  };
  [[nodiscard]] Work advance();
  /// Valid until the next advance().
  [[nodiscard]] std::span<const std::byte> message() const { return message_; }

  /// Says hello. Errors: PeerGone.
  Status greet();
  /// Errors: PeerGone when the peer left, or does not read its answers.
  Status send(std::span<const std::byte> message);
  /// Goes on sending what waits. Errors: PeerGone.
  Status flush();
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty(); }

  /// Bytes that came and were not looked at.
  [[nodiscard]] bool has_unread() const { return begin_ != end_; }

  bool trusted = false;       ///< belongs to a session
  bool queued = false;        ///< for its turn
  bool kept = false;          ///< message() waits to be released: no advance() before
  bool muted = false;         ///< more has come meanwhile: not watched for that
  std::uint32_t watched = 0;  ///< for these events

 private:
  [[nodiscard]] Work read_more();
  /// False: the user has its share of buffers.
  [[nodiscard]] bool make_room();
  [[nodiscard]] bool count(std::size_t bytes);
  void discount(std::size_t bytes) { counted(-static_cast<std::int64_t>(bytes)); }
  void counted(std::int64_t change);
  Status send_raw(std::span<const std::byte> head, std::span<const std::byte> body);

  UniqueFd socket_;
  Owner owner_;
  Bounds bounds_;
  std::int64_t counted_ = 0;  ///< in bounds_.kept
  std::shared_ptr<Closer> closer_;
  ZmtpPeer protocol_;
  std::vector<std::byte> in_;  ///< what came stands in [begin_, end_)
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::span<const std::byte> message_;
  std::vector<std::byte> answer_;
  std::deque<std::vector<std::byte>> unsent_;
  std::size_t sent_of_first_ = 0;
};

}  // namespace kvd::transport
