#include "client_lib/examples/pattern_engine.hpp"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "client_lib/examples/pattern_bytes.hpp"

namespace kvd_pattern {

using kvd_client::ErrorCode;
using kvd_client::Status;

namespace {

constexpr std::chrono::milliseconds kNothingToRun{1};
constexpr std::chrono::milliseconds kDaemonAway{50};
constexpr std::chrono::milliseconds kOthersAway{5};
constexpr std::chrono::seconds kProgressEvery{1};
constexpr std::chrono::seconds kStatsTimeout{1};

Status ok() { return std::monostate(); }

/// Where the KV of one token in one layer stands within a block: layer by layer, token by token.
std::size_t offset_in_block(const kvd_client::ModelShape& shape, std::uint32_t layer,
                            std::uint64_t token) {
  const std::size_t row = std::size_t{layer % shape.layers_per_block} * shape.block_tokens;
  return (row + token % shape.block_tokens) * shape.bytes_per_token_per_layer;
}

const char* describe(kvd_client::HoldReason reason) {
  constexpr const char* kTexts[] = {"held",     "waiting",       "without memory", "rotated out",
                                    "promised", "without slab",  "forced out",     "complete",
                                    "paused",   "out of memory", "drained"};
  const auto index = static_cast<std::size_t>(reason);
  return index < std::size(kTexts) ? kTexts[index] : "held";
}

std::map<kvd_client::HoldReason, std::size_t> count_holds(const kvd_client::StepResult& step) {
  std::map<kvd_client::HoldReason, std::size_t> counts;
  for (const kvd_client::HoldEntry& entry : step.hold) ++counts[entry.reason];
  return counts;
}

}  // namespace

PatternEngine::PatternEngine(kvd_client::Client client, const PatternOptions& options)
    : client_(std::move(client)),
      options_(options),
      session_(client_.session().value()),
      seed_(options.seed + (std::uint64_t{options.group.rank} << 32)) {
  for (std::uint64_t id = 1; id <= options_.requests; ++id) open_[id] = {};
}

kvd_client::Duration PatternEngine::left() const {
  const auto left = start_ + options_.deadline - Clock::now();
  return std::max(kvd_client::Duration(0), std::chrono::duration_cast<kvd_client::Duration>(left));
}

Status PatternEngine::run() {
  auto access = access_to(session_);
  if (!access.ok()) return access.error();
  access_ = std::move(access).value();
  Status status = run_all();
  if (options_.group.ranks == 0) read_rotations();
  summary_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return status;
}

Status PatternEngine::run_all() {
  Status status = ok();
  while (status.ok() && !(open_.empty() && reports_.empty())) {
    if (left() == kvd_client::Duration(0)) {
      return kvd_client::Error{ErrorCode::kDeadlineExceeded,
                               std::to_string(open_.size()) + " requests have not ended in time"};
    }
    status = submitted_ ? iterate() : submit_all();
    if (ended_with_group(status)) return ok();
    if (status.code() == ErrorCode::kUnavailable) status = start_over();
    if (options_.group.ranks > 0 && status.code() == ErrorCode::kWouldBlock) {
      std::this_thread::sleep_for(kOthersAway);  // until the other ranks have attached
      status = ok();
    }
  }
  return status.ok() ? part() : status;
}

// The session of all ranks ends with the first rank that leaves. A step is answered only when the
// other ranks have taken the one before. So once this step is answered they have run everything.
Status PatternEngine::part() {
  if (options_.group.ranks == 0) return ok();
  const auto step = client_.step({}, iteration_, 0, left());
  if (step.ok() || ended_with_group(step.error())) return ok();
  return step.error();
}

bool PatternEngine::ended_with_group(const Status& status) const {
  return options_.group.ranks > 0 && open_.empty() && status.code() == ErrorCode::kUnavailable;
}

Status PatternEngine::submit_all() {
  const bool submits = options_.group.rank == 0;  // for all ranks
  for (const auto& [id, progress] : open_) {
    if (!submits || id <= submitted_to_) continue;
    auto status = client_.submit({id,
                                  options_.prompt,
                                  options_.new_tokens,
                                  options_.ttft_slo,
                                  options_.tbt_slo,
                                  {},
                                  options_.gap_slo},
                                 left());
    if (!status.ok()) return status;
    submitted_to_ = id;
  }
  submitted_ = true;
  return ok();
}

/// The daemon went away and knows none of the requests any more: all begin again.
Status PatternEngine::start_over() {
  for (auto& [id, progress] : open_) progress.tokens = 0;
  reports_.clear();
  iteration_ = 0;
  submitted_ = false;
  submitted_to_ = 0;
  ++summary_.restarts;
  std::this_thread::sleep_for(std::min<kvd_client::Duration>(kDaemonAway, left()));
  return ok();
}

Status PatternEngine::iterate() {
  const auto begin = Clock::now();
  // In a group, a quicker rank may end the session with this step, so the rotations are read before
  // it.
  if (open_.empty() && options_.group.ranks > 0) read_rotations();
  const auto step = client_.step(reports_, iteration_, 0, left());
  if (!step.ok()) return step.error();
  reports_.clear();
  iteration_ = step->iteration;
  for (const kvd_client::HoldEntry& entry : step->hold) {
    if (entry.reason == kvd_client::HoldReason::kDrained)
      summary_.drained += open_.erase(entry.request);
    if (entry.reason != kvd_client::HoldReason::kOutOfMemory) continue;
    return kvd_client::Error{
        kvd_client::ErrorCode::kOutOfMemory,
        "kvd ended request " + std::to_string(entry.request) + ": no memory became free for it"};
  }
  Status status = run_batch(*step);
  if (!status.ok()) return status;
  print_progress(*step);
  if (step->run.empty()) return open_.empty() ? ok() : client_.wait_for_room(kNothingToRun);
  ++summary_.iterations;
  std::this_thread::sleep_until(begin + options_.step);
  return ok();
}

Status PatternEngine::run_batch(const kvd_client::StepResult& step) {
  bool streamed = false;
  for (const kvd_client::RunEntry& entry : step.run) {
    Status status = begin(entry);
    if (!status.ok()) return status;
    streamed = streamed || entry.streamed;
  }
  for (std::uint32_t group = 0; group < session_.layer_groups && !step.run.empty(); ++group) {
    Status status = streamed ? client_.wait_layer(step.iteration, group, left()) : ok();
    for (const kvd_client::RunEntry& entry : step.run) {
      if (status.ok()) status = run_group(entry, group);
    }
    if (status.ok()) status = client_.layer_done(step.iteration, group);
    if (!status.ok()) return status;
  }
  for (const kvd_client::RunEntry& entry : step.run) {
    Status status = end(entry);
    if (!status.ok()) return status;
  }
  return ok();
}

Status PatternEngine::begin(const kvd_client::RunEntry& entry) {
  const auto progress = open_.find(entry.request);
  if (progress == open_.end() || progress->second.tokens != entry.tokens_present) {
    return kvd_client::Error{ErrorCode::kInternal, "kvd runs request " +
                                                       std::to_string(entry.request) +
                                                       " from another token than it stands at"};
  }
  if (entry.streamed) ++summary_.streamed;
  return wait_for(entry);
}

Status PatternEngine::run_group(const kvd_client::RunEntry& entry, std::uint32_t group) {
  const std::uint64_t present = entry.tokens_present;
  Status status =
      each_block(entry, group, 0, present, [&](const Piece& piece) { return check(entry, piece); });
  if (!status.ok()) return status;
  return each_block(entry, group, present, present + entry.tokens,
                    [&](const Piece& piece) { return write(entry, piece); });
}

Status PatternEngine::end(const kvd_client::RunEntry& entry) {
  const std::uint64_t after = entry.tokens_present + entry.tokens;
  if (options_.corrupt_once && !corrupted_) {
    Status status = corrupt(entry);
    if (!status.ok()) return status;
  }
  const bool finished = after >= std::uint64_t{options_.prompt} + options_.new_tokens;
  const auto progress = open_.find(entry.request);
  progress->second.tokens = after;
  summary_.tokens += entry.tokens;
  reports_.push_back({entry.request, after, finished});
  if (finished) {
    open_.erase(progress);
    ++summary_.requests;
  }
  return ok();
}

/// A GPU's work goes on without the bytes when the daemon dies, which confirm() then tells.
Status PatternEngine::wait_for(const kvd_client::RunEntry& entry) {
  if (entry.ticket == 0) return ok();
  if (access_->stream() == nullptr) return client_.wait(entry.ticket, left());
  return client_.wait_on_stream(entry.ticket, access_->stream());
}

template <class Visit>
Status PatternEngine::each_block(const kvd_client::RunEntry& entry, std::uint32_t group,
                                 std::uint64_t first, std::uint64_t last, Visit visit) {
  const std::uint32_t block_tokens = session_.shape.block_tokens;
  blocks_.resize((last + block_tokens - 1) / block_tokens);
  Status found = client_.block_addresses(entry.row, group, blocks_);
  if (!found.ok()) return found;
  for (std::uint64_t token = first; token < last;) {
    const std::uint64_t block = token / block_tokens;
    const std::uint64_t end = std::min<std::uint64_t>(last, (block + 1) * block_tokens);
    Status status = visit(Piece{blocks_[block], group, token, end});
    if (!status.ok()) return status;
    token = end;
  }
  return ok();
}

template <class Visit>
Status PatternEngine::each_layer(std::uint32_t group, Visit visit) {
  const kvd_client::ModelShape& shape = session_.shape;
  const std::uint32_t first = group * shape.layers_per_block;
  const std::uint32_t last = std::min(shape.layers, first + shape.layers_per_block);
  Status status = ok();
  for (std::uint32_t layer = first; layer < last && status.ok(); ++layer) status = visit(layer);
  return status;
}

Status PatternEngine::check(const kvd_client::RunEntry& entry, const Piece& piece) {
  const auto view = access_->open(piece.block, session_.block_bytes, BlockAccess::Purpose::kRead);
  if (!view.ok()) return view.error();
  Status confirmed = client_.confirm();
  if (!confirmed.ok()) return confirmed;
  const std::size_t bytes = session_.shape.bytes_per_token_per_layer;
  std::uint64_t errors = 0;
  Status status = each_layer(piece.group, [&](std::uint32_t layer) {
    for (std::uint64_t t = piece.first; t < piece.last; ++t) {
      const std::span kv(*view + offset_in_block(session_.shape, layer, t), bytes);
      summary_.bytes_checked += kv.size();
      if (!matches(kv, {seed_, entry.request, t, layer})) ++errors;
    }
    return ok();
  });
  // The memory goes with the daemon, so only reads that are confirmed afterwards were in time.
  if (errors > 0) confirmed = client_.confirm();
  if (!confirmed.ok()) return confirmed;
  summary_.pattern_errors += errors;
  return status;
}

Status PatternEngine::write(const kvd_client::RunEntry& entry, const Piece& piece) {
  const std::size_t bytes = session_.shape.bytes_per_token_per_layer;
  return each_layer(piece.group, [&](std::uint32_t layer) -> Status {
    std::byte* const row = piece.block + offset_in_block(session_.shape, layer, piece.first);
    const std::size_t row_bytes = (piece.last - piece.first) * bytes;
    const auto view = access_->open(row, row_bytes, BlockAccess::Purpose::kWrite);
    if (!view.ok()) return view.error();
    for (std::uint64_t t = piece.first; t < piece.last; ++t) {
      fill(std::span(*view + (t - piece.first) * bytes, bytes), {seed_, entry.request, t, layer});
    }
    return access_->close(row, row_bytes);
  });
}

/// The control that proves the check: one byte of what was just written.
Status PatternEngine::corrupt(const kvd_client::RunEntry& entry) {
  const auto address = client_.block_address(entry.row, 0, 0);
  if (!address.ok()) return address.error();
  const auto byte = access_->open(*address, 1, BlockAccess::Purpose::kRead);
  if (!byte.ok()) return byte.error();
  **byte ^= std::byte{1};
  corrupted_ = true;
  return access_->close(*address, 1);
}

/// For the summary only: a daemon that does not answer leaves the numbers as they were.
void PatternEngine::read_rotations() {
  const auto stats = client_.stats(kStatsTimeout);
  if (!stats.ok()) return;
  summary_.rotations_out = stats->rotations_out;
  summary_.rotations_in = stats->rotations_in;
}

void PatternEngine::print_progress(const kvd_client::StepResult& step) {
  const auto now = Clock::now();
  if (options_.json || now - last_progress_ < kProgressEvery) return;
  last_progress_ = now;
  read_rotations();
  std::string holds;
  for (const auto& [reason, count] : count_holds(step)) {
    holds += ", " + std::to_string(count) + " " + describe(reason);
  }
  std::fprintf(stderr,
               "%s: %llu of %u requests done, %zu running%s, %llu tokens, %llu rotations out, "
               "%llu errors\n",
               options_.name.c_str(), static_cast<unsigned long long>(summary_.requests),
               options_.requests, step.run.size(), holds.c_str(),
               static_cast<unsigned long long>(summary_.tokens),
               static_cast<unsigned long long>(summary_.rotations_out),
               static_cast<unsigned long long>(summary_.pattern_errors));
}

}  // namespace kvd_pattern
