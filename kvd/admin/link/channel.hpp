#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/admin/link/messages.hpp"

namespace kvd::admin::link {

using ByteVector = std::vector<std::byte>;

struct Message {
  Type type{};
  ByteVector body;
};

/// One end of the socket pair between kvd and kvd-admin.
/// Owner:  one thread.
/// Errors: PeerGone when the other end is closed, DeadlineExceeded (also where it has to stop),
///         InvalidArgument for what is no message. After any of them the channel is of no use.
class Channel {
 public:
  /// `stop` is a descriptor: once it is readable the call waits for nothing any more. -1: none.
  explicit Channel(UniqueFd socket, int stop = -1) : socket_(std::move(socket)), stop_(stop) {}

  /// Makes the two ends. Where the kernel can refuse descriptors none go over them, as closing a
  /// stranger's descriptor may take long. Errors: Unavailable when out of descriptors.
  static Result<std::pair<UniqueFd, UniqueFd>> pair();

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] Status send(Type type, std::span<const std::byte> body, Nanoseconds timeout);
  /// `most`: the longest body that is taken, in bytes.
  [[nodiscard]] Result<Message> receive(Bytes most, Nanoseconds timeout);

 private:
  Status wait(short events, TimePoint deadline) const;
  Status read(std::span<std::byte> into, TimePoint deadline);
  Status write(std::span<const std::byte> bytes, TimePoint deadline);

  UniqueFd socket_;
  int stop_;
};

template <class T>
void append(ByteVector& out, const T& pod) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span(&pod, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Takes a T off the front of `bytes`; none where they are too short.
template <class T>
std::optional<T> take(std::span<const std::byte>& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T out;
  std::memcpy(&out, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return out;
}

}  // namespace kvd::admin::link
