#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client_lib/engine/model/hyperparameters.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd_client/types.hpp"

namespace kvd::engine {

/// A request of the next iteration and where its KV stands.
struct Run {
  kvd_client::RunEntry entry;
  std::uint32_t blocks = 0;       ///< enough for the tokens present and those to process
  std::vector<std::byte*> slots;  ///< slot of block b in layer group g: slots[g * blocks + b]
};

/// What the next iteration is to do.
struct Grant {
  std::uint64_t iteration = 0;
  bool streamed = false;  ///< blocks of some run arrive while the iteration computes
  std::vector<Run> runs;
  std::vector<std::uint64_t> ended;    ///< requests that have ended for want of memory
  std::vector<std::uint64_t> drained;  ///< the same, because this engine is out of service
};

/// Whether the engine had to wait for something.
enum class Waited : bool { kNo, kYes };

/// Decides which requests may run, and owns the memory they run in: kvd's, or this process's own.
/// Owner:  the scheduler's thread; ready(), done() and intact() the one that computes, beside it.
/// Errors: Unavailable when all requests are lost and have to be submitted again; what else a call
///         returns concerns that call.
class KvMemory {
 public:
  virtual ~KvMemory() = default;

  [[nodiscard]] virtual std::uint32_t layers_per_block() const = 0;
  [[nodiscard]] virtual std::uint32_t block_tokens() const = 0;

  virtual Status submit(const kvd_client::Request& request) = 0;
  virtual Status abort(std::uint64_t request) = 0;
  /// Adds tokens behind those of submit(), so that others find the blocks that they fill. Call it
  /// before the report that ends the request.
  virtual Status extend(std::uint64_t request, std::span<const Token> tokens) = 0;
  /// Reports what finished and learns what the next iteration shall do. `running`: the iteration
  /// granted last still computes; otherwise nothing of it reads or writes a block any more.
  virtual Result<Grant> step(std::span<const kvd_client::StepReport> reports, bool running) = 0;
  /// Returns once the grant's blocks of this layer group may be touched. Groups are asked for one
  /// after the other.
  virtual Result<Waited> ready(const Grant& grant, std::uint32_t group) = 0;
  /// All reads and writes of this layer group and of those before it are done.
  virtual Status done(const Grant& grant, std::uint32_t group) = 0;
  /// Whether what was read in this iteration was what had been written; asked before a token
  /// leaves.
  virtual Status intact() = 0;
  /// Called when nothing can run. Returns when something may have changed, or soon.
  virtual Status wait_for_room() = 0;
  /// Asks whether requests would be accepted, while there is nothing else to do.
  virtual Status ping() = 0;
};

}  // namespace kvd::engine
