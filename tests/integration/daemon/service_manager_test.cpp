// What kvd tells systemd, and any other service manager that speaks its protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>

#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using testing::StartsWith;

/// The manager's end.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval patience{std::chrono::duration_cast<std::chrono::seconds>(kPatience).count(), 0};
    EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  }
  [[nodiscard]] std::string next() const {
    char text[512];
    const ssize_t size = ::recv(fd_.get(), text, sizeof text, 0);
    return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
  }

 private:
  UniqueFd fd_;
};

TEST(ServiceManager, IsToldWhenEnginesMayAttachAndThatKvdDrains) {
  const RuntimeFolder folder;
  const NotifySocket manager(folder.file("notify"));
  KvdSettings settings;
  settings.environment = {"NOTIFY_SOCKET=" + folder.file("notify")};
  KvdProcess kvd(folder, settings);
  EXPECT_EQ(manager.next(), "READY=1\nSTATUS=engines attach at " + kvd.endpoint()) << kvd.log();
  kvd.signal(SIGTERM);
  EXPECT_THAT(manager.next(), StartsWith("STOPPING=1\n")) << kvd.log();
  EXPECT_EQ(kvd.wait(), 0) << kvd.log();
}

TEST(ServiceManager, MayBeGone) {
  const RuntimeFolder folder;
  KvdSettings settings;
  settings.environment = {"NOTIFY_SOCKET=" + folder.file("nobody")};
  KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0) << kvd.log();
}

}  // namespace
}  // namespace kvd::test
