#include "ipc/transport/attach.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/runtime_folder.hpp"

namespace kvd::transport {
namespace {

using namespace std::chrono_literals;

constexpr Nanoseconds kPatience = 10s;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string text(const AttachFrame& frame) {
  return {reinterpret_cast<const char*>(frame.storage.data()), frame.size};
}

std::size_t open_fds() {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(Iterator("/proc/self/fd"), Iterator()));
}

/// Waits for a connection without sleeping past it.
AttachConnection accept_one(AttachListener& listener) {
  pollfd item{listener.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 10'000), 1);
  auto accepted = listener.accept();
  EXPECT_TRUE(accepted.ok() && accepted->has_value());
  return std::move(**accepted);
}

struct Link {
  test::RuntimeFolder scratch;
  AttachListener listener;
  AttachConnection engine;
  AttachConnection daemon;

  Link()
      : listener(std::move(AttachListener::create(scratch.file("a"))).value()),
        engine(std::move(connect_attach(scratch.file("a"), kPatience)).value()),
        daemon(accept_one(listener)) {}
};

TEST(AttachListener, FileHasMode0660WhateverTheUmask) {
  test::RuntimeFolder scratch;
  const mode_t before = umask(0077);
  const auto sut = AttachListener::create(scratch.file("a"));
  umask(before);
  ASSERT_TRUE(sut.ok()) << sut.error().to_string();
  struct stat file {};
  ASSERT_EQ(stat(scratch.file("a").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0660u);
}

TEST(AttachListener, AcceptWithoutAConnectionReturnsNone) {
  test::RuntimeFolder scratch;
  auto sut = AttachListener::create(scratch.file("a"));
  ASSERT_TRUE(sut.ok());
  const auto none = sut->accept();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST(AttachListener, LivingDaemonKeepsItsSocket) {
  test::RuntimeFolder scratch;
  auto first = AttachListener::create(scratch.file("a"));
  ASSERT_TRUE(first.ok());
  const auto second = AttachListener::create(scratch.file("a"));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(second.error().message.find("another process listens"), std::string::npos);
  EXPECT_TRUE(connect_attach(scratch.file("a"), kPatience).ok());
}

/// The file of a daemon that died.
void leave_stale_socket(const std::string& path) {
  const UniqueFd dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{AF_UNIX, {}};
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

TEST(AttachListener, StaleSocketIsReplaced) {
  test::RuntimeFolder scratch;
  leave_stale_socket(scratch.file("a"));
  EXPECT_TRUE(AttachListener::create(scratch.file("a")).ok());
}

TEST(AttachListener, OfManyThatStartAtOnceOnAStaleSocketOneListens) {
  constexpr int kDaemons = 4;
  for (int round = 0; round < 100; ++round) {
    test::RuntimeFolder scratch;
    leave_stale_socket(scratch.file("a"));
    std::barrier start(kDaemons);
    std::vector<std::optional<AttachListener>> listeners(kDaemons);
    std::vector<std::thread> daemons;
    daemons.reserve(kDaemons);
    for (auto& listener : listeners) {
      daemons.emplace_back([&] {
        start.arrive_and_wait();
        auto made = AttachListener::create(scratch.file("a"));
        if (made.ok()) listener.emplace(std::move(*made));
      });
    }
    for (auto& daemon : daemons) daemon.join();
    const auto listens = [](const auto& listener) { return listener.has_value(); };
    const auto winner = std::find_if(listeners.begin(), listeners.end(), listens);
    ASSERT_EQ(std::count_if(listeners.begin(), listeners.end(), listens), 1) << "round " << round;
    ASSERT_TRUE(connect_attach(scratch.file("a"), kPatience).ok());
    pollfd item{(*winner)->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&item, 1, 10'000), 1) << "the file is another's, round " << round;
  }
}

TEST(AttachListener, WhileAnotherTakesThePathItsFileIsLeftAlone) {
  test::RuntimeFolder scratch;
  leave_stale_socket(scratch.file("a"));
  const UniqueFd other(::open((scratch.file("a") + ".lock").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  const auto refused = AttachListener::create(scratch.file("a"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::exists(scratch.file("a")));
}

TEST(AttachListener, WhereItCannotHaveThePathItNamesTheRemedy) {
  test::RuntimeFolder scratch;
  std::filesystem::create_symlink("/etc/passwd", scratch.file("a.lock"));
  EXPECT_THAT(AttachListener::create(scratch.file("a")).error().message,
              testing::HasSubstr("configure another path"));
}

TEST(AttachConnection, KnowsTheUserAtTheOtherEnd) {
  Link link;
  const auto uid = link.daemon.uid();
  ASSERT_TRUE(uid.ok());
  EXPECT_EQ(*uid, ::getuid());
}

TEST(AttachListener, FileThatIsNoSocketIsLeftAlone) {
  test::RuntimeFolder scratch;
  std::ofstream(scratch.file("a")) << "precious";
  EXPECT_EQ(AttachListener::create(scratch.file("a")).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_regular_file(scratch.file("a")));
}

TEST(AttachListener, FileGoesWithIt) {
  test::RuntimeFolder scratch;
  { const auto sut = AttachListener::create(scratch.file("a")); }
  EXPECT_FALSE(std::filesystem::exists(scratch.file("a")));
}

TEST(AttachListener, AFileThatAnotherPutThereIsLeftAlone) {
  test::RuntimeFolder scratch;
  {
    const auto sut = AttachListener::create(scratch.file("a"));
    std::filesystem::rename(scratch.file("a"), scratch.file("moved"));
    leave_stale_socket(scratch.file("a"));
  }
  EXPECT_TRUE(std::filesystem::exists(scratch.file("a")));
}

TEST(AttachListener, ListensAnewWhereItsFileWasRemoved) {
  Link sut;
  EXPECT_FALSE(*sut.listener.restore()) << "it is found";
  std::filesystem::remove(sut.scratch.file("a"));
  ASSERT_FALSE(connect_attach(sut.scratch.file("a"), kPatience).ok());
  EXPECT_TRUE(*sut.listener.restore());
  EXPECT_FALSE(*sut.listener.restore());
  const auto another = connect_attach(sut.scratch.file("a"), kPatience);
  ASSERT_TRUE(another.ok());
  (void)accept_one(sut.listener);
  ASSERT_TRUE(sut.engine.send(bytes("still here")).ok());
  EXPECT_EQ(text(*sut.daemon.receive(kPatience)), "still here");
}

TEST(AttachListener, WithoutItsFolderSaysWhyAndWaitsForTheFolder) {
  const test::RuntimeFolder scratch;
  const std::string folder = scratch.file("in"), file = folder + "/a";
  std::filesystem::create_directory(folder);
  auto sut = AttachListener::create(file);
  ASSERT_TRUE(sut.ok());
  std::filesystem::remove_all(folder);
  const auto refused = sut->restore();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(file), std::string::npos) << refused.error().message;
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(*sut->restore());
  EXPECT_TRUE(connect_attach(file, kPatience).ok());
}

TEST(AttachListener, WhereAnotherListensByNowItDoesNotPushItAside) {
  const test::RuntimeFolder scratch;
  auto sut = AttachListener::create(scratch.file("a"));
  ASSERT_TRUE(sut.ok());
  std::filesystem::remove(scratch.file("a"));
  auto other = AttachListener::create(scratch.file("a"));
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(sut->restore().error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(*other->restore());
}

TEST(AttachListener, LongPathIsRefused) {
  EXPECT_EQ(AttachListener::create("/tmp/" + std::string(200, 'x')).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(ConnectAttach, SaysWhereNobodyListens) {
  test::RuntimeFolder scratch;
  const auto result = connect_attach(scratch.file("none"), kPatience);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(result.error().message.find(scratch.file("none")), std::string::npos);
  EXPECT_NE(result.error().message.find("KVD_ENDPOINT"), std::string::npos);
}

TEST(ConnectAttach, GivesUpWhenNobodyAccepts) {
  test::RuntimeFolder scratch;
  const auto listener = AttachListener::create(scratch.file("a"));
  std::vector<AttachConnection> backlog;
  while (true) {
    auto connection = connect_attach(scratch.file("a"), 20ms);
    if (!connection.ok()) {
      EXPECT_EQ(connection.error().code, ErrorCode::kDeadlineExceeded);
      break;
    }
    backlog.push_back(std::move(*connection));
    ASSERT_LT(backlog.size(), 1000u);
  }
}

TEST(AttachConnection, FramesKeepTheirBounds) {
  Link sut;
  ASSERT_TRUE(sut.engine.send(bytes("one")).ok());
  ASSERT_TRUE(sut.engine.send(bytes("two more")).ok());
  EXPECT_EQ(text(*sut.daemon.receive(kPatience)), "one");
  EXPECT_EQ(text(*sut.daemon.receive(kPatience)), "two more");
  EXPECT_EQ(sut.daemon.receive().error().code, ErrorCode::kWouldBlock);
}

TEST(AttachConnection, FdsArriveOpenAndCloseOnExec) {
  Link sut;
  const UniqueFd memfd(memfd_create("kvd-test", MFD_CLOEXEC));
  ASSERT_EQ(write(memfd.get(), "shared", 6), 6);
  const int fds[] = {memfd.get(), memfd.get()};
  ASSERT_TRUE(sut.daemon.send(bytes("map"), fds).ok());
  const auto frame = sut.engine.receive(kPatience);
  ASSERT_TRUE(frame.ok());
  ASSERT_EQ(frame->fds.size(), 2u);
  char content[6];
  EXPECT_EQ(pread(frame->fds[1].get(), content, 6, 0), 6);
  EXPECT_EQ(std::string_view(content, 6), "shared");
  EXPECT_NE(fcntl(frame->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(frame->fds[0].get(), memfd.get());
}

TEST(AttachConnection, OversizedFrameIsRefusedAndItsFdsClosed) {
  Link sut;
  const std::string huge(wire::kMaxAttachFrame + 1, 'x');
  const int fds[] = {STDERR_FILENO};
  const std::size_t before = open_fds();
  ASSERT_TRUE(sut.daemon.send(bytes(huge), fds).ok());
  EXPECT_EQ(sut.engine.receive(kPatience).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_fds(), before);
  ASSERT_TRUE(sut.daemon.send(bytes("next")).ok());
  EXPECT_EQ(text(*sut.engine.receive(kPatience)), "next");
}

/// Bypasses AttachConnection::send, which would not send that many. Returns the errno, or 0.
int send_fds(int socket, const std::vector<int>& fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFdsSent * sizeof(int))] = {};
  char byte = 'x';
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : errno;
}

TEST(AttachConnection, TooManyFdsAreRefusedAndClosed) {
  Link sut;
  const std::size_t before = open_fds();
  for (const std::size_t count : {kMaxFdsPerFrame + 1, kMaxFdsPerFrame + 2, kMostFdsSent}) {
    ASSERT_EQ(send_fds(sut.daemon.fd(), std::vector<int>(count, STDERR_FILENO)), 0);
    const auto frame = sut.engine.receive(kPatience);
    ASSERT_FALSE(frame.ok()) << count;
    EXPECT_EQ(frame.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(open_fds(), before) << count;
  }
}

/// A TCP connection whose last close() waits until its peer has read what it never reads.
struct Lingering {
  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd sender{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd reader;

  Lingering() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), generic, size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), generic, &size), 0);
    EXPECT_EQ(::connect(sender.get(), generic, size), 0);
    reader = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger for_long{1, 600};
    ::setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &for_long, sizeof for_long);
    const std::vector<char> data(1 << 20);
    while (::send(sender.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) continue;
  }
};

/// Makes connections as the listener does on a kernel without SO_PASSRIGHTS.
struct OldKernelsLink {
  UniqueFd peer;
  AttachConnection daemon;

  OldKernelsLink() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    peer = UniqueFd(ends[0]);
    daemon = AttachConnection(UniqueFd(ends[1]), std::make_shared<Closer>());
  }
};

TEST(AttachConnection, ADescriptorThatTakesLongToCloseHoldsUpNobody) {
  OldKernelsLink sut;
  Lingering socket;
  ASSERT_EQ(send_fds(sut.peer.get(), {socket.sender.get()}), 0);
  socket.sender.reset();
  // Once in a frame that is received, and, below, once in one that never is.
  EXPECT_EQ(sut.daemon.receive(kPatience).error().code, ErrorCode::kInvalidArgument);
  Lingering unread;
  ASSERT_EQ(send_fds(sut.peer.get(), {unread.sender.get()}), 0);
  unread.sender.reset();
  sut.daemon = {};
  // The process still exists, because nobody has waited for it.
  for (Lingering* still : {&socket, &unread}) {
    pollfd item{still->reader.get(), POLLRDHUP, 0};
    EXPECT_EQ(::poll(&item, 1, 0), 0);
  }
}

TEST(AttachListener, NoDescriptorCanBeSentToIt) {
  Link sut;
  const int code = send_fds(sut.engine.fd(), {STDERR_FILENO});
  if (code == 0) GTEST_SKIP() << "this kernel has no SO_PASSRIGHTS";
  EXPECT_EQ(code, EPERM);
  ASSERT_TRUE(sut.engine.send(bytes("next")).ok());
  EXPECT_EQ(text(*sut.daemon.receive(kPatience)), "next");
}

TEST(AttachConnection, PeerThatDoesNotReadBlocksNobody) {
  Link sut;
  const std::string frame(1000, 'x');
  Status sent;
  for (int i = 0; i < 100'000 && sent.ok(); ++i) sent = sut.daemon.send(bytes(frame));
  EXPECT_EQ(sent.code(), ErrorCode::kWouldBlock);
  EXPECT_EQ(sut.daemon.send(bytes(frame), {}, 5ms).code(), ErrorCode::kDeadlineExceeded);
}

TEST(AttachConnection, HangUpIsPeerGone) {
  Link sut;
  ASSERT_TRUE(sut.engine.send(bytes("last")).ok());
  { const AttachConnection gone = std::move(sut.engine); }
  EXPECT_EQ(text(*sut.daemon.receive(kPatience)), "last");
  EXPECT_EQ(sut.daemon.receive(kPatience).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(sut.daemon.send(bytes("x")).code(), ErrorCode::kPeerGone);
}

TEST(AttachConnection, LastFrameOfAPeerThatReadNothingStillArrives) {
  Link sut;
  ASSERT_TRUE(sut.daemon.send(bytes("never read")).ok());
  ASSERT_TRUE(sut.engine.send(bytes("goodbye")).ok());
  { const AttachConnection gone = std::move(sut.engine); }
  const auto frame = sut.daemon.receive(kPatience);
  ASSERT_TRUE(frame.ok()) << frame.error().to_string();
  EXPECT_EQ(text(*frame), "goodbye");
  EXPECT_EQ(sut.daemon.receive(kPatience).error().code, ErrorCode::kPeerGone);
}

TEST(AttachConnection, SilentPeerIsNotWaitedForBeyondTheDeadline) {
  Link sut;
  EXPECT_EQ(sut.daemon.receive(5ms).error().code, ErrorCode::kDeadlineExceeded);
}

TEST(AttachConnection, KernelVouchesForThePeer) {
  Link sut;
  const auto peer = sut.daemon.peer();
  ASSERT_TRUE(peer.ok()) << peer.error().to_string();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(peer->gid, getgid());
}

/// From here on the kernel has no SO_PEERPIDFD, as before Linux 6.5.
bool forget_peer_pidfds() {
  constexpr unsigned kPeerPidfd = 77;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPeerPidfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Like a container that does not see the host's processes.
TEST(AttachConnection, APeerThatIsNotSeenIsRefusedWithTheRemedyBeforeLinux65) {
  Link sut;
  constexpr int kCannot = 77;
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(kCannot);
    const pid_t inner = fork();
    if (inner == 0) {
      if (!forget_peer_pidfds()) _exit(kCannot);
      const auto peer = sut.daemon.peer();
      const bool told = !peer.ok() && peer.error().code == ErrorCode::kUnsupported &&
                        peer.error().message.find("hostPID") != std::string::npos;
      _exit(told ? 0 : 1);
    }
    int status = -1;
    waitpid(inner, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == kCannot) GTEST_SKIP() << "needs a PID namespace: run it as root";
  EXPECT_EQ(status, 0);
}

TEST(AttachConnection, PidfdTellsOfThePeersDeath) {
  test::RuntimeFolder scratch;
  auto listener = AttachListener::create(scratch.file("a"));
  ASSERT_TRUE(listener.ok());
  const pid_t child = fork();
  if (child == 0) {
    auto engine = connect_attach(scratch.file("a"), kPatience);
    _exit(engine.ok() && engine->receive(kPatience).ok() ? 0 : 1);
  }
  auto daemon = accept_one(*listener);
  const auto peer = daemon.peer();
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, child);
  pollfd item{peer->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 0), 0);
  ASSERT_TRUE(daemon.send(bytes("go")).ok());
  EXPECT_EQ(poll(&item, 1, 10'000), 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvd::transport
