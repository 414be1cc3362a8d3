#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "ipc/vocabulary/deposit.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/effects.hpp"
#include "kvd/core/events.hpp"
#include "kvd/core/status.hpp"
#include "kvd/core/tuning.hpp"
#include "kvd/store/blocks.hpp"
#include "kvd/store/staging.hpp"

/// What the Controller knows of a request.
namespace kvd::core {

/// What a victim on another engine is to give. kForBytes: any bytes will do, so the promise ends
/// when as many are free elsewhere. kForSlots: only its own slots will do, because they stand in a
/// slab that has to change class, or a running request starves for them.
enum class Promise : std::uint8_t { kForBytes, kForSlots };

/// What an answer about a request's layers was worked out from; while it is the same, so is the
/// answer.
struct LayersSeen {
  std::uint64_t table = 0;    ///< store::BlockTable::changes
  std::uint64_t staging = 0;  ///< store::Staging::changes
  std::uint32_t sealed = 0;
  bool paused = false;
  bool fetching = false;
  std::vector<bool> away;
  friend bool operator==(const LayersSeen&, const LayersSeen&) = default;
};
/// An answer, and what it was worked out from.
template <class T>
struct Remembered {
  std::optional<LayersSeen> seen;
  T answer{};
};

/// Of one request.
struct LayerAnswers {
  Remembered<RowSlots> row;                              ///< of a published table
  Remembered<std::vector<StreamLayers::Fetch>> fetches;  ///< of an iteration; `after` is not set
  Remembered<std::int64_t> spare;                        ///< copies in DRAM it can do without
  std::optional<LayersSeen> evicted, fetched, staged;    ///< nothing was left to do
};

/// A request between submit and finish.
///
/// Any block may be in HBM, in DRAM or in both, whatever the state, but for two rules: a rotary one
/// has nothing in HBM, and blocks that are not full are in HBM while it runs. Blocks that are
/// missing in HBM when it runs are streamed through `staging`. `tokens` is what the engine has
/// reported as complete, `planned` adds what the last granted iteration will append: with a
/// pipelined engine the two differ by the iteration that is still running.
struct Request {
  RequestKey key;
  Tokens prompt;
  Tokens max_new;
  Slo slo;
  std::optional<PredictedLength> predicted;
  RequestState state = RequestState::kWaiting;

  Tokens tokens;
  Tokens planned;
  std::uint64_t last_iteration = 0;  ///< the last one it was granted in
  Tokens granted;                    ///< tokens of that grant

  store::BlockTable table;
  std::uint32_t sealed = 0;  ///< so many leading blocks are sealed
  std::uint32_t synced = 0;  ///< so many leading blocks are in DRAM, or on their way there

  // Layer streaming (streams.hpp).
  std::vector<bool> away;      ///< layer groups whose full blocks shall be in DRAM; empty: none
  std::uint32_t distance = 0;  ///< k, where `away` follows one
  store::Staging staging;
  LayerAnswers known;
  std::uint64_t staging_free = 0;  ///< layer_mark from which on staging may be overwritten
  std::uint64_t streamed_in = 0;   ///< the last iteration that streams some of it
  std::vector<Ticket> streams;     ///< live ones with fetches of it
  bool paused = false;             ///< by the placement policy: keeps its seat, does not run
  bool layerwise = false;          ///< prefills chunk by chunk into DRAM, and leaves then

  TimePoint arrived{0};
  TimePoint last_token{0};  ///< valid once a token was made
  bool has_token = false;
  std::optional<TokenDeposit<Nanoseconds>> deposit;  ///< from the first token on
  TimePoint run_since{0};
  TimePoint out_since{0};    ///< valid once it was rotated out
  TimePoint first_token{0};  ///< valid once a token was made
  double vlt_s = 0;
  std::uint32_t skips = 0;
  std::uint64_t rotations = 0;

  std::uint64_t pause_order = 0;  ///< of those paused
  std::uint64_t claim = 0;        ///< order of its claim on memory; 0: none
  bool awaits_mapping = false;    ///< its claim waits for a slab acknowledgement
  bool starved = false;           ///< runs, but has no block for its next token or for staging
  bool promised = false;          ///< victim of another's need, until its engine's next step
  Promise promise = Promise::kForBytes;
  bool leaving = false;     ///< victim whose running iteration has not finished yet
  bool held_back = false;   ///< waits: the admission policy would not have it prefill now
  bool in_line = false;     ///< listed among those that wait (requests.hpp)
  bool hopeless = false;    ///< ends at its engine's next step, for want of memory
  bool forced_out = false;  ///< by a rotate command, until one brings it back
  bool fresh = false;       ///< came in or could not leave, no token made since: not a victim
  Ticket in_ticket;         ///< the swap-in the engine has to wait for at its next run
  Ticket copy;              ///< the rotation under way; at most one
  Ticket sync;              ///< the background copy to DRAM under way; at most one
  Ticket fetch;             ///< the fetch of layers that shall stay under way; at most one

  [[nodiscard]] std::int64_t hbm_slots() const { return table.in(Tier::kHbm) + staging.count(); }
  [[nodiscard]] std::int64_t dram_slots() const { return table.in(Tier::kDram); }
  [[nodiscard]] bool holds_hbm() const { return hbm_slots() > 0; }
  [[nodiscard]] LayersSeen layers_seen() const {
    return {table.changes(), staging.changes(), sealed, paused, static_cast<bool>(fetch), away};
  }
  [[nodiscard]] bool runs() const {
    return state == RequestState::kPrefill || state == RequestState::kRunning;
  }
  /// What it must have room for in order to run: one token more than it has, so that what comes in
  /// can always make one; never more than it asked for.
  [[nodiscard]] Tokens room_to_run() const {
    const bool has_prompt = state != RequestState::kWaiting && state != RequestState::kPrefill;
    const Tokens present = has_prompt ? tokens : prompt;
    return std::min(present + Tokens(1), prompt + max_new);
  }
  /// Tokens of the answer made so far.
  [[nodiscard]] Tokens answer() const {
    return has_token ? tokens - prompt + Tokens(1) : Tokens(0);
  }
  /// All its blocks are in HBM.
  [[nodiscard]] bool complete() const {
    return !fetch && staging.empty() && table.all_in(Tier::kHbm);
  }
  /// Wants HBM and has no claim on it yet.
  [[nodiscard]] bool queues() const {
    return (state == RequestState::kWaiting || state == RequestState::kRotary) && claim == 0 &&
           !forced_out && !paused;
  }
};

/// In the order in which they came.
struct ByArrival {
  bool operator()(const Request* a, const Request* b) const {
    return a->arrived != b->arrived ? a->arrived < b->arrived : a->key < b->key;
  }
};
using Line = std::set<Request*, ByArrival>;
struct ByKey {
  bool operator()(const Request* a, const Request* b) const { return a->key < b->key; }
};

}  // namespace kvd::core
