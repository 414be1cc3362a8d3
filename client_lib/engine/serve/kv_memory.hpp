#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd_client/types.hpp"

namespace kvd::engine {

/// A request of the next iteration and where its KV stands.
struct Run {
  kvd_client::RunEntry entry;
  std::uint32_t blocks = 0;       ///< enough for the tokens present and those to process
  std::vector<std::byte*> slots;  ///< of block b in layer group g: slots[g * blocks + b]
};

/// Who may run, and the memory they run in: kvd's, or this process's own.
/// Owner:  the scheduler's thread.
/// Errors: Unavailable when all requests are lost and have to be submitted again; what else a call
///         returns concerns that call.
class KvMemory {
 public:
  virtual ~KvMemory() = default;

  [[nodiscard]] virtual std::uint32_t layers_per_block() const = 0;
  [[nodiscard]] virtual std::uint32_t block_tokens() const = 0;

  virtual Status submit(const kvd_client::Request& request) = 0;
  virtual Status abort(std::uint64_t request) = 0;
  /// Reports the iteration before and learns what the next one shall do.
  virtual Result<std::vector<Run>> step(std::span<const kvd_client::StepReport> reports) = 0;
  /// Returns once the run's blocks of this layer may be touched. Asked before each layer, so that
  /// layers may come one after the other.
  virtual Status ready(const Run& run, std::uint32_t layer) = 0;
  /// Whether what was read in this iteration was what had been written; asked before a token
  /// leaves.
  virtual Status intact() = 0;
  /// Nothing can run: returns when something may have changed, or soon.
  virtual Status wait_for_room() = 0;
  /// While there is nothing to do: whether requests would be taken.
  virtual Status ping() = 0;
};

}  // namespace kvd::engine
