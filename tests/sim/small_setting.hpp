#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "kvd/sim/run/setting.hpp"

namespace kvd::sim::test {

/// 2 layers in one group, 16 tokens a block of 32 KiB; an iteration of 10 ms + 1 ms a decoding
/// request, prefill 0.1 ms a token; a link of 1 GB/s each way.
inline Profile small_profile(std::int64_t hbm_blocks = 32, std::int64_t dram_blocks = 512) {
  Profile p;
  p.name = "small";
  p.shape = {2, 2, 16, Bytes(1024)};
  p.hbm = p.shape.slot_bytes() * hbm_blocks;
  p.dram = p.shape.slot_bytes() * dram_blocks;
  p.iteration.fitted = true;
  p.iteration.fixed = Seconds(0.01);
  p.iteration.sequence = Seconds(0.001);
  p.iteration.flops_per_token = 1e8;
  p.iteration.flops = 1e12;
  p.link = {1e9, 1e9, 0, Seconds(0), Seconds(0)};
  p.pipelined = false;
  return p;
}

inline Arrival arrival(double time, std::int64_t prompt, std::int64_t output,
                       std::uint32_t engine = 0) {
  Arrival a;
  a.time = Seconds(time);
  a.prompt = Tokens(prompt);
  a.output = Tokens(output);
  a.engine = engine;
  return a;
}

inline Setting small_setting(const std::string& policy, Workload workload,
                             const Profile& profile = small_profile()) {
  Setting s;
  s.engines.push_back({profile, 1, Bytes(0)});
  s.policy = policy_named(policy).value();
  s.slo = {std::chrono::milliseconds(500), std::chrono::milliseconds(30),
           std::chrono::milliseconds(60)};
  s.workload = std::move(workload);
  s.check = true;
  return s;
}

/// More than fits at a time: every request alone is at most a third of the pool.
inline Workload crowd(std::uint64_t seed, std::size_t requests = 60) {
  std::mt19937_64 random(seed);
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<std::int64_t>(low + random() % (high - low + 1));
  };
  Workload out;
  double time = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    time += static_cast<double>(between(0, 60)) * 1e-3;
    out.push_back(arrival(time, between(1, 100), between(1, 60)));
  }
  return out;
}

}  // namespace kvd::sim::test
