/// kvd-hostile-admin MODE FOLDER: stands in for a kvd-admin that a stranger has taken over. It
/// gives up what kvd-admin gives up, says that it listens, and then
///   attempts   tries what must not be possible any more; "NAME: refused" or "NAME: possible"
///   free       the same without having given up anything
///   half       sends the first bytes of a question and nothing more
///   questions  asks as fast as it can, and says how long 2,000 answers took
/// FOLDER is the runtime folder of the kvd that started it.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/admin/confinement.hpp"
#include "kvd/admin/link/channel.hpp"

namespace kvd::test {
namespace {

namespace link = admin::link;
constexpr Nanoseconds kPatience = std::chrono::seconds(60);

/// What the call returned, or -1, and why.
void say(const char* attempt, long result) {
  const bool refused = result < 0 && (errno == EPERM || errno == EACCES);
  std::fprintf(stderr, "%s: %s\n", attempt, refused ? "refused" : "possible");
}

int reach(int family, const sockaddr* address, socklen_t size) {
  const UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket.valid() ? ::connect(socket.get(), address, size) : -1;
}

int attach(const std::string& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder + "/attach.sock";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return reach(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

int call_out(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return reach(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

ssize_t send_descriptor() {
  char byte = 0;
  iovec part{&byte, 0};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &link::kDescriptor, sizeof(int));
  return ::sendmsg(link::kDescriptor, &message, MSG_NOSIGNAL);
}

long start_program() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  return child;
}

void attempt_all(const std::string& folder, std::uint16_t port) {
  const pid_t kvd = ::getppid();
  char byte = 0;
  iovec here{&byte, 1}, there{&byte, 1};
  rlimit bound{};
  say("read the token", ::open((folder + "/admin.token").c_str(), O_RDONLY));
  say("write a file", ::open((folder + "/hostile").c_str(), O_WRONLY | O_CREAT, 0600));
  say("remove a file", ::unlink((folder + "/hostile").c_str()));
  say("attach as an engine", attach(folder));
  say("connect by TCP", call_out(port));
  say("signal kvd", ::kill(kvd, 0));
  say("have kvd signalled", ::fcntl(link::kDescriptor, F_SETOWN, kvd));
  say("open kvd's process", ::syscall(SYS_pidfd_open, kvd, 0));
  say("trace kvd", ::ptrace(PTRACE_SEIZE, kvd, nullptr, nullptr));
  say("read kvd's memory", ::process_vm_readv(kvd, &here, 1, &there, 1, 0));
  say("bound kvd", ::prlimit(kvd, RLIMIT_CORE, nullptr, &bound));
  say("ask by io_uring", ::syscall(SYS_io_uring_setup, 0, nullptr));
  say("start a process", start_program());
  say("become a program", ::execl("/nonexistent", "nonexistent", nullptr));
  say("send a descriptor", send_descriptor());
  std::fputs("all attempted\n", stderr);
}

void ask_often(link::Channel& channel) {
  constexpr int kQuestions = 2000;
  const SteadyClock clock;
  const TimePoint begun = clock.now();
  const link::Token token{};
  for (int i = 0; i < kQuestions; ++i) {
    (void)channel.send(link::Type::kStanding, std::as_bytes(std::span(token)), kPatience);
    if (!channel.receive(kKiB, kPatience).ok()) return;
  }
  std::fprintf(stderr, "answered in %.1f s\n", to_seconds(clock.now() - begun));
}

int main(const std::string& mode, const std::string& folder) {
  link::Channel channel{UniqueFd(link::kDescriptor)};
  const auto message = channel.receive(kKiB, kPatience);
  std::span<const std::byte> body;
  if (message.ok()) body = message->body;
  const auto begin = link::take<link::Begin>(body);
  if (!begin) return 2;
  if (mode != "free") {
    if (!admin::confine(*begin).ok()) return 2;
    admin::seal();
  }
  const link::Verdict verdict;
  (void)channel.send(link::Type::kStarted, std::as_bytes(std::span(&verdict, 1)), kPatience);
  if (mode == "attempts" || mode == "free") attempt_all(folder, begin->admin_port);
  if (mode == "questions") ask_often(channel);
  if (mode == "half") (void)::send(link::kDescriptor, "KVDA", 4, MSG_NOSIGNAL);
  pollfd end{link::kDescriptor, 0, 0};
  while (::poll(&end, 1, -1) <= 0) {
  }
  return 0;
}

}  // namespace
}  // namespace kvd::test

int main(int argc, char** argv) { return argc == 3 ? kvd::test::main(argv[1], argv[2]) : 2; }
