#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client_lib/engine/serve/kvd_memory.hpp"
#include "client_lib/engine/serve/scheduler.hpp"

namespace kvd::engine {

struct Options {
  std::string model_file;    ///< one of these two
  std::string random_model;  ///< as parse_random_model() reads it
  std::string model_name;    ///< empty: the model's own
  std::uint16_t port = 8480;
  bool no_kvd = false;
  std::uint32_t chunk = 0;    ///< with no_kvd: the most prompt tokens that an iteration takes
  std::uint32_t threads = 0;  ///< 0: one a CPU, but for one
  KvdMemory::Options memory;
  Scheduler::Config scheduler;
};

/// The options of the command line; none when `status`, the exit status, is to be returned at once
/// (help, or a mistake that has been explained on stderr).
std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace kvd::engine
