#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu/lab.hpp"

namespace kvd::gpu {

/// What a peer holds between commands. The Gpu is there when a command runs.
struct PeerState {
  int socket = -1;
  std::unique_ptr<Gpu> gpu;
  std::optional<GpuSlab> slab;
  std::optional<PinnedMemory> page;
  CUevent event = nullptr;
  std::vector<GpuSlab> painted;
  std::vector<std::shared_ptr<void>> kept;  ///< what a stream that still waits may need
};

/// The words of a command.
class Words {
 public:
  explicit Words(const std::string& text) : in_(text) {}
  std::string text() {
    std::string word;
    in_ >> word;
    return word;
  }
  /// Zero where there is none.
  std::uint64_t number() {
    std::uint64_t value = 0;
    in_ >> value;
    return value;
  }

 private:
  std::istringstream in_;
};

struct Answer {
  std::string text;
  UniqueFd fd;
};
using Command = Result<Answer> (*)(PeerState&, Words&, std::vector<UniqueFd>&);

/// The commands that put load on the GPU or measure it; peer_load.cpp.
[[nodiscard]] std::map<std::string, Command> load_commands();
/// The commands that make calls while one of its streams waits or is captured; peer_calls.cpp.
[[nodiscard]] std::map<std::string, Command> call_commands();
/// False once the other end of the socket has closed.
[[nodiscard]] bool still_connected(int socket);

}  // namespace kvd::gpu
