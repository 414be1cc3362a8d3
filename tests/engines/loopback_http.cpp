#include "tests/engines/loopback_http.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::test {
namespace {

UniqueFd connect_to(std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (connect(socket.get(), generic, sizeof address) != 0) socket.reset();
  return socket;
}

/// Sends the request and reads to the end of the connection.
std::string ask(std::uint16_t port, const std::string& request) {
  const UniqueFd socket = connect_to(port);
  if (!socket.valid()) return {};
  if (write(socket.get(), request.data(), request.size()) < 0) return {};
  std::string answer;
  std::array<char, 4096> bytes;
  while (true) {
    const ssize_t count = read(socket.get(), bytes.data(), bytes.size());
    if (count <= 0) break;
    answer.append(bytes.data(), static_cast<std::size_t>(count));
  }
  const auto body = answer.find("\r\n\r\n");
  const bool ok = answer.find(" 200 ") < answer.find("\r\n");
  return ok && body != std::string::npos ? answer.substr(body + 4) : std::string();
}

constexpr const char* kHeaders = " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n";

}  // namespace

std::string http_get(std::uint16_t port, const std::string& path) {
  return ask(port, "GET " + path + kHeaders + "\r\n");
}

std::string http_post(std::uint16_t port, const std::string& path, const std::string& body) {
  return ask(port, "POST " + path + kHeaders +
                       "Content-Type: application/json\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\n\r\n" + body);
}

}  // namespace kvd::test
