#include "tests/gpu/peers/peer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <sstream>

#include "tests/gpu/lab.hpp"
#include "tests/integration/cuda/channel.hpp"

namespace kvd::gpu {

Result<double> Reply::number(std::size_t at) const {
  double value = 0;
  if (at < words.size()) {
    const char* end = words[at].data() + words[at].size();
    const auto [stop, error] = std::from_chars(words[at].data(), end, value);
    if (error == std::errc() && stop == end) return value;
  }
  return make_error(ErrorCode::kInternal, "a peer answered something else than numbers");
}

Result<Peer> Peer::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return make_error(ErrorCode::kUnavailable, "no socket pair: raise the limit of descriptors");
  }
  Peer peer;
  peer.socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  const std::string number = std::to_string(theirs.get());
  const char* arguments[] = {"kvd-gpu-report", "--peer", number.c_str(), nullptr};
  peer.pid_ = ::fork();
  if (peer.pid_ < 0) return make_error(ErrorCode::kUnavailable, "cannot fork");
  if (peer.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::fcntl(theirs.get(), F_SETFD, 0);
    ::execv(self_program(), const_cast<char**>(arguments));
    ::_exit(127);
  }
  peer.pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid_, 0)));
  return peer;
}

Peer::Peer(Peer&& other) noexcept
    : socket_(std::move(other.socket_)),
      pidfd_(std::move(other.pidfd_)),
      pid_(std::exchange(other.pid_, -1)) {}

Status Peer::tell(const std::string& command, const std::vector<int>& fds) const {
  if (tests::send_message(socket_.get(), command, fds)) return {};
  return make_error(ErrorCode::kPeerGone, "a peer ended before \"" + command + "\"");
}

Result<Reply> Peer::reply() const {
  tests::Message message = tests::receive_message(socket_.get());
  if (message.text.empty()) {
    return make_error(ErrorCode::kPeerGone, "a peer ended, or said nothing for 30 s");
  }
  Reply reply;
  reply.fds = std::move(message.fds);
  std::istringstream words(message.text);
  std::string first;
  words >> first;
  if (first != "ok") return make_error(ErrorCode::kDeviceError, "a peer: " + message.text);
  for (std::string word; words >> word;) reply.words.push_back(word);
  return reply;
}

Result<Reply> Peer::ask(const std::string& command, const std::vector<int>& fds) const {
  KVD_TRY(tell(command, fds));
  return reply();
}

bool Peer::answered(double within_s) const {
  pollfd ready{socket_.get(), POLLIN, 0};
  return ::poll(&ready, 1, static_cast<int>(within_s * 1000)) != 0;
}

void Peer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  pollfd gone{pidfd_.get(), POLLIN, 0};
  ::poll(&gone, 1, 10'000);
  ::waitpid(std::exchange(pid_, -1), nullptr, WNOHANG);
}

}  // namespace kvd::gpu
