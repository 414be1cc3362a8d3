/// kvd-crash-probe --pid P --admin-port PORT: kills an engine and times how long its memory takes
/// to come back.
///
/// Prints {"notice_ms":…,"reclaim_ms":…,"floor_ms":…,"pidfd_ms":…,"memset_ms":…}, all from the
/// instant of the SIGKILL: kvd notices that the engine died (notice); its memory is zeroed and free
/// (reclaim); and the floor of a reclaim: the kernel says that the process is gone (pidfd) plus a
/// memset of the bytes of its regions. The times are those of kvd's events: a snapshot may be old.
/// Exit 1 where that took over 10 s.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "ipc/vocabulary/unique_fd.hpp"

namespace {

using Clock = std::chrono::steady_clock;  // kvd's, too
using Json = nlohmann::json;

double ms_of(Clock::time_point at) {
  return std::chrono::duration<double, std::milli>(at.time_since_epoch()).count();
}

/// The whole state that kvd shows; null when it does not answer.
Json overview(std::uint16_t port) {
  const kvd::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return {};
  }
  const std::string request =
      "GET /v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  if (::write(socket.get(), request.data(), request.size()) < 0) return {};
  std::string answer;
  char buffer[65536];
  for (ssize_t n = 0; (n = ::read(socket.get(), buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  const Json document = Json::parse(answer.substr(std::min(answer.size(), answer.find('{'))),
                                    nullptr, /*allow_exceptions=*/false);
  return document.contains("events") ? document : Json();
}

/// The sessions of a process that lease memory.
struct Victim {
  std::set<std::uint64_t> engines;
  std::size_t bytes = 0;
};

Victim victim_in(const Json& document, long pid) {
  Victim victim;
  for (const Json& engine : document.at("engines").at("engines")) {
    const auto bytes = engine.at("region_bytes").get<std::size_t>();
    if (engine.at("pid") != pid || bytes == 0) continue;
    victim.engines.insert(engine.at("id").get<std::uint64_t>());
    victim.bytes += bytes;
  }
  return victim;
}

/// When kvd last reported one of the engines, in ms of its clock; 0: it has not reported all of
/// them.
double told(const Json& document, const Victim& victim, const char* what) {
  std::set<std::uint64_t> of;
  double last = 0;
  for (const Json& event : document.at("events").at("events")) {
    const auto engine = event.at("engine").get<std::uint64_t>();
    const bool is_it = event.at("text").get<std::string>().find(what) != std::string::npos;
    if (!is_it || !victim.engines.contains(engine)) continue;
    of.insert(engine);
    last = 1e3 * (document.at("now_s").get<double>() - event.at("age_s").get<double>());
  }
  return of.size() == victim.engines.size() ? last : 0;
}

double memset_ms(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return 0;
  std::memset(memory, 0x5a, bytes);
  const auto start = Clock::now();
  std::memset(memory, 0, bytes);
  asm volatile("" : : "r"(memory) : "memory");
  const double spent = ms_of(Clock::now()) - ms_of(start);
  ::munmap(memory, bytes);
  return spent;
}

const char* argument(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  std::fprintf(stderr, "usage: kvd-crash-probe --pid P --admin-port PORT\n");
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const long pid = std::atol(argument(argc, argv, "--pid"));
  const auto port = static_cast<std::uint16_t>(std::atoi(argument(argc, argv, "--admin-port")));
  const kvd::UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const Json before = overview(port);
  if (!pidfd.valid() || before.is_null()) {
    std::fprintf(stderr, "kvd-crash-probe: no such process, or kvd does not answer\n");
    return 2;
  }
  const Victim victim = victim_in(before, pid);
  if (victim.engines.empty()) {
    std::fprintf(stderr, "kvd-crash-probe: the process has no region of kvd's\n");
    return 2;
  }
  const double floor_memset = memset_ms(victim.bytes);

  const double killed = ms_of(Clock::now());
  ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  pollfd entry{pidfd.get(), POLLIN, 0};
  const double gone = ::poll(&entry, 1, 10'000) > 0 ? ms_of(Clock::now()) - killed : 0;
  double notice = 0;
  double reclaim = 0;
  while (reclaim == 0 && ms_of(Clock::now()) - killed < 10'000) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the event keeps its time
    const Json document = overview(port);
    if (document.is_null()) continue;
    notice = told(document, victim, " died");
    reclaim = told(document, victim, "zeroed and free");
  }
  std::printf(
      "{\"notice_ms\":%.3f,\"reclaim_ms\":%.3f,\"floor_ms\":%.3f,\"pidfd_ms\":%.3f,"
      "\"memset_ms\":%.3f}\n",
      notice - killed, reclaim - killed, gone + floor_memset, gone, floor_memset);
  return reclaim > 0 ? 0 : 1;
}
