// kvd-bench ring: what a command costs over the ring transport, from the client library through a
// running daemon and back, beside two threads that pass 64 bytes through bare rings.
#include <sched.h>

#include <chrono>
#include <vector>

#include "ipc/transport/spin.hpp"
#include "ipc/vocabulary/check.hpp"
#include "kvd_client/client.hpp"
#include "tests/bench/bench.hpp"
#include "tests/bench/floors/raw_ring.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::bench {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr int kRoundTrips = 500;
constexpr std::uint64_t kBlockTokens = 16;

/// All threads of the process on one CPU: waking another one costs more than everything measured.
void stay_on_one_cpu() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
}

/// Median time of one call, in microseconds.
template <class Call>
double median_us(Call call) {
  std::vector<double> times;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = SteadyTime::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(SteadyTime::now() - start).count());
  }
  return median(times);
}

/// An engine of a daemon in this process whose one request takes block after block.
class Engine {
 public:
  explicit Engine(const test::DaemonThread& daemon) : client_(open(daemon)) {}

  double command_us() {
    return median_us([&] { KVD_CHECK(client_.ping(kTimeout).ok(), "a ping is answered"); });
  }

  double allocate_us() {
    begin_request();
    std::uint64_t tokens = 0;
    const double each = median_us([&] {
      tokens += kBlockTokens;  // counted from where the request stands: a block more each time
      auto blocks = client_.allocate_blocks(request_, tokens, kTimeout);
      while (blocks.code() == kvd_client::ErrorCode::kWouldBlock) {  // a slab is on its way
        blocks = client_.allocate_blocks(request_, tokens, kTimeout);
      }
      KVD_CHECK(blocks.ok(), blocks.error().message.c_str());
    });
    KVD_CHECK(client_.abort(request_, kTimeout).ok(), "the request ends");
    return each;
  }

 private:
  static constexpr std::chrono::seconds kTimeout{10};

  static kvd_client::Client open(const test::DaemonThread& daemon) {
    kvd_client::Options options;
    options.endpoint = daemon.endpoint();
    options.engine_name = "bench";
    options.shape = {1, 1, kBlockTokens, 1024};
    options.transport = kvd_client::Transport::kRing;
    auto client = kvd_client::Client::open(options);
    KVD_CHECK(client.ok(), "the engine attaches");
    return std::move(*client);
  }

  void begin_request() {
    const std::uint64_t tokens = kBlockTokens * (kRoundTrips + 2);
    KVD_CHECK(client_.submit({++request_, kBlockTokens, tokens, {}, {}}, kTimeout).ok(),
              "the request is taken");
    for (bool runs = false; !runs;) {
      const auto step = client_.step({}, iteration_, 0, kTimeout);
      KVD_CHECK(step.ok(), "a step is answered");
      iteration_ = step->iteration;
      runs = !step->run.empty();
    }
  }

  kvd_client::Client client_;
  std::uint64_t request_ = 0;
  std::uint64_t iteration_ = 0;
};

int run(const Arguments& arguments) {
  const int repetitions = static_cast<int>(arguments.number("--repetitions", 21));
  stay_on_one_cpu();
  test::DaemonThread daemon([](daemon::Config& config) { config.hbm = 64 * kMiB; });
  Engine engine(daemon);
  RawRingEcho raw(transport::default_spin());
  const auto floor = [&] { return median_us([&] { raw.round_trip(); }); };
  engine.command_us();
  floor();
  return print_rows(
      {interleaved(
           "command", "us", repetitions, [&] { return engine.command_us(); }, floor),
       interleaved(
           "allocate", "us", repetitions, [&] { return engine.allocate_us(); }, floor)},
      arguments.json);
}

const Registration registration{
    {"ring",
     "a no-op and a one-block allocation over the ring, beside a bare ring; --repetitions N", run}};

}  // namespace
}  // namespace kvd::bench
