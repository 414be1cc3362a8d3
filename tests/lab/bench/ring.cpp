// kvd-bench ring: what a command costs over the ring transport, from the client library through a
// running daemon and back, beside two threads that pass 64 bytes through bare rings.
#include <sched.h>

#include <chrono>
#include <vector>

#include "ipc/transport/spin.hpp"
#include "ipc/vocabulary/check.hpp"
#include "kvd_client/client.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/floors/raw_ring.hpp"
#include "tests/support/daemon_thread.hpp"

namespace kvd::bench::ring_benchmark {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr int kRoundTrips = 500;
constexpr std::uint64_t kBlockTokens = 16;
constexpr std::chrono::seconds kTimeout{10};

/// Keeps all threads of the process on one CPU: waking another one costs more than everything
/// measured here.
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

/// An engine of a daemon in this process; its one request takes block after block.
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
      tokens += kBlockTokens;  // counted from the last report: one block more each time
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

/// An engine that places its own blocks: half of its requests run, the others wait.
class PlacingEngine {
 public:
  explicit PlacingEngine(const test::DaemonThread& daemon) : client_(open(daemon)) {
    for (std::uint32_t i = 0; i < kRequests; ++i) {
      kvd_client::ScheduleRequest request;
      request.id = i + 1;
      request.prompt_tokens = 300;
      request.max_new_tokens = 400;
      request.age_ns = 1'000'000 + i;
      if (i % 2 == 0) {
        request.state = kvd_client::ScheduleState::kRunning;
        request.generated_tokens = 50;
        request.computed_tokens = 349;
        request.blocks = 22;
        request.first_token_age_ns = 900'000;
        request.last_token_age_ns = 1'000;
      }
      requests_.push_back(request);
    }
  }

  double schedule_us() {
    kvd_client::ScheduleInput input;
    input.free_blocks = 5;
    input.total_blocks = 1000;
    input.block_tokens = 16;
    input.last_step_ns = 10'000'000;
    input.last_step_decodes = kRequests / 2;
    input.requests = requests_;
    return median_us([&] {
      const auto answer = client_.schedule(input, kTimeout);
      KVD_CHECK(answer.ok(), answer.error().message.c_str());
    });
  }

 private:
  static constexpr std::uint32_t kRequests = 64;

  static kvd_client::Client open(const test::DaemonThread& daemon) {
    kvd_client::Options options;
    options.endpoint = daemon.endpoint();
    options.engine_name = "places";
    options.transport = kvd_client::Transport::kRing;
    auto client = kvd_client::Client::open(options);
    KVD_CHECK(client.ok(), "the engine attaches");
    return std::move(*client);
  }

  kvd_client::Client client_;
  std::vector<kvd_client::ScheduleRequest> requests_;
};

int run(const Arguments& arguments) {
  const int repetitions = static_cast<int>(arguments.number("--repetitions", 21));
  stay_on_one_cpu();
  test::DaemonThread daemon([](daemon::Config& config) { config.hbm = 64 * kMiB; });
  Engine engine(daemon);
  RawRingEcho raw(transport::default_spin());
  const auto floor = [&] { return median_us([&] { raw.round_trip(); }); };
  PlacingEngine placing(daemon);
  engine.command_us();
  placing.schedule_us();
  floor();
  return print_rows(
      {interleaved(
           "command", "us", repetitions, [&] { return engine.command_us(); }, floor),
       interleaved(
           "allocate", "us", repetitions, [&] { return engine.allocate_us(); }, floor),
       interleaved(
           "schedule_64", "us", repetitions, [&] { return placing.schedule_us(); }, floor)},
      arguments.json);
}

const Registration registration{{"ring",
                                 "a no-op, an allocation and a decision for 64 placed requests, "
                                 "beside a bare ring; --repetitions N",
                                 run}};

}  // namespace
}  // namespace kvd::bench::ring_benchmark
