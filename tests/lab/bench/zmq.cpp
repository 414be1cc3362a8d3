// kvd-bench zmq: what a command costs beside libzmq itself, and what the codec costs beside bare
// structs.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "ipc/transport/command_client.hpp"
#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/wire/codec.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/floors/pod_step.hpp"
#include "tests/lab/bench/floors/raw_zmq.hpp"

namespace kvd::bench::zmq_benchmark {
namespace {

using SteadyTime = std::chrono::steady_clock;

double nanoseconds_since(SteadyTime::time_point start) {
  return std::chrono::duration<double, std::nano>(SteadyTime::now() - start).count();
}

/// Keeps all threads of the process on one CPU: waking another one costs more than everything
/// measured here.
void stay_on_one_cpu() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
}

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/kvd-bench-XXXXXX";
    KVD_CHECK(mkdtemp(name) != nullptr, "no folder for the bench's sockets");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string path(const char* file) const { return path_ + "/" + file; }

 private:
  std::string path_;
};

/// Answers pings as the daemon's loop does: decode, reply, drain, wait.
class PingServer {
 public:
  explicit PingServer(const std::string& path) {
    auto server = transport::zmq_command_server({path, {}, 64});
    KVD_CHECK(server.ok(), "the command server does not start");
    server_ = std::move(server).value();
    thread_ = std::thread([this] { serve(); });
  }
  ~PingServer() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  PingServer(const PingServer&) = delete;
  PingServer& operator=(const PingServer&) = delete;
  [[nodiscard]] const std::string& endpoint() const { return server_->endpoint(); }

 private:
  void serve() {
    pollfd items[] = {{server_->fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while ((items[1].revents & POLLIN) == 0) {
      while (const auto in = server_->receive()) answer(*in);
      poll(items, 2, -1);
    }
  }

  void answer(const transport::Incoming& in) {
    const auto command = wire::decode_command(in.frame);
    if (!command.ok()) return;
    wire::Reply reply{{}, wire::type_of(command->body), "", {}};
    reply.header.sequence = command->header.sequence;
    if (wire::encode_reply(reply, frame_).ok()) (void)server_->send(in.peer, frame_.bytes());
  }

  std::unique_ptr<transport::CommandServer> server_;
  UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  wire::FrameBuffer frame_;
  std::thread thread_;
};

class PingClient {
 public:
  explicit PingClient(const std::string& endpoint) {
    auto client = transport::zmq_command_client(endpoint);
    KVD_CHECK(client.ok(), "the command client does not start");
    client_ = std::move(client).value();
  }

  void round_trip() {
    command_.header.sequence = ++sequence_;
    KVD_CHECK(wire::encode_command(command_, frame_).ok(), "a ping encodes");
    const auto answer = client_->call(frame_.bytes(), sequence_, std::chrono::seconds(10));
    KVD_CHECK(answer.ok() && wire::decode_reply(*answer).ok(), "a ping is answered");
  }

 private:
  std::unique_ptr<transport::CommandClient> client_;
  wire::Command command_{{}, wire::PingCommand{}};
  wire::FrameBuffer frame_;
  std::uint64_t sequence_ = 0;
};

/// Median time of one round trip, in microseconds.
template <class Peer>
double round_trip_us(Peer& peer) {
  constexpr int kRoundTrips = 500;
  std::vector<double> times;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = SteadyTime::now();
    peer.round_trip();
    times.push_back(nanoseconds_since(start) / 1000);
  }
  return median(times);
}

Row command_row(int repetitions) {
  Folder folder;
  PingServer server(folder.path("kvd"));
  PingClient client(server.endpoint());
  RawZmqEcho raw("ipc://" + folder.path("raw"), sizeof(wire::CommandHeader));
  round_trip_us(client);
  round_trip_us(raw);
  return interleaved(
      "command", "us", repetitions, [&] { return round_trip_us(client); },
      [&] { return round_trip_us(raw); });
}

constexpr std::size_t kRequests = 64;
constexpr int kMessages = 20'000;

/// Keeps the compiler from seeing through memory, as if the frame left and another one came.
void forget(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

double codec_ns() {
  const std::vector<wire::StepReport> reports(kRequests, {7, 1000, 0, 0});
  wire::Command command{{}, wire::StepCommand{{1, 2, 3, 0, 0}, reports}};
  wire::FrameBuffer frame;
  std::size_t decoded = 0;
  const auto start = SteadyTime::now();
  for (int i = 1; i <= kMessages; ++i) {
    command.header.sequence = static_cast<std::uint64_t>(i);
    KVD_CHECK(wire::encode_command(command, frame).ok(), "a step encodes");
    forget(frame.bytes().data());
    const auto received = wire::decode_command(frame.bytes());
    KVD_CHECK(received.ok(), "a step decodes");
    decoded += std::get<wire::StepCommand>(received->body).reports.size();
  }
  const double each = nanoseconds_since(start) / kMessages;
  KVD_CHECK(decoded == kMessages * kRequests, "all entries came through");
  return each;
}

double pod_ns() {
  const std::vector<PodStep::Entry> entries(kRequests, {7, 1000, 0, 0});
  std::vector<PodStep::Entry> decoded(kRequests);
  std::vector<std::byte> frame(sizeof(PodStep::Header) + kRequests * sizeof(PodStep::Entry));
  PodStep::Header header{};
  header.magic = 1;
  const auto start = SteadyTime::now();
  for (int i = 1; i <= kMessages; ++i) {
    header.sequence = static_cast<std::uint64_t>(i);
    PodStep::encode(header, entries, frame.data());
    forget(frame.data());
    KVD_CHECK(PodStep::decode(frame.data(), frame.size(), decoded.data()), "the frame is right");
    forget(decoded.data());
  }
  return nanoseconds_since(start) / kMessages;
}

int run(const Arguments& arguments) {
  const int repetitions = static_cast<int>(arguments.number("--repetitions", 21));
  stay_on_one_cpu();
  return print_rows(
      {command_row(repetitions), interleaved("codec", "ns", repetitions, codec_ns, pod_ns)},
      arguments.json);
}

const Registration registration{
    {"zmq", "a no-op command and the codec, beside libzmq and bare structs; --repetitions N", run}};

}  // namespace
}  // namespace kvd::bench::zmq_benchmark
