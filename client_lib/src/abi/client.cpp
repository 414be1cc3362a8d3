#include "kvd_client/client.hpp"

#include <errno.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client_lib/src/attach/attach.hpp"
#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/core/core.hpp"
#include "client_lib/src/memory/mapping_hold.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/slo_class.hpp"

namespace kvd_client {

using kvd::client::public_error;
using kvd::client::public_result;

class __attribute__((visibility("hidden"))) Client::Impl : public kvd::client::Core {
 public:
  using Core::Core;
};

namespace {

kvd::client::Introduction introduction_of(const Options& options) {
  kvd::client::Introduction introduction;
  introduction.endpoint = kvd::client::resolve_endpoint(options.endpoint);
  introduction.name =
      options.engine_name.empty() ? program_invocation_short_name : options.engine_name;
  introduction.shape = kvd::client::to_wire(options.shape);
  introduction.shape.device = options.device;
  introduction.transport = static_cast<kvd::wire::TransportKind>(options.transport);
  introduction.maps = options.memory != kUnmappedMemory;
  introduction.slab_kinds = introduction.maps ? options.memory : kHostMemory | kCudaMemory;
  introduction.streams_layers = options.streams_layers;
  if (options.group.ranks > 0) {
    introduction.group.emplace();
    introduction.group->group = options.group.id;
    introduction.group->ranks = options.group.ranks;
    introduction.group->rank = options.group.rank;
  }
  return introduction;
}

}  // namespace

std::string_view name(ErrorCode code) { return kvd::name(static_cast<kvd::ErrorCode>(code)); }

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;

Client& Client::operator=(Client&& other) noexcept {
  // The client that was here before leaves in order, through its destructor.
  const Client old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}

Client::~Client() {
  if (impl_ == nullptr) return;
  if (impl_->link.forked()) {
    // In a forked child neither the thread nor the mappings exist, and the sockets are the
    // parent's: touch nothing.
    (void)impl_.release();
    return;
  }
  impl_->close();
}

Result<Client> Client::open(const Options& options) {
  if ((options.memory & kCudaMemory) != 0 && !kvd::client::Gpu::is_built()) {
    return Error{
        ErrorCode::kUnsupported,
        "this kvd client library is built without CUDA: build it where the headers of CUDA "
        "13.0 or newer are, or ask for host memory only"};
  }
  auto impl =
      std::make_unique<Impl>(introduction_of(options), options.attach_timeout, options.model);
  const auto status = impl->link.connect();
  if (!status.ok()) return public_error(status.error());
  return Client(std::move(impl));
}

Result<SessionInfo> Client::session() const {
  const auto welcome = impl_->welcome();
  if (!welcome.ok()) return public_error(welcome.error());
  kvd_client::SessionInfo info = kvd::client::to_public(*welcome);
  info.device = impl_->device();
  return info;
}

Status Client::hold_mappings(Duration timeout) {
  const kvd::TimePoint now = kvd::SteadyClock().now();
  const auto left = std::clamp(timeout, Duration(0), kvd::TimePoint::max() - now);
  return public_result(kvd::client::MappingHold::of_process().hold(now + left));
}

void Client::release_mappings() { kvd::client::MappingHold::of_process().release(); }

Status Client::ping(Duration timeout) { return public_result(impl_->ping(timeout)); }

Result<Region> Client::allocate_region(std::uint64_t bytes, Duration timeout) {
  return public_result(impl_->regions.allocate(bytes, timeout));
}

Status Client::free_region(std::uint64_t id, Duration timeout) {
  return public_result(impl_->regions.free(id, timeout));
}

Result<Region> Client::reserve_region(std::uint64_t bytes, Duration timeout) {
  return public_result(impl_->regions.reserve(bytes, timeout));
}

Result<std::uint64_t> Client::grow_region(std::uint64_t id,
                                          std::span<const std::uint32_t> positions,
                                          Duration timeout) {
  return public_result(impl_->regions.grow(id, positions, timeout));
}

Status Client::back_region(std::uint64_t id, std::span<const std::uint32_t> positions,
                           Duration timeout) {
  return public_result(impl_->regions.back(id, positions, timeout));
}

Status Client::shrink_region(std::uint64_t id, std::uint64_t part, Duration timeout, bool idle) {
  return public_result(impl_->regions.shrink(id, part, timeout, idle));
}

Result<std::uint64_t> Client::share_region(std::uint64_t id, const Demand& demand,
                                           Duration timeout) {
  return public_result(impl_->regions.share(id, demand, timeout));
}

Result<RegionView> Client::view_region(std::uint64_t id, Duration timeout) {
  return public_result(impl_->regions.view(id, timeout));
}

Status Client::submit(const Request& request, Duration timeout) {
  return public_result(impl_->requests.submit(request, timeout));
}

Status Client::append_tokens(std::uint64_t request, std::span<const std::uint32_t> tokens,
                             Duration timeout) {
  return public_result(impl_->requests.append_tokens(kvd::RequestId(request), tokens, timeout));
}

Status Client::name_blocks(std::uint64_t request, std::uint32_t first,
                           std::span<const Digest> digests, Duration timeout) {
  return public_result(
      impl_->requests.name_blocks(kvd::RequestId(request), first, digests, timeout));
}

Result<StepResult> Client::step(std::span<const StepReport> reports,
                                std::uint64_t iteration_finished, std::uint64_t iteration_running,
                                Duration timeout) {
  const auto entries = kvd::client::to_wire(reports);
  kvd::wire::StepCommand command;
  command.body.iteration_finished = iteration_finished;
  command.body.iteration_running = iteration_running;
  command.reports = entries;
  return public_result(impl_->requests.step(command, timeout));
}

Status Client::wait(std::uint64_t ticket, Duration timeout) {
  return public_result(impl_->requests.wait_for_ticket(kvd::Ticket(ticket), timeout));
}

Status Client::wait_on_stream(std::uint64_t ticket, void* stream) {
  return public_result(impl_->requests.wait_on_stream(kvd::Ticket(ticket), stream));
}

Status Client::wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  return public_result(impl_->requests.wait_layer_on_stream(iteration, group, stream));
}

Status Client::layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  return public_result(impl_->requests.layer_done_on_stream(iteration, group, stream));
}

Status Client::confirm() { return public_result(impl_->requests.confirm()); }

Status Client::wait_layer(std::uint64_t iteration, std::uint32_t group, Duration timeout) {
  return public_result(impl_->requests.wait_for_layer(iteration, group, timeout));
}

Status Client::layer_done(std::uint64_t iteration, std::uint32_t group) {
  return public_result(impl_->requests.layer_done(iteration, group));
}

Status Client::wait_for_room(Duration timeout) {
  return public_result(impl_->requests.wait_for_room(timeout));
}

Result<std::byte*> Client::block_address(std::uint32_t row, std::uint32_t group,
                                         std::uint32_t block) {
  return public_result(impl_->requests.block_address(row, group, block));
}

Status Client::block_addresses(std::uint32_t row, std::uint32_t group,
                               std::span<std::byte*> addresses) {
  return public_result(impl_->requests.block_addresses(row, group, addresses));
}

Status Client::finish(std::uint64_t request, Duration timeout) {
  const kvd::RequestId id(request);
  return public_result(
      impl_->requests.end(kvd::wire::FinishCommand{kvd::client::target_of(id)}, id, timeout));
}

Status Client::abort(std::uint64_t request, Duration timeout) {
  const kvd::RequestId id(request);
  return public_result(
      impl_->requests.end(kvd::wire::AbortCommand{kvd::client::target_of(id)}, id, timeout));
}

Status Client::rotate(std::uint64_t request, RotateDirection direction, Duration timeout) {
  const kvd::wire::RotateBody body{request, static_cast<std::uint32_t>(direction), 0};
  return public_result(impl_->requests.rotate(body, timeout));
}

Result<std::uint32_t> Client::allocate_blocks(std::uint64_t request, std::uint64_t tokens,
                                              Duration timeout) {
  return public_result(impl_->requests.allocate_blocks(
      kvd::RequestId(request), kvd::Tokens(static_cast<std::int64_t>(tokens)), timeout));
}

Result<Placement> Client::place(std::span<const std::uint64_t> requests, Duration timeout) {
  return public_result(impl_->requests.place(requests, timeout));
}

Result<Stats> Client::stats(Duration timeout) { return public_result(impl_->stats(timeout)); }

Result<ScheduleResult> Client::schedule(const ScheduleInput& input, Duration timeout) {
  const auto requests = kvd::client::to_wire(input.requests);
  return public_result(impl_->requests.schedule({kvd::client::to_wire(input), requests}, timeout));
}

Status Client::set_gaps(std::span<const RequestGap> gaps, Duration timeout) {
  return public_result(impl_->requests.set_gaps(kvd::client::to_wire(gaps), timeout));
}

std::uint32_t Client::slo_class_number(std::string_view name) {
  return kvd::slo_class_number(name);
}

Caches Client::caches() { return Caches(*impl_); }

Result<std::uint64_t> Caches::open(const CacheOptions& options, Duration timeout) {
  return public_result(impl_->caches.open(options, timeout));
}

Status Caches::close(std::uint64_t cache, Duration timeout) {
  return public_result(impl_->caches.close(cache, timeout));
}

Result<std::uint64_t> Caches::lookup(std::uint64_t cache, std::span<const Digest> digests,
                                     Duration timeout) {
  return public_result(impl_->caches.lookup(cache, digests, timeout));
}

Status Caches::post_lookup(std::uint64_t cache, std::span<const Digest> digests) {
  return public_result(impl_->caches.post_lookup(cache, digests));
}

Status Caches::post_drop(std::uint64_t cache, std::span<const Digest> digests) {
  return public_result(impl_->caches.post_drop(cache, digests));
}

Status Caches::store(std::uint64_t cache, std::span<const Digest> digests,
                     std::span<const std::uint32_t> blocks, bool park, Duration timeout,
                     std::uint64_t& ticket) {
  return public_result(impl_->caches.copy(
      {cache, kvd::wire::CacheOp::kStore, digests, blocks, park}, timeout, ticket));
}

Status Caches::load(std::uint64_t cache, std::span<const Digest> digests,
                    std::span<const std::uint32_t> blocks, Duration timeout,
                    std::uint64_t& ticket) {
  return public_result(impl_->caches.copy(
      {cache, kvd::wire::CacheOp::kLoad, digests, blocks, false}, timeout, ticket));
}

Result<std::uint64_t> Caches::drop(std::uint64_t cache, std::span<const Digest> digests,
                                   Duration timeout) {
  return public_result(impl_->caches.drop(cache, digests, timeout));
}

Result<std::uint64_t> Caches::retain(std::uint64_t cache, std::span<const Digest> digests,
                                     Duration time, Duration timeout) {
  return public_result(impl_->caches.retain(cache, digests, time, timeout));
}

Result<std::uint64_t> Caches::label(std::uint64_t cache, const BlockLabels& labels,
                                    Duration timeout) {
  return public_result(impl_->caches.label(cache, labels, timeout));
}

Result<CacheChanges> Caches::changes(std::uint64_t cache, const CacheCursor& seen,
                                     Duration timeout) {
  return public_result(impl_->caches.changes(cache, seen, timeout));
}

std::vector<TicketState> Caches::poll(std::span<const std::uint64_t> tickets) {
  std::vector<TicketState> states;
  states.reserve(tickets.size());
  for (const std::uint64_t ticket : tickets) {
    states.push_back(impl_->caches.poll(ticket));
  }
  return states;
}

Status Caches::wait(std::span<const std::uint64_t> tickets, Duration timeout) {
  return public_result(impl_->caches.wait(tickets, timeout));
}

}  // namespace kvd_client
