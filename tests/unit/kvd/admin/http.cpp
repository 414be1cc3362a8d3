#include "tests/unit/kvd/admin/http.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>

namespace kvd::admin {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd tcp_socket() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool send_all(int socket, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const auto n = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

UniqueFd connected(std::uint16_t port) {
  UniqueFd socket = tcp_socket();
  const timeval limit{10, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const sockaddr_in address = loopback(port);
  const auto* peer = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), peer, sizeof address) != 0) socket.reset();
  return socket;
}

std::string http_exchange(std::uint16_t port, const std::string& text) {
  const UniqueFd socket = connected(port);
  if (!socket.valid() || !send_all(socket.get(), text)) return "";
  std::string answer;
  char piece[4096];
  for (ssize_t n = 0; (n = ::recv(socket.get(), piece, sizeof piece, 0)) > 0;) {
    answer.append(piece, static_cast<std::size_t>(n));
  }
  return answer;
}

bool http_send(std::uint16_t port, const std::string& text) {
  const UniqueFd socket = connected(port);
  return socket.valid() && send_all(socket.get(), text);
}

}  // namespace kvd::admin
