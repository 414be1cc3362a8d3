#include "client_lib/engine/serve/kvd_memory.hpp"

#include <chrono>
#include <utility>

namespace kvd::engine {
namespace {

using namespace std::chrono_literals;

constexpr kvd_client::Duration kCommandTimeout = 10s;
/// A copy of all of HBM over a slow link; a ticket stays open only if the device failed.
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

}  // namespace

Result<KvdMemory> KvdMemory::attach(const Options& options, const Hyperparameters& model) {
  kvd_client::Options how;
  how.endpoint = options.endpoint;
  how.engine_name = options.name;
  how.shape = shape_of(options, model);
  auto client = kvd_client::Client::open(how);
  if (!client.ok()) return own(client.error());
  const auto session = client->session();
  if (!session.ok()) return own(session.error());
  return KvdMemory(std::move(*client), *session);
}

std::uint32_t KvdMemory::layers_per_block() const { return session_.shape.layers_per_block; }
std::uint32_t KvdMemory::block_tokens() const { return session_.shape.block_tokens; }

Status KvdMemory::submit(const kvd_client::Request& request) {
  return own(client_.submit(request, kCommandTimeout));
}

Status KvdMemory::abort(std::uint64_t request) {
  return own(client_.abort(request, kCommandTimeout));
}

Result<std::vector<Run>> KvdMemory::step(std::span<const kvd_client::StepReport> reports) {
  auto granted = client_.step(reports, iteration_, 0, kCommandTimeout);
  if (granted.code() == kvd_client::ErrorCode::kInvalidArgument && iteration_ != 0) {
    // A client that attached anew does not say so where no request was lost; iterations count from
    // 0 then.
    granted = client_.step(reports, 0, 0, kCommandTimeout);
  }
  if (!granted.ok()) return own(granted.error());
  iteration_ = granted->iteration;
  std::vector<Run> runs;
  for (const kvd_client::RunEntry& entry : granted->run) {
    KVD_ASSIGN_OR_RETURN(Run run, run_of(entry));
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<Run> KvdMemory::run_of(const kvd_client::RunEntry& entry) {
  if (entry.distance != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "kvd streams layers of a request, which kvd-engine does not follow yet: "
                      "set placement.policy to \"none\"");
  }
  const std::uint64_t tokens = entry.tokens_present + entry.tokens;
  const std::uint32_t per_block = session_.shape.block_tokens;
  Run run{entry, static_cast<std::uint32_t>((tokens + per_block - 1) / per_block), {}};
  run.slots.reserve(std::size_t{session_.layer_groups} * run.blocks);
  for (std::uint32_t group = 0; group < session_.layer_groups; ++group) {
    for (std::uint32_t block = 0; block < run.blocks; ++block) {
      const auto address = client_.block_address(entry.row, group, block);
      if (!address.ok()) return own(address.error());
      run.slots.push_back(*address);
    }
  }
  return run;
}

Status KvdMemory::ready(const Run& run, std::uint32_t layer) {
  // All layers are resident: one ticket covers them.
  if (layer != 0 || run.entry.ticket == 0) return {};
  return own(client_.wait(run.entry.ticket, kTicketTimeout));
}

/// Ticket 0 is always complete, so this reads the poison word alone (safety rule 2).
Status KvdMemory::intact() { return own(client_.wait(0, kCommandTimeout)); }

Status KvdMemory::wait_for_room() { return own(client_.wait_for_room(kRoomTimeout)); }

Status KvdMemory::ping() { return own(client_.ping(kCommandTimeout)); }

}  // namespace kvd::engine
