#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "kvd_client/types.hpp"

namespace kvd_pattern {

struct PatternOptions {
  std::string endpoint;
  std::string name = "kvd-pattern";
  std::uint32_t requests = 16;
  std::uint32_t prompt = 64;      ///< tokens of each prompt
  std::uint32_t new_tokens = 64;  ///< tokens each request makes
  kvd_client::ModelShape shape{4, 0, 0, 1024};
  kvd_client::Group group;  ///< it is a rank of a tensor-parallel group
  std::uint32_t device = 0;
  std::uint64_t seed = 1;
  std::chrono::milliseconds step{0};      ///< the least time that an iteration takes
  std::chrono::seconds deadline{60};      ///< for the whole run
  std::chrono::milliseconds ttft_slo{0};  ///< 0: the domain's default
  std::chrono::milliseconds tbt_slo{0};
  std::chrono::milliseconds gap_slo{0};
  bool corrupt_once = false;
  bool ring = false;  ///< commands over the ring instead of ZeroMQ
  bool json = false;
};

/// The options of the command line; none when `status`, the exit status, is to be returned at once
/// (help, or a mistake that has been explained on stderr).
std::optional<PatternOptions> parse_options(int argc, char** argv, int& status);

}  // namespace kvd_pattern
