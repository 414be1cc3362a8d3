// How fast blocks go to a Redis or Valkey server and come back, beside the same bytes over a bare
// socket.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "kvd/tiers/remote/remote_tier.hpp"
#include "kvd/tiers/remote/resp.hpp"
#include "kvd/tiers/remote/socket.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/flags.hpp"

namespace kvd::bench::remote_benchmark {
namespace {

using namespace kvd::remote;
using Steady = std::chrono::steady_clock;

constexpr const char* kHelp =
    R"(usage: kvd-bench remote [--json] --server HOST:PORT [--repetitions N]

32 blocks of 2 MiB to a Redis or Valkey server that runs there, empty and of no other use: it is
flushed. GB/s; the floor is the same bytes over a bare TCP connection of this machine, 8 requests
under way, to a process of its own.

  load         blocks that are there, each verified     limit: ratio .75
  store        blocks that are not there                limit: ratio .75
  cpu          us of this process's CPUs a block that it loads     limit: ratio 1.8
  lookup_2048  ms until it is known which of 2,048 blocks are there; floor: one EXISTS
                                                        limit: ratio 3

  --repetitions N   9
)";

constexpr std::size_t kBlocks = 32, kDepth = 8, kNames = 2048;
constexpr std::uint32_t kGroups = 4;
constexpr std::size_t kBlock = std::size_t{2} << 20;

double seconds_since(Steady::time_point began) {
  return std::chrono::duration<double>(Steady::now() - began).count();
}
double cpu_s() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

void send_all(int fd, const void* data, std::size_t size) {
  for (const auto* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL);
    KVD_CHECK(sent > 0, "the other side hung up");
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
}
bool receive_all(int fd, void* data, std::size_t size) {
  for (auto* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = ::recv(fd, at, size, MSG_WAITALL);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

/// A process that gives and takes as many blocks as the server has, over one TCP connection.
class Floor {
 public:
  Floor() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    KVD_CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                  ::listen(listener, 1) == 0 &&
                  ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) == 0,
              "no port for the floor");
    pid_ = ::fork();
    if (pid_ == 0) serve(listener);
    ::close(listener);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KVD_CHECK(::connect(fd_, reinterpret_cast<sockaddr*>(&at), size) == 0, "no floor");
    const int one = 1;
    (void)::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Floor() {
    ::close(fd_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Floor(const Floor&) = delete;
  Floor& operator=(const Floor&) = delete;

  void load(std::vector<std::byte>& memory) const {
    std::size_t asked = 0;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      for (; asked < kBlocks && asked < i + kDepth; ++asked) send_all(fd_, "g", 1);
      KVD_CHECK(receive_all(fd_, memory.data() + i * kBlock, kBlock), "the floor has ended");
    }
  }
  void store(const std::vector<std::byte>& memory) const {
    char ok = 0;
    for (std::size_t i = 0; i < kBlocks + kDepth; ++i) {
      if (i < kBlocks) {
        send_all(fd_, "p", 1);
        send_all(fd_, memory.data() + i * kBlock, kBlock);
      }
      if (i >= kDepth) KVD_CHECK(receive_all(fd_, &ok, 1), "the floor has ended");
    }
  }

 private:
  [[noreturn]] static void serve(int listener) {
    std::vector<std::byte> blocks(kBlocks * kBlock, std::byte{7});
    const int fd = ::accept(listener, nullptr, nullptr);
    const int one = 1;
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    std::size_t next = 0;
    for (char op = 0; receive_all(fd, &op, 1); next = (next + 1) % kBlocks) {
      std::byte* const block = blocks.data() + next * kBlock;
      if (op == 'g') send_all(fd, block, kBlock);
      if (op == 'p') {
        if (!receive_all(fd, block, kBlock)) break;
        send_all(fd, "k", 1);
      }
    }
    ::_exit(0);
  }
  int fd_ = -1;
  pid_t pid_ = -1;
};

/// Says a command and waits for a reply of one line.
void say(const std::string& server, const std::string& command, std::size_t replies = 1) {
  static const UniqueFd fd = dial(server, std::chrono::seconds(5)).value();
  for (std::size_t at = 0; at < command.size();) {
    const ssize_t sent = ::send(fd.get(), command.data() + at, command.size() - at, MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<std::size_t>(sent);
  }
  for (std::size_t lines = 0; lines < replies;) {
    char text[4096];
    pollfd event{fd.get(), POLLIN, 0};
    (void)::poll(&event, 1, 5000);
    const ssize_t got = ::recv(fd.get(), text, sizeof text, 0);
    KVD_CHECK(got > 0, "the server does not answer");
    for (ssize_t i = 0; i < got; ++i) lines += text[i] == '\n' ? 1u : 0u;
  }
}

class Bench {
 public:
  explicit Bench(std::string server) : server_(std::move(server)), memory_(kBlocks * kBlock) {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 31);
    into_.resize(memory_.size());
    RemoteOptions options;
    options.servers = {server_};
    options.ttl = std::chrono::hours(1);
    tier_ = RemoteTier::open(options, std::make_shared<SteadyClock>()).value();
    shape_ = {{1}, kGroups, Bytes(kBlock / kGroups)};
    const auto until = Steady::now() + std::chrono::seconds(5);
    while (!tier_->status().front().on) {
      KVD_CHECK(Steady::now() < until, tier_->status().front().why.message.c_str());
      take(0);
    }
  }
  void flush() const {
    std::string command;
    add_command(command, {"FLUSHALL"});
    say(server_, command);
  }
  void store() {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      tier_->put({next(), shape_, key(i), spans<const std::byte>(memory_, i), kLong});
    }
    take(kBlocks);
  }
  void load() {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      tier_->get({next(), shape_, key(i), spans<std::byte>(into_, i), kLong});
    }
    take(kBlocks);
  }
  void check() const { KVD_CHECK(into_ == memory_, "wrong bytes"); }
  void find() {
    std::vector<disk::Digest> digests;
    for (std::size_t i = 0; i < kNames; ++i) digests.push_back(key(i).digest);
    tier_->find({next(), shape_, std::move(digests), kLong});
    take(1);
  }
  [[nodiscard]] std::string exists() const {
    std::string command;
    begin_command(command, kNames + 1);
    add_word(command, "EXISTS");
    for (std::size_t i = 0; i < kNames; ++i) add_word(command, key_name(shape_, key(i).digest));
    return command;
  }
  std::vector<std::byte>& into() { return into_; }
  const std::vector<std::byte>& memory() { return memory_; }

 private:
  static constexpr Nanoseconds kLong = std::chrono::seconds(30);
  Ticket next() { return last_ = Ticket(last_.value + 1); }
  [[nodiscard]] static disk::BlockKey key(std::size_t i) {
    disk::BlockKey key;
    std::memcpy(key.digest.data(), &i, sizeof i);
    return key;
  }
  template <class Byte, class Memory>
  static std::vector<std::span<Byte>> spans(Memory& memory, std::size_t i) {
    std::vector<std::span<Byte>> groups;
    const std::size_t size = kBlock / kGroups;
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      groups.emplace_back(memory.data() + i * kBlock + g * size, size);
    }
    return groups;
  }
  void take(std::size_t count) {
    std::vector<Completion> completions;
    std::vector<Change> changes;
    do {
      pollfd event{tier_->completion_fd(), POLLIN, 0};
      (void)::poll(&event, 1, 100);
      tier_->poll(completions, changes);
    } while (completions.size() < count);
    for (const Completion& each : completions) {
      KVD_CHECK(each.fault == disk::Fault::kNone, disk::name(each.fault).data());
    }
  }

  const std::string server_;
  std::vector<std::byte> memory_, into_;
  std::unique_ptr<RemoteTier> tier_;
  disk::ClassShape shape_;
  Ticket last_;
};

int run(const Arguments& arguments) {
  std::string server;
  for (std::size_t i = 0; i + 1 < arguments.rest.size(); ++i) {
    if (arguments.rest[i] == "--server") server = arguments.rest[i + 1];
  }
  if (!check_address(server).ok()) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  const int repetitions = static_cast<int>(arguments.number("--repetitions", 9));
  const Floor floor;
  Bench bench(server);
  const auto timed = [](const std::function<void()>& work) {
    const auto began = Steady::now();
    work();
    return static_cast<double>(kBlocks * kBlock) / seconds_since(began) / 1e9;
  };
  const auto cpu_us = [](const std::function<void()>& work) {
    const double before = cpu_s();
    work();
    return (cpu_s() - before) * 1e6 / static_cast<double>(kBlocks);
  };
  const auto load = [&] { bench.load(); };
  const auto floor_load = [&] { floor.load(bench.into()); };
  std::vector<Row> rows;
  rows.push_back(interleaved(
      "store", "GB/s", repetitions,
      [&] {
        bench.flush();
        return timed([&] { bench.store(); });
      },
      [&] { return timed([&] { floor.store(bench.memory()); }); }));
  rows.push_back(interleaved(
      "load", "GB/s", repetitions, [&] { return timed(load); }, [&] { return timed(floor_load); }));
  rows.push_back(interleaved(
      "cpu", "us", repetitions, [&] { return cpu_us(load); }, [&] { return cpu_us(floor_load); }));
  bench.load();
  bench.check();
  const std::string exists = bench.exists();
  const auto took_ms = [](const std::function<void()>& work) {
    const auto began = Steady::now();
    work();
    return seconds_since(began) * 1e3;
  };
  rows.push_back(interleaved(
      "lookup_2048", "ms", repetitions * 4, [&] { return took_ms([&] { bench.find(); }); },
      [&] { return took_ms([&] { say(server, exists); }); }));
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"remote", "blocks to a Redis or Valkey server and back; more: remote --help", run, kHelp}};

}  // namespace
}  // namespace kvd::bench::remote_benchmark
