#include "kvd_client/client.hpp"

#include <errno.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client_lib/src/abi/client_impl.hpp"
#include "client_lib/src/attach/attach.hpp"
#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/memory/mapping_hold.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/slo_class.hpp"

namespace kvd_client {

using kvd::client::public_error;
using kvd::client::public_result;

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
  kvd::client::DaemonLink& link = impl_->link;
  impl_->regions.stop();
  const auto turn = link.enter();
  const kvd::client::SessionPtr session = link.connector().session();
  const bool attached = session && !session->gone();
  if (attached) session->end_waits();
  // Memory that is lent, or may still be in use, stays mapped. The daemon must not be told that it
  // is unmapped, so the session just ends, and the daemon keeps the memory back until this process
  // has ended.
  const bool maps_nothing = link.regions().clear(kvd::client::kLongestDrain);
  if (attached && maps_nothing) session->leave();
}

Result<Client> Client::open(const Options& options) {
  if ((options.memory & kCudaMemory) != 0 && !kvd::client::Gpu::is_built()) {
    return Error{
        ErrorCode::kUnsupported,
        "this kvd client library is built without CUDA: build it where the headers of CUDA "
        "13.0 or newer are, or ask for host memory only"};
  }
  auto impl = std::make_unique<Impl>(introduction_of(options), options);
  const auto status = impl->link.connect();
  if (!status.ok()) return public_error(status.error());
  return Client(std::move(impl));
}

Result<SessionInfo> Client::session() const {
  const kvd::Status usable = impl_->link.check_fork();
  if (!usable.ok()) return public_error(usable.error());
  const kvd::client::SessionPtr session = impl_->link.connector().session();
  SessionInfo info = kvd::client::to_public(session->welcome());
  info.device =
      session->gpu() != nullptr ? session->gpu()->ordinal() : kvd::client::SlabRange::kNoDevice;
  return info;
}

Status Client::hold_mappings(Duration timeout) {
  const kvd::TimePoint now = kvd::SteadyClock().now();
  const auto left = std::clamp(timeout, Duration(0), kvd::TimePoint::max() - now);
  return public_result(kvd::client::MappingHold::of_process().hold(now + left));
}

void Client::release_mappings() { kvd::client::MappingHold::of_process().release(); }

Status Client::ping(Duration timeout) {
  const auto ping = [](const kvd::client::SessionPtr& session,
                       kvd::TimePoint until) -> kvd::Status {
    KVD_TRY(session->call(kvd::wire::PingCommand{}, until));
    return {};
  };
  return public_result(impl_->link.on_memory(timeout, ping));
}

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

Result<Stats> Client::stats(Duration timeout) {
  const auto ask = [](const kvd::client::SessionPtr& session, kvd::TimePoint until) {
    return kvd::client::answer_of<kvd::wire::StatsReplyBody>(
        session->call(kvd::wire::StatsCommand{}, until),
        [](const kvd::wire::StatsReplyBody& stats) { return kvd::client::to_public(stats); });
  };
  return public_result(impl_->link.on_memory(timeout, ask));
}

std::uint32_t Client::slo_class_number(std::string_view name) {
  return kvd::slo_class_number(name);
}

Caches Client::caches() { return Caches(*impl_); }

}  // namespace kvd_client
