#include "client_lib/engine/serve/kvd_memory.hpp"

#include <chrono>
#include <utility>

namespace kvd::engine {
namespace {

using namespace std::chrono_literals;

constexpr kvd_client::Duration kCommandTimeout = 10s;
constexpr kvd_client::Duration kPingTimeout = 1s;
/// Long enough to copy all of HBM over a slow link. A ticket stays open for longer only if the
/// device has failed.
constexpr kvd_client::Duration kTicketTimeout = 60s;
constexpr kvd_client::Duration kRoomTimeout = 1ms;

/// The numbers of the codes are the same on both sides (ipc/PROTOCOL.md).
Error own(const kvd_client::Error& error) {
  return make_error(static_cast<ErrorCode>(error.code), error.message);
}

Status own(const kvd_client::Status& status) {
  return status.ok() ? Status() : Status(own(status.error()));
}

kvd_client::ModelShape shape_of(const KvdMemory::Options& options, const Hyperparameters& model) {
  return {model.layers, options.layers_per_block, options.block_tokens,
          model.layout(1, 1).bytes_per_token_per_layer()};
}

/// The first look does not wait: only what is not there yet counts as waiting.
template <class Wait>
Result<Waited> wait(Wait until) {
  const kvd_client::Status now = until(kvd_client::Duration(0));
  if (now.ok()) return Waited::kNo;
  if (now.code() != kvd_client::ErrorCode::kDeadlineExceeded) return own(now.error());
  KVD_TRY(own(until(kTicketTimeout)));
  return Waited::kYes;
}

}  // namespace

Result<KvdMemory> KvdMemory::attach(const Options& options, const Hyperparameters& model) {
  kvd_client::Options how;
  how.streams_layers = true;
  how.endpoint = options.endpoint;
  how.engine_name = options.name;
  how.shape = shape_of(options, model);
  how.model = options.identity;
  auto client = kvd_client::Client::open(how);
  if (!client.ok()) return own(client.error());
  const auto session = client->session();
  if (!session.ok()) return own(session.error());
  KvdMemory memory(std::move(*client), *session);
  if (options.events) {
    KVD_ASSIGN_OR_RETURN(auto publisher, events::Publisher::open(*options.events));
    memory.announcer_ = std::make_unique<Announcer>(
        memory.client_, options.identity, session->shape.block_tokens, std::move(publisher));
  }
  return memory;
}

std::uint32_t KvdMemory::layers_per_block() const { return session_.shape.layers_per_block; }
std::uint32_t KvdMemory::block_tokens() const { return session_.shape.block_tokens; }

Status KvdMemory::submit(const kvd_client::Request& request) {
  if (announcer_) {
    announcer_->begin(request.id, request.content.tokens, request.content.salt);
  }
  return own(client_.submit(request, kCommandTimeout));
}

Status KvdMemory::abort(std::uint64_t request) {
  if (announcer_) announcer_->end(request);
  return own(client_.abort(request, kCommandTimeout));
}

Status KvdMemory::extend(std::uint64_t request, std::span<const Token> tokens) {
  if (announcer_) announcer_->extend(request, tokens);
  return own(client_.append_tokens(request, tokens, kCommandTimeout));
}

/// When the client has begun a new session by itself, iterations count from 0 again. What was
/// granted but never computed is over, too: nobody may wait for its streams.
Status KvdMemory::follow_session(bool running) {
  const auto now = client_.session();
  if (!now.ok()) return own(now.error());
  if (now->boot_id != session_.boot_id || now->generation != session_.generation) {
    session_ = *now;
    iteration_ = 0;
    if (!running) return {};
    return make_error(ErrorCode::kUnavailable, "the iteration under way is of an earlier session");
  }
  if (running || iteration_ == 0) return {};
  return own(client_.layer_done(iteration_, session_.layer_groups - 1));
}

Result<Grant> KvdMemory::step(std::span<const kvd_client::StepReport> reports, bool running) {
  KVD_TRY(follow_session(running));
  const std::uint64_t finished = running ? iteration_ - 1 : iteration_;
  const auto granted = client_.step(reports, finished, running ? iteration_ : 0, kCommandTimeout);
  if (!granted.ok()) return own(granted.error());
  iteration_ = granted->iteration;
  for (const kvd_client::StepReport& report : reports) {
    if (announcer_ && report.finished) announcer_->end(report.request);
  }
  Grant out;
  out.iteration = granted->iteration;
  for (const kvd_client::RunEntry& entry : granted->run) {
    out.streamed = out.streamed || entry.streamed;
    KVD_ASSIGN_OR_RETURN(Run run, run_of(entry));
    out.runs.push_back(std::move(run));
  }
  for (const kvd_client::HoldEntry& entry : granted->hold) {
    if (entry.reason == kvd_client::HoldReason::kOutOfMemory) out.ended.push_back(entry.request);
    if (entry.reason == kvd_client::HoldReason::kDrained) out.drained.push_back(entry.request);
  }
  for (const auto* gone : {&out.ended, &out.drained}) {
    for (const std::uint64_t request : *gone) {
      if (announcer_) announcer_->end(request);
    }
  }
  return out;
}

Result<Run> KvdMemory::run_of(const kvd_client::RunEntry& entry) {
  const std::uint64_t tokens = entry.tokens_present + entry.tokens;
  const std::uint32_t per_block = session_.shape.block_tokens;
  Run run{entry, static_cast<std::uint32_t>((tokens + per_block - 1) / per_block), {}};
  run.slots.resize(std::size_t{session_.layer_groups} * run.blocks);
  for (std::uint32_t group = 0; group < session_.layer_groups; ++group) {
    const std::span<std::byte*> slots(&run.slots[std::size_t{group} * run.blocks], run.blocks);
    KVD_TRY(own(client_.block_addresses(entry.row, group, slots)));
  }
  return run;
}

/// A run's ticket covers what came into HBM for it before the iteration; its streamed groups follow
/// while others compute.
Result<Waited> KvdMemory::ready(const Grant& grant, std::uint32_t group) {
  bool waited = false;
  for (const Run& run : grant.runs) {
    if (group != 0 || run.entry.ticket == 0) continue;
    KVD_ASSIGN_OR_RETURN(const Waited here, wait([&](kvd_client::Duration timeout) {
                           return client_.wait(run.entry.ticket, timeout);
                         }));
    waited = waited || here == Waited::kYes;
  }
  if (grant.streamed) {
    KVD_ASSIGN_OR_RETURN(const Waited here, wait([&](kvd_client::Duration timeout) {
                           return client_.wait_layer(grant.iteration, group, timeout);
                         }));
    waited = waited || here == Waited::kYes;
  }
  return waited ? Waited::kYes : Waited::kNo;
}

Status KvdMemory::done(const Grant& grant, std::uint32_t group) {
  return own(client_.layer_done(grant.iteration, group));
}

/// Ticket 0 is always complete, so this reads the poison word alone (safety rule 2).
Status KvdMemory::intact() { return own(client_.wait(0, kCommandTimeout)); }

Status KvdMemory::wait_for_room() { return own(client_.wait_for_room(kRoomTimeout)); }

Status KvdMemory::ping() { return own(client_.ping(kPingTimeout)); }

}  // namespace kvd::engine
