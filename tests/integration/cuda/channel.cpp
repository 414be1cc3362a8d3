#include "tests/integration/cuda/channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace kvd::tests {
namespace {

constexpr std::size_t kMostFds = 8;
constexpr int kPatienceMs = 30'000;

struct alignas(cmsghdr) Control {
  std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> bytes{};
};

}  // namespace

bool send_message(int socket, const std::string& text, const std::vector<int>& fds) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  Control control;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    const std::size_t bytes = fds.size() * sizeof(int);
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(item), fds.data(), bytes);
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

Message receive_message(int socket) {
  Message message;
  pollfd ready{socket, POLLIN, 0};
  if (::poll(&ready, 1, kPatienceMs) != 1) return message;
  std::array<char, 256> text{};
  iovec part{text.data(), text.size()};
  Control control;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes.data();
  header.msg_controllen = control.bytes.size();
  const ssize_t length = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (length <= 0) return message;
  message.text.assign(text.data(), static_cast<std::size_t>(length));
  const cmsghdr* item = CMSG_FIRSTHDR(&header);
  if (item == nullptr || item->cmsg_type != SCM_RIGHTS) return message;
  std::array<int, kMostFds> fds{};
  const std::size_t bytes = std::min(item->cmsg_len - CMSG_LEN(0), sizeof fds);
  std::memcpy(fds.data(), CMSG_DATA(item), bytes);
  for (std::size_t i = 0; i < bytes / sizeof(int); ++i) message.fds.emplace_back(fds[i]);
  return message;
}

}  // namespace kvd::tests
