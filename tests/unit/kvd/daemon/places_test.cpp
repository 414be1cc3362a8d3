// What kvd looks at before it takes memory. Places that are taken:
// tests/integration/daemon/startup_test.cpp.
#include "kvd/daemon/machine/places.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <csignal>

#include "ipc/transport/unix_socket.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::daemon {
namespace {

UniqueFd listening_at(std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(socket.get(), 1), 0);
  return socket;
}

UniqueFd listening_at(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const auto address = transport::unix_address(path);
  EXPECT_TRUE(address.ok());
  const auto* any = reinterpret_cast<const sockaddr*>(&*address);
  EXPECT_EQ(::bind(socket.get(), any, sizeof *address), 0);
  EXPECT_EQ(::listen(socket.get(), 16), 0);
  return socket;
}

/// A fifth of the patience passes with each look; who listens has ended by the fourth. Its socket's
/// file stays, as that of a process that was killed.
class EndsAtTheFourthLook final : public Clock {
 public:
  explicit EndsAtTheFourthLook(UniqueFd listener) : listener_(std::move(listener)) {}
  [[nodiscard]] TimePoint now() const override {
    if (++looks_ == 4) listener_.reset();
    return kPlacePatience / 5 * looks_;
  }

 private:
  mutable UniqueFd listener_;
  mutable int looks_ = 0;
};

class PlacesTest : public testing::Test {
 protected:
  PlacesTest() {
    config_.runtime_dir = folder_.path();
    config_.attach_socket = folder_.file("attach.sock");
    config_.command_socket = folder_.file("command.sock");
    config_.token_file = folder_.file("admin.token");
    config_.admin_address = "127.0.0.1";
    config_.admin_port = test::free_port();
    config_.metrics_address.clear();
  }

  const test::RuntimeFolder folder_;
  Config config_;
};

// The kvd-admin of a killed kvd may take seconds to end where every CPU is busy.
TEST_F(PlacesTest, APortOfAProcessThatEndsInTimeIsWaitedFor) {
  const EndsAtTheFourthLook clock(listening_at(config_.admin_port));
  const Status found = check_places(config_, clock);
  EXPECT_TRUE(found.ok()) << found.error().message;
}

TEST_F(PlacesTest, APortThatStaysTakenIsRefused) {
  const UniqueFd listener = listening_at(config_.admin_port);
  const EndsAtTheFourthLook clock{UniqueFd()};
  const Status found = check_places(config_, clock);
  EXPECT_EQ(found.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(found.error().message, testing::HasSubstr("admin.port"));
}

TEST_F(PlacesTest, ATokenThatDoesNotFitLeavesNoFile) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  const Status found = check_places(config_, SteadyClock());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(found.error().message, testing::HasSubstr("LimitFSIZE"));
  EXPECT_TRUE(check_places(config_, SteadyClock()).ok());
}

TEST_F(PlacesTest, ASocketOfAProcessThatEndsInTimeIsWaitedFor) {
  for (const auto& [path, type] :
       {std::pair{config_.attach_socket, SOCK_SEQPACKET}, {config_.command_socket, SOCK_STREAM}}) {
    const EndsAtTheFourthLook clock(listening_at(path, type));
    const Status found = check_places(config_, clock);
    EXPECT_TRUE(found.ok()) << found.error().message;
  }
}

TEST_F(PlacesTest, ASocketThatStaysTakenIsRefused) {
  const UniqueFd listener = listening_at(config_.attach_socket, SOCK_SEQPACKET);
  const EndsAtTheFourthLook clock{UniqueFd()};
  const Status found = check_places(config_, clock);
  EXPECT_EQ(found.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(found.error().message, testing::HasSubstr("another process listens at"));
}

}  // namespace
}  // namespace kvd::daemon
