#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::gpu {

/// What a peer answered: the words after "ok", and descriptors.
struct Reply {
  std::vector<std::string> words;
  std::vector<UniqueFd> fds;

  /// Errors: Internal for a word that is missing or no number.
  [[nodiscard]] Result<double> number(std::size_t at) const;
};

/// This program again, in a process of its own that obeys commands (peer_commands.cpp) over a
/// socket; CUDA starts there with the first command that needs it. Killed with this object, and
/// with the process that made it.
/// Errors: of the peer's own command; PeerGone when it ended or said nothing for 30 s.
class Peer {
 public:
  [[nodiscard]] static Result<Peer> start();
  Peer(Peer&& other) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer() { kill(); }

  Status tell(const std::string& command, const std::vector<int>& fds = {}) const;
  [[nodiscard]] Result<Reply> reply() const;
  [[nodiscard]] Result<Reply> ask(const std::string& command,
                                  const std::vector<int>& fds = {}) const;
  /// Whether reply() has something to read within that time.
  [[nodiscard]] bool answered(double within_s = 0) const;
  /// SIGKILL, and dead by its pidfd when this returns (10 s at most).
  void kill();

 private:
  Peer() = default;
  UniqueFd socket_;
  UniqueFd pidfd_;
  pid_t pid_ = -1;
};

/// The peer's end: obeys until the other end closes. The process's exit status.
int run_peer(int socket);

}  // namespace kvd::gpu
