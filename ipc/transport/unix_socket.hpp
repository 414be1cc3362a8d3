#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/closer.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

/// What the attach socket and the command socket share.
namespace kvd::transport {

/// SCM_MAX_FD: a sender cannot send more at a time. When the receiver has room for all of them, the
/// kernel never has to close left-over descriptors in the receiving thread.
constexpr std::size_t kMostFdsSent = 253;

/// Errors: InvalidArgument for an empty path or one over 107 bytes.
[[nodiscard]] Result<sockaddr_un> unix_address(const std::string& path);

/// Identifies the process that connected, as the kernel says. Errors: PeerGone.
[[nodiscard]] Result<ucred> peer_credentials(int socket);

/// The descriptors that came with a message.
[[nodiscard]] std::vector<UniqueFd> take_fds(msghdr& message);

/// The listening end of a Unix socket, which removes its file at its end. Nobody can send
/// descriptors to accepted connections (SO_PASSRIGHTS, Linux 6.16); on older kernels closer() takes
/// them.
/// Owner: one thread.
class UnixListener {
 public:
  /// Listens at `path`, `type` SOCK_SEQPACKET or SOCK_STREAM, non-blocking, CLOEXEC, with mode 0660
  /// whatever the umask. A file nobody answers at is replaced; of several daemons that start at
  /// once one gets the path. Leaves an empty file `path`.lock beside it.
  /// Errors: InvalidArgument for a path too long, Unavailable otherwise.
  static Result<UnixListener> create(const std::string& path, int type);
  /// Whether create() could listen there now; its errors where it could not. Removes a file that
  /// nobody answers at, as create() does, and takes nothing.
  static Status check(const std::string& path, int type);
  /// Whether a process listens there. It sees a connection that ends at once.
  [[nodiscard]] static bool is_taken(const std::string& path, int type);
  /// Removes the file if this process listens at it. For a process that ends without running
  /// destructors.
  static void remove_own(const std::string& path, int type);
  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&&) = delete;
  /// Removes the file unless another daemon's has taken its place.
  ~UnixListener();

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Whether clients that connect at the path come here: its file may be removed, or replaced.
  [[nodiscard]] bool is_found() const;
  /// Listens at the path anew where clients no longer find it. Returns whether it had to.
  /// Connections that nobody has accepted yet are lost. Whoever watched fd() has to watch the new
  /// one, as the old one is closed. Errors: as create(), and nothing has changed.
  [[nodiscard]] Result<bool> restore();
  /// Takes the descriptors that a peer could send; null: none can.
  [[nodiscard]] const std::shared_ptr<Closer>& closer() const { return closer_; }

  /// A waiting connection, or none. Errors: Unavailable when only the reserve of descriptors is
  /// left, which is for those that are connected: try again later.
  [[nodiscard]] Result<std::optional<UniqueFd>> accept();

 private:
  UnixListener(UniqueFd socket, std::string path, int type)
      : socket_(std::move(socket)), path_(std::move(path)), type_(type) {}
  Status bind_and_listen(const sockaddr_un& address);

  /// The inode's number alone may be given to the next file.
  struct FileId {
    std::uint64_t device = 0, inode = 0;
    std::int64_t born_s = 0;  ///< 0: the file system does not say
    std::uint32_t born_ns = 0;
    bool operator==(const FileId&) const = default;
  };
  [[nodiscard]] static std::optional<FileId> file_at(const std::string& path);

  UniqueFd socket_;
  std::string path_;
  int type_;
  std::optional<FileId> file_;  ///< none: it is no longer this one's
  std::shared_ptr<Closer> closer_;
};

/// "what: strerror(errno)" with a code.
[[nodiscard]] inline Error errno_error(ErrorCode code, std::string_view what) {
  return make_error(code, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace kvd::transport
