// One decision of lvf with 1,000 and 10,000 requests under contention; the limits are absolute.
#include "planner/policy/lvf.hpp"

#include <chrono>
#include <random>

#include "tests/lab/bench/bench.hpp"

namespace kvd::bench::lvf_benchmark {
namespace {

using planner::RequestState;
using planner::RotationRequest;
using planner::Seconds;

planner::RotationSnapshot crowd(int requests) {
  std::mt19937_64 random(1);
  planner::RotationSnapshot snapshot;
  snapshot.b_hbm = Bytes(requests / 4);
  snapshot.b_xfer = Bytes(std::int64_t{requests} * 3);
  for (int i = 0; i < requests; ++i) {
    RotationRequest request;
    request.bytes = Bytes(1 + static_cast<std::int64_t>(random() % 40));
    request.state = static_cast<RequestState>(random() % 3);
    const Seconds since(static_cast<double>(random() % 100'000) * 1e-3);
    request.t_arr = request.t_run = request.t_last = since;
    snapshot.requests.push_back(request);
  }
  return snapshot;
}

double median_us(int requests, int rounds) {
  const auto snapshot = crowd(requests);
  planner::LvfPolicy policy;
  std::vector<double> times;
  std::size_t taken = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    taken += policy.decide(snapshot, Seconds(200 + round), {}).prioritized.size();
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  return taken > 0 ? median(std::move(times)) : -1;
}

int run(const Arguments& arguments) {
  return print_rows({{"lvf_1000", median_us(1'000, 501), {}, {}, "us"},
                     {"lvf_10000", median_us(10'000, 101) * 1e-3, {}, {}, "ms"}},
                    arguments.json);
}

const Registration registration{{"lvf", "one rotation decision of 1,000 and 10,000 requests", run}};

}  // namespace
}  // namespace kvd::bench::lvf_benchmark
