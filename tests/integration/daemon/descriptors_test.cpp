// A daemon without any free file descriptor neither spins nor ends engines for it, and goes on when
// one is free again. The daemon runs in this process, so the test takes its descriptors away.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>

#include "ipc/transport/unix_socket.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace {

/// Watches of listening attach sockets that are refused next, as by a kernel without memory.
std::atomic<int> watches_refused = 0;

bool is_attach_listener(int fd) {
  const auto option = [fd](int name) {
    int value = 0;
    socklen_t size = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : 0;
  };
  return option(SO_ACCEPTCONN) == 1 && option(SO_TYPE) == SOCK_SEQPACKET;
}

}  // namespace

extern "C" int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  static const auto kernels =
      reinterpret_cast<decltype(&epoll_ctl)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  if (watches_refused > 0 && what == EPOLL_CTL_ADD && is_attach_listener(fd)) {
    --watches_refused;
    errno = ENOMEM;
    return -1;
  }
  return kernels(epoll, what, fd, event);
}

namespace kvd::test {
namespace {

using testing::HasSubstr;

/// Takes every descriptor this process may still open, until it is destroyed.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 1024);
    ::setrlimit(RLIMIT_NOFILE, &low);
    for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0;
         fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
      taken_.emplace_back(fd);
    }
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

class WithoutDescriptors : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "UBSan opens a pipe to look at an object's type, and takes none for a fault";
#endif
  }
};

TEST_F(WithoutDescriptors, AttachingWaitsForOneWithoutASpinningDaemon) {
  DaemonThread daemon;
  const auto address = transport::unix_address(daemon.endpoint());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  std::optional<NoDescriptors> none(std::in_place);
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
            0);
  ASSERT_TRUE(daemon.wait_until([](const auto& s) { return s.counters.attach_paused >= 3; }));
  const std::uint64_t tries = daemon.status().counters.attach_paused;
  const auto ticks = (std::chrono::steady_clock::now() - began) / std::chrono::milliseconds(50);
  EXPECT_LE(tries, static_cast<std::uint64_t>(ticks) + 2) << "one try a tick at most";
  none.reset();

  transport::AttachConnection engine(std::move(socket));
  wire::Hello hello;
  ASSERT_TRUE(engine.send(wire::seal(hello)).ok());
  const auto frame = engine.receive(kPatience);
  ASSERT_TRUE(frame.ok()) << frame.error().message;
  const auto message = wire::decode_attach(frame->bytes());
  EXPECT_TRUE(message.ok() && std::holds_alternative<wire::Welcome>(*message));
}

TEST_F(WithoutDescriptors, PlainConnectsToTheCommandSocketEndNobody) {
  DaemonThread daemon;
  auto engine = RawEngine::attach(daemon.endpoint(), "engine");
  ASSERT_TRUE(engine.ok() && engine->call(wire::PingCommand{}).ok());
  const auto address = transport::unix_address(daemon.command_socket());
  constexpr std::size_t kStrangers = 32;
  std::vector<UniqueFd> strangers;
  strangers.reserve(kStrangers);
  for (std::size_t i = 0; i < kStrangers; ++i) {
    strangers.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  const NoDescriptors none;
  for (const UniqueFd& stranger : strangers) {
    ASSERT_EQ(
        ::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
        0);
  }
  EXPECT_TRUE(engine->call(wire::PingCommand{}).ok());
}

constexpr wire::AllocateBody kTwoSlabs{1, 0, 0, 4 << 20};

/// Asks for a region of two slabs while no descriptor is free. Calls `meanwhile` once the daemon
/// has tried, and returns the answer.
Status ask_without_descriptors(
    DaemonThread& daemon, RawEngine& engine,
    const std::function<void(std::optional<NoDescriptors>&)>& meanwhile) {
  EXPECT_TRUE(engine.call(wire::PingCommand{}).ok()) << "its connection stands";
  std::optional<NoDescriptors> none(std::in_place);
  auto answer = std::async(std::launch::async, [&] { return engine.call(kTwoSlabs); });
  EXPECT_TRUE(daemon.wait_until([](const auto& s) { return s.tiers[0].region > Bytes(0); }));
  meanwhile(none);
  return answer.get();
}

TEST_F(WithoutDescriptors, ARegionIsGrantedOnceItsSlabsCanBeSent) {
  DaemonThread daemon;
  auto engine = RawEngine::attach(daemon.endpoint(), "innocent");
  ASSERT_TRUE(engine.ok());
  const Status granted = ask_without_descriptors(daemon, *engine, [](auto& none) { none.reset(); });
  ASSERT_TRUE(granted.ok()) << granted.error().message;
  for (std::uint32_t position = 0; position < 2; ++position) {
    const auto frame = engine->connection().receive(kPatience);
    ASSERT_TRUE(frame.ok()) << position;
    const auto message = wire::decode_attach(frame->bytes());
    const auto* slab = message.ok() ? std::get_if<wire::MapSlab>(&*message) : nullptr;
    ASSERT_NE(slab, nullptr);
    EXPECT_EQ(slab->position, position);
    EXPECT_EQ(frame->fds.size(), 1u);
  }
}

TEST_F(WithoutDescriptors, ARegionWhoseSlabsCannotBeSentEndsAndTheSessionGoesOn) {
  DaemonThread daemon;
  auto engine = RawEngine::attach(daemon.endpoint(), "innocent");
  ASSERT_TRUE(engine.ok());
  const Status refused = ask_without_descriptors(daemon, *engine, [&](auto&) {
    daemon.clock().advance(std::chrono::seconds(3));
    EXPECT_TRUE(daemon.wait_until([](const auto& s) { return s.tiers[0].region == Bytes(0); }));
  });
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("RLIMIT_NOFILE"));
  EXPECT_TRUE(daemon.wait_all_free());
  EXPECT_TRUE(engine->call(kTwoSlabs).ok()) << "the next one finds descriptors again";
}

TEST(Descriptors, AListenerThatCouldNotBeWatchedAnewIsTriedAgain) {
  DaemonThread daemon;
  watches_refused = 1;
  std::filesystem::remove(daemon.endpoint());
  ASSERT_TRUE(poll_until([] { return watches_refused == 0; })) << "kvd looks once a second";
  EXPECT_TRUE(poll_until([&] {
    wire::Hello hello;
    const auto address = transport::unix_address(daemon.endpoint());
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
      return false;
    transport::AttachConnection engine(std::move(socket));
    return engine.send(wire::seal(hello)).ok() && engine.receive(std::chrono::seconds(2)).ok();
  }));
}

TEST(Descriptors, OneProcessDoesNotFillTheTableOfEndedSessions) {
  DaemonThread daemon;
  Status refused;
  int attached = 0;
  for (; attached < 1000 && refused.ok(); ++attached) {
    auto engine = RawEngine::attach(daemon.endpoint(), "careless");  // leaves without goodbye
    if (!engine.ok()) refused = engine.error();
  }
  EXPECT_EQ(refused.code(), ErrorCode::kQuotaExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("restart the process"));
}

}  // namespace
}  // namespace kvd::test
