/// kvd-admin: the REST API and the metrics of a kvd, which starts it. It has nothing but the link
/// to that kvd, and ends with it.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/nearest.hpp"
#include "kvd/admin/admin_server.hpp"
#include "kvd/admin/confinement.hpp"
#include "kvd/admin/link/channel.hpp"
#include "kvd/admin/link_backend.hpp"
#include "kvd/admin/metrics_server.hpp"

namespace kvd::admin {
namespace {

constexpr Nanoseconds kPatience = std::chrono::seconds(60);

struct Servers {
  std::unique_ptr<AdminServer> admin;
  std::unique_ptr<MetricsServer> metrics;
};

Result<link::Begin> receive_begin(link::Channel& channel) {
  KVD_ASSIGN_OR_RETURN(const link::Message message, channel.receive(kKiB, kPatience));
  std::span<const std::byte> body = message.body;
  const auto begin = link::take<link::Begin>(body);
  if (begin && message.type == link::Type::kBegin) return *begin;
  return make_error(ErrorCode::kInvalidArgument, "not the first message of a kvd");
}

Result<Servers> start(const link::Begin& begin, AdminBackend& backend, std::string& missing) {
  KVD_ASSIGN_OR_RETURN(missing, confine(begin));
  Servers servers;
  const std::string admin(link::text_of(begin.admin_address));
  const std::string metrics(link::text_of(begin.metrics_address));
  if (!admin.empty()) {
    KVD_ASSIGN_OR_RETURN(servers.admin, AdminServer::start({admin, begin.admin_port}, backend));
  }
  if (!metrics.empty()) {
    KVD_ASSIGN_OR_RETURN(servers.metrics,
                         MetricsServer::start(metrics, begin.metrics_port, backend));
  }
  seal();
  return servers;
}

int fail(const char* what) {
  std::fprintf(stderr, "kvd-admin: %s\n", what);
  return 2;
}

int main(int argc, char** argv) {
  const std::string_view asked = argc > 1 ? argv[1] : "";
  if (asked == "--version" || asked == "-V") return std::puts("kvd-admin " KVD_VERSION), 0;
  if (asked == "--help" || asked == "-h") {
    return std::puts("kvd-admin serves REST and the metrics of the kvd that starts it"), 0;
  }
  const std::string meant = misspelt(asked, "option", {"--version", "--help"});
  if (!meant.empty()) return fail(meant.c_str());
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(link::kDescriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    return fail("is started by kvd, and of no use by itself");
  }
  ::fcntl(link::kDescriptor, F_SETFD, FD_CLOEXEC);
  link::Channel channel{UniqueFd(link::kDescriptor)};
  const auto begin = receive_begin(channel);
  if (!begin.ok()) return fail(begin.error().message.c_str());

  const SteadyClock clock;
  LinkBackend backend(channel, clock, [] { ::_exit(1); });
  std::string missing;
  const auto servers = start(*begin, backend, missing);
  link::Verdict verdict;
  if (!missing.empty()) {
    verdict.message = link::to_text<sizeof verdict.message>(
        "this kernel has no " + missing +
        ": who takes over kvd-admin can do what its user can (SECURITY.md)");
  }
  if (!servers.ok()) {
    verdict.code = static_cast<std::uint32_t>(servers.error().code);
    verdict.message = link::to_text<sizeof verdict.message>(servers.error().message);
  }
  if (!channel.send(link::Type::kStarted, std::as_bytes(std::span(&verdict, 1)), kPatience).ok()) {
    return fail("kvd has gone");
  }
  if (!servers.ok()) ::_exit(1);
  backend.open();
  // The servers' threads do all the work, except for the history, which goes on while nobody looks.
  // The link ends when kvd dies, or when it wants this process to end.
  const int moment_ms = static_cast<int>(LinkBackend::kMoment / std::chrono::milliseconds(1));
  for (;;) {
    if (servers->admin) backend.keep_history();
    pollfd hang_up{link::kDescriptor, 0, 0};
    if (::poll(&hang_up, 1, servers->admin ? moment_ms : -1) > 0) ::_exit(0);
  }
}

}  // namespace
}  // namespace kvd::admin

int main(int argc, char** argv) { return kvd::admin::main(argc, argv); }
