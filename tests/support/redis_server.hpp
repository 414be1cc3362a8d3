#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/engines/child_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {

/// The folder that deploy/ci/redis.sh fetched; empty: none.
[[nodiscard]] inline std::string redis_folder() {
  const char* folder = std::getenv("KVDTEST_REDIS");
  return folder == nullptr ? "" : folder;
}

#define KVD_NEEDS_REDIS()                                                          \
  do {                                                                             \
    if (kvd::test::redis_folder().empty())                                         \
      GTEST_SKIP() << "Redis is not fetched: sh deploy/ci/redis.sh --fetch, then " \
                      "configure again";                                           \
  } while (false)

/// A connected socket with a listener on a Unix socket; invalid: nobody listens there.
[[nodiscard]] inline UniqueFd dial_unix(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), path.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fd.reset();
  return fd;
}

/// A real redis-server on a Unix socket of the test's. It is killed with the test.
class RedisServer {
 public:
  explicit RedisServer(std::string socket, std::vector<std::string> more = {})
      : socket_(std::move(socket)), more_(std::move(more)) {
    start();
  }
  void start() {
    ::unlink(socket_.c_str());
    const std::string folder = redis_folder() + "/usr/";
    ChildCommand command{
        {folder + "bin/redis-server", "--port", "0", "--unixsocket", socket_, "--save", "",
         "--appendonly", "no"},
        {"LD_LIBRARY_PATH=" + folder + "lib/x86_64-linux-gnu:" + folder + "lib/aarch64-linux-gnu"}};
    command.arguments.insert(command.arguments.end(), more_.begin(), more_.end());
    process_.reset();
    process_.emplace(command);
    KVD_CHECK(poll_until([&] { return dial_unix(socket_).valid(); }), "redis-server does not come");
  }
  [[nodiscard]] std::string address() const { return "unix:" + socket_; }
  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] ChildProcess& process() { return *process_; }
  void kill() {
    process_->signal(9);
    (void)process_->wait();
  }

  /// Sends a command and returns the part of the reply that comes at once.
  std::string say(const std::vector<std::string>& words) const {
    std::string out = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
      out += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    const UniqueFd fd = dial_unix(socket_);
    KVD_CHECK(::write(fd.get(), out.data(), out.size()) == std::ssize(out), "redis does not read");
    std::string reply(1 << 20, '\0');
    const ssize_t got = ::read(fd.get(), reply.data(), reply.size());
    reply.resize(static_cast<std::size_t>(got < 0 ? 0 : got));
    return reply;
  }
  /// The names of kvd's keys.
  [[nodiscard]] std::vector<std::string> keys() const {
    const std::string reply = say({"KEYS", "kvd1:*"});
    std::vector<std::string> names;
    for (std::size_t at = reply.find("kvd1:"); at != std::string::npos;
         at = reply.find("kvd1:", at + 1)) {
      names.push_back(reply.substr(at, reply.find('\r', at) - at));
    }
    return names;
  }

 private:
  const std::string socket_;
  const std::vector<std::string> more_;
  std::optional<ChildProcess> process_;
};

}  // namespace kvd::test
