#pragma once

#include <cstdint>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/events.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::sim {

using planner::Seconds;

/// How long an iteration takes on the device, before it waits for any copy. With T the KV tokens
/// that the decoding requests read, P the prompt tokens of the iteration, n its decoding requests:
///
///   fitted decode:  (n > 0 ? fixed + context_token * T + sequence * n : 0)
///                   + (P > 0 ? prefill_fixed + compute(P) + pairs : 0)
///   roofline:       fixed + sequence * n + max(weight_bytes / B, compute(P + n))
///                   + kv_bytes * T / B + pairs
///
/// and in either case no less than `least`, where the iteration computes anything.
///
///   compute(k) = flops_per_token * k / (flops * flops_efficiency)
///   B          = hbm_bytes_s * hbm_efficiency
///   pairs      = attention_flops_per_pair * (query, context) pairs of the prompt tokens, over the
///                same FLOPS: a chunk of c tokens after p present ones has c * p + c * (c + 1) / 2
///
/// Source: OrbitFlow's published calibration is `fitted`; the roofline is kvd design.
struct IterationModel {
  bool fitted = false;
  Seconds fixed{0};
  Seconds least{0};          ///< the shortest iteration (of an engine that is paced)
  Seconds context_token{0};  ///< per KV token read; fitted only
  Seconds sequence{0};       ///< per decoding request
  Seconds prefill_fixed{0};  ///< fitted only
  double weight_bytes = 0;   ///< read once an iteration; roofline only
  double hbm_bytes_s = 0;    ///< roofline only
  double hbm_efficiency = 1;
  double flops_per_token = 0;
  double flops = 0;
  double flops_efficiency = 1;
  double attention_flops_per_pair = 0;
};

/// The link between HBM and DRAM. A copy of n slots of s bytes takes per_copy + n * (per_slot + s /
/// rate). The rate is that of its direction, or a share of `shared` while both directions are busy
/// (DRAM that reads and writes at one rate).
struct LinkModel {
  double h2d_bytes_s = 0;
  double d2h_bytes_s = 0;
  double shared_bytes_s = 0;  ///< ceiling over both directions together; 0: none
  Seconds per_copy{0};        ///< launch of a copy
  Seconds per_slot{0};        ///< what each segment costs by itself; it makes small segments slow
};

/// What the engine itself allows, besides memory.
struct EngineLimits {
  std::uint32_t max_num_seqs = 256;
  /// The most prompt tokens of one iteration, summed over requests; 0: any number.
  std::int64_t max_batched_tokens = 0;
  /// The largest sum of final lengths of the requests inside; 0: any.
  std::int64_t max_total_tokens = 0;
  /// The longest prompt and answer of one request together, by the model; 0: as long as HBM can
  /// hold.
  std::int64_t max_model_len = 0;
};

/// A model on a machine. `ours` names the figures that nobody published.
struct Profile {
  std::string name;
  std::string description;
  std::string source;  ///< where the figures come from
  std::string ours;    ///< which of them are this project's estimates, and why
  core::ModelClass shape;
  Bytes hbm;   ///< for KV
  Bytes dram;  ///< for KV
  IterationModel iteration;
  LinkModel link;
  EngineLimits limits;
  /// Step t + 1 is asked for while t runs, so that swaps overlap it (SuperInfer); if false, between
  /// iterations.
  bool pipelined = true;
  /// Time charged to the virtual clock for each node that the placement solver visits, and for each
  /// call.
  Seconds solver_node{0};
  Seconds solver_call{0};
};

/// Errors: InvalidArgument naming every figure that is missing, negative or not finite, and for a
/// model of which not even one block fits HBM and DRAM.
[[nodiscard]] Status check(const Profile& profile);

/// What one iteration processes.
struct Batch {
  std::int64_t decoding = 0;        ///< requests that make one token each
  std::int64_t context_tokens = 0;  ///< KV tokens that those requests read
  std::int64_t prompt_tokens = 0;
  double prompt_pairs = 0;  ///< (query, context) pairs of the prompt tokens
};

/// Precondition: check() of the profile.
[[nodiscard]] Seconds iteration_time(const Profile& profile, const Batch& batch);

}  // namespace kvd::sim
