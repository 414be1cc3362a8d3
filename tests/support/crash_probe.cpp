/// kvd-crash-probe --pid P --bytes N --admin-port PORT: kills an engine and times how long its
/// memory takes to come back.
///
/// Prints {"notice_ms":…,"reclaim_ms":…,"floor_ms":…,"pidfd_ms":…,"memset_ms":…}, all from the
/// instant of the SIGKILL: the daemon no longer counts the engine as alive (notice); its N bytes of
/// regions are no longer leased and zeroed (reclaim); and the floor of a reclaim: the kernel says
/// that the process is gone (pidfd) plus a memset of N bytes. REST shows what is up to 100 ms old,
/// so notice and reclaim are that much later than the daemon at most. Exit 1 where that took over
/// 10 s.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "ipc/vocabulary/unique_fd.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// The body of GET `path`; empty when the daemon does not answer.
std::string http_get(std::uint16_t port, const std::string& path) {
  const kvd::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return {};
  }
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  if (::write(socket.get(), request.data(), request.size()) < 0) return {};
  std::string answer;
  char buffer[65536];
  for (ssize_t n = 0; (n = ::read(socket.get(), buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  return answer;
}

/// The number after `"key":` in the part of `json` that follows `from`; -1: not there.
long long number_after(const std::string& json, const std::string& from, const std::string& key) {
  const std::size_t start = json.find(from);
  const std::size_t at = start == std::string::npos ? start : json.find("\"" + key + "\":", start);
  if (at == std::string::npos) return -1;
  return std::strtoll(json.c_str() + at + key.size() + 3, nullptr, 10);
}

/// Bytes of HBM leased as regions; -1 while some memory still waits to be zeroed. Free bytes would
/// not do: on a busy pool others take them at once.
long long region_bytes(std::uint16_t port) {
  const std::string pools = http_get(port, "/v1/pools");
  for (const char* use : {"dirty", "scrubbing", "quarantined"}) {
    if (pools.find(R"("use": ")" + std::string(use) + '"') != std::string::npos) return -1;
  }
  return number_after(pools, "\"hbm\"", "region_bytes");
}

bool engine_is_dead(const std::string& engines, long pid) {
  const std::size_t at = engines.find("\"pid\": " + std::to_string(pid) + ",");
  if (at == std::string::npos) return true;
  // The states of one engine stand in one object: look no further than its end.
  const std::string object =
      engines.substr(engines.rfind('{', at), engines.find('}', at) - engines.rfind('{', at));
  return object.find(R"("state": "dying")") != std::string::npos;
}

double memset_ms(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return 0;
  std::memset(memory, 0x5a, bytes);
  const auto start = Clock::now();
  std::memset(memory, 0, bytes);
  asm volatile("" : : "r"(memory) : "memory");
  const double spent = ms_since(start);
  ::munmap(memory, bytes);
  return spent;
}

const char* argument(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  std::fprintf(stderr, "usage: kvd-crash-probe --pid P --bytes N --admin-port PORT\n");
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const long pid = std::atol(argument(argc, argv, "--pid"));
  const long long bytes = std::atoll(argument(argc, argv, "--bytes"));
  const auto port = static_cast<std::uint16_t>(std::atoi(argument(argc, argv, "--admin-port")));
  const double floor_memset = memset_ms(static_cast<std::size_t>(bytes));
  const kvd::UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  long long before = region_bytes(port);
  for (int i = 0; before < 0 && i < 1000; ++i) before = region_bytes(port);
  if (!pidfd.valid() || before < 0) {
    std::fprintf(stderr, "kvd-crash-probe: no such process, or kvd does not answer\n");
    return 2;
  }

  const auto killed = Clock::now();
  ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  double gone = 0;
  std::thread watcher([&] {
    pollfd entry{pidfd.get(), POLLIN, 0};
    if (::poll(&entry, 1, 10'000) > 0) gone = ms_since(killed);
  });
  double notice = 0;
  double reclaim = 0;
  while (reclaim == 0 && ms_since(killed) < 10'000) {
    if (notice == 0 && engine_is_dead(http_get(port, "/v1/engines"), pid))
      notice = ms_since(killed);
    const long long leased = region_bytes(port);
    if (leased >= 0 && leased <= before - bytes) reclaim = ms_since(killed);
  }
  watcher.join();
  std::printf(
      "{\"notice_ms\":%.3f,\"reclaim_ms\":%.3f,\"floor_ms\":%.3f,\"pidfd_ms\":%.3f,"
      "\"memset_ms\":%.3f}\n",
      notice, reclaim, gone + floor_memset, gone, floor_memset);
  return reclaim > 0 ? 0 : 1;
}
