#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client_lib/examples/block_access.hpp"
#include "client_lib/examples/pattern_options.hpp"
#include "kvd_client/client.hpp"

namespace kvd_pattern {

struct Summary {
  std::uint64_t requests = 0;  ///< run to their end
  std::uint64_t tokens = 0;
  std::uint64_t iterations = 0;
  std::uint64_t bytes_checked = 0;
  std::uint64_t pattern_errors = 0;  ///< (token, layer) pairs whose bytes were not those written
  std::uint64_t rotations_out = 0;
  std::uint64_t rotations_in = 0;
  std::uint64_t streamed = 0;  ///< entries of run lists of which layers were streamed
  std::uint64_t restarts = 0;  ///< times the daemon went away and all was submitted again
  std::uint64_t drained = 0;   ///< requests that ended as the engine was taken out of service
  double seconds = 0;
};

/// An engine without a model: "computing" a token means checking all KV of its request and writing
/// the new token's. kvd decides who runs.
class PatternEngine {
 public:
  /// The client must be attached with options.shape.
  PatternEngine(kvd_client::Client client, const PatternOptions& options);

  /// Runs all requests to their end. The error names what stopped it, a passed deadline included.
  kvd_client::Status run();
  [[nodiscard]] const Summary& summary() const { return summary_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Progress {
    std::uint64_t tokens = 0;  ///< whose KV is in the blocks
  };

  kvd_client::Status run_all();
  kvd_client::Status part();
  /// This rank may find that another rank has announced the end and left.
  [[nodiscard]] bool ended_with_group(const kvd_client::Status& status) const;
  kvd_client::Status iterate();
  kvd_client::Status submit_all();
  /// Goes layer group by layer group through the whole batch, as a model would, so streamed groups
  /// come in order.
  kvd_client::Status run_batch(const kvd_client::StepResult& step);
  kvd_client::Status begin(const kvd_client::RunEntry& entry);
  kvd_client::Status run_group(const kvd_client::RunEntry& entry, std::uint32_t group);
  kvd_client::Status end(const kvd_client::RunEntry& entry);
  /// Tokens [first, last) of a request as far as they stand in one block.
  struct Piece {
    std::byte* block = nullptr;
    std::uint32_t group = 0;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
  };
  /// Calls visit(piece) for tokens [first, last) of the entry's request in a layer group.
  template <class Visit>
  kvd_client::Status each_block(const kvd_client::RunEntry& entry, std::uint32_t group,
                                std::uint64_t first, std::uint64_t last, Visit visit);
  /// Calls visit(layer) for the layers of a group.
  template <class Visit>
  kvd_client::Status each_layer(std::uint32_t group, Visit visit);
  kvd_client::Status wait_for(const kvd_client::RunEntry& entry);
  kvd_client::Status check(const kvd_client::RunEntry& entry, const Piece& piece);
  kvd_client::Status write(const kvd_client::RunEntry& entry, const Piece& piece);
  kvd_client::Status corrupt(const kvd_client::RunEntry& entry);
  kvd_client::Status start_over();
  void read_rotations();
  void print_progress(const kvd_client::StepResult& step);
  [[nodiscard]] kvd_client::Duration left() const;

  kvd_client::Client client_;
  const PatternOptions options_;
  const kvd_client::SessionInfo session_;
  const std::uint64_t seed_;  ///< seed of the pattern: each rank writes bytes of its own
  std::unique_ptr<BlockAccess> access_;
  const Clock::time_point start_ = Clock::now();
  std::map<std::uint64_t, Progress> open_;  ///< requests not run to their end
  std::vector<kvd_client::StepReport> reports_;
  std::vector<std::byte*> blocks_;  ///< blocks of one group, while it is looked at
  std::uint64_t iteration_ = 0;
  std::uint64_t submitted_to_ = 0;  ///< the requests up to this one are
  bool submitted_ = false;
  bool corrupted_ = false;
  Clock::time_point last_progress_ = start_;
  Summary summary_;
};

}  // namespace kvd_pattern
