#include "kvd/admin/link/snapshot.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>
#include <variant>

#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::admin::link {
namespace {

/// Goes through values in one order, to write them down or to read them back. Trivially copyable
/// values go as their bytes, because both ends come from one build.
class Writer {
 public:
  explicit Writer(ByteVector& out) : out_(out) {}
  static constexpr bool kReads = false;

  void bytes(std::span<std::byte> value) { out_.insert(out_.end(), value.begin(), value.end()); }
  template <class Container>
  void resize(Container& container) {
    std::uint64_t size = container.size();
    bytes(std::as_writable_bytes(std::span(&size, 1)));
  }

 private:
  ByteVector& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  static constexpr bool kReads = true;

  void bytes(std::span<std::byte> value) {
    if (value.size() > in_.size()) return fail();
    if (!value.empty()) std::memcpy(value.data(), in_.data(), value.size());
    in_ = in_.subspan(value.size());
  }
  /// An element takes one byte at least, so no length can ask for more elements than the message
  /// has bytes.
  template <class Container>
  void resize(Container& container) {
    const auto size = take<std::uint64_t>(in_);
    if (!size || *size > in_.size()) return fail();
    container.resize(*size);
  }
  [[nodiscard]] bool complete() const { return !failed_ && in_.empty(); }

 private:
  void fail() {
    failed_ = true;
    in_ = {};
  }
  std::span<const std::byte> in_;
  bool failed_ = false;
};

template <class A, class T>
void visit(A& a, T& value);

template <class A, class... T>
void all(A& a, T&... values) {
  (visit(a, values), ...);
}

template <class A>
void visit(A& a, std::string& text) {
  a.resize(text);
  a.bytes(std::as_writable_bytes(std::span(text)));
}

template <class A, class T>
void visit(A& a, std::vector<T>& values) {
  a.resize(values);
  if constexpr (std::is_trivially_copyable_v<T>) {
    a.bytes(std::as_writable_bytes(std::span(values)));
  } else {
    for (T& value : values) visit(a, value);
  }
}

template <class A, class T, class U>
void visit(A& a, std::pair<T, U>& both) {
  all(a, both.first, both.second);
}

template <class A, class T, std::size_t N>
requires(!std::is_trivially_copyable_v<T>) void visit(A& a, std::array<T, N>& values) {
  for (T& value : values) visit(a, value);
}

/// Never copied as bytes: an empty optional has undefined bytes, and tags are made from them.
template <class A, class T>
void visit(A& a, std::optional<T>& value) {
  std::uint8_t there = value ? 1 : 0;  // bytes that came may be no bool
  visit(a, there);
  if (A::kReads && there != 0) value.emplace();
  if (value) visit(a, *value);
}

template <class A>
void visit(A& a, core::Slo& slo) {
  all(a, slo.ttft, slo.tbt, slo.tpot, slo.gap);
}

template <class A>
void visit(A& a, std::map<std::string, core::Slo>& classes) {
  std::vector<std::pair<std::string, core::Slo>> list(classes.begin(), classes.end());
  visit(a, list);
  if constexpr (A::kReads) classes = {list.begin(), list.end()};
}

template <class A>
void visit(A& a, ConfigOrigin& one) {
  all(a, one.key, one.origin, one.configured);
}

template <class A>
void visit(A& a, GpuInfo& gpu) {
  all(a, gpu.name, gpu.uuid, gpu.context_bytes);
}

template <class A>
void visit(A& a, DaemonInfo& i) {
  all(a, i.version, i.boot_id, i.uptime, i.backend, i.page_kinds, i.attach_endpoint,
      i.command_endpoint, i.metrics_endpoint, i.gpu, i.live_settings);
}

template <class A>
void visit(A& a, Happening& h) {
  all(a, h.sequence, h.at, h.level, h.engine, h.text);
}

/// A name of the catalogue lives as long as the program, in both processes.
template <class A>
void visit(A& a, metrics::Sample& sample) {
  std::string name(sample.metric);
  visit(a, name);
  if constexpr (A::kReads) {
    const metrics::Metric* metric = metrics::find(name);
    sample.metric = metric != nullptr ? metric->name : std::string_view();
  }
  all(a, sample.labels, sample.value, sample.counts);
}

/// Fields that only comparisons set are left out.
template <class A>
void visit(A& a, core::Tuning& t) {
  for (const core::TuningKey& key : core::tuning_keys()) {
    std::visit([&](const auto& field) { visit(a, field.in(t)); }, key.field);
  }
  visit(a, t.slo);
}

/// Plain counts stand before the distributions, which go along as samples.
template <class A>
void visit(A& a, core::Counters& counters) {
  static_assert(
      sizeof(core::Counters) == offsetof(core::Counters, vlt) + 2 * sizeof(core::Distribution),
      "put new counts before the distributions: what is behind them is not sent");
  a.bytes({reinterpret_cast<std::byte*>(&counters), offsetof(core::Counters, vlt)});
}

template <class A>
void visit(A& a, pool::TierStats& s) {
  static_assert(sizeof(pool::TierStats) == 96, "send a new field, too");
  all(a, s.capacity, s.slab_bytes, s.slabs, s.slabs_unassigned, s.slabs_retiring, s.free, s.missing,
      s.region, s.quarantined, s.stranded, s.slots_by_state);
}

template <class A>
void visit(A& a, core::DrainStatus& d) {
  all(a, d.since, d.deadline, d.left);
}

template <class A>
void visit(A& a, core::CacheStatus& c) {
  all(a, c.model, c.block_bytes, c.block_tokens, c.fingerprint, c.remote_name);
}

/// Its distributions travel as samples.
template <class A>
void visit(A& a, core::ClassService& s) {
  all(a, s.name, s.ttft, s.tbt, s.oldest);
}

template <class A>
void visit(A& a, core::EngineStatus& e) {
  static_assert(sizeof(core::EngineStatus) == 320, "send a new field, too");
  all(a, e.id, e.name, e.domain, e.pid, e.uid, e.generation, e.level, e.ranks.count,
      e.ranks.devices, e.responsive, e.dying, e.region, e.hbm, e.dram, e.requests, e.steps,
      e.rotations, e.orphaned, e.tokens, e.service.idle_s, e.service.drain, e.kv.token_bytes,
      e.kv.prefill_token_s, e.kv.caches, e.service.classes);
}

template <class A>
void visit(A& a, core::DiskModel& d) {
  static_assert(sizeof(core::DiskModel) == 136, "send a new field, too");
  all(a, d.id, d.folder, d.model, d.state, d.cached, d.bytes, d.engines, d.idle_s);
}

template <class A>
void visit(A& a, core::RemoteServer& r) {
  static_assert(sizeof(core::RemoteServer) == 152, "send a new field, too");
  all(a, r.server, r.on, r.why, r.loads, r.misses, r.stores, r.renewals, r.finds, r.errors, r.offs,
      r.bytes_in, r.bytes_out, r.round_trip_s);
}

template <class A>
void visit(A& a, core::PlanStatus::Entry& entry) {
  all(a, entry.request, entry.distance, entry.in_dram, entry.paused);
}

template <class A>
void visit(A& a, core::PlanStatus& p) {
  all(a, p.engine, p.number, p.policy, p.fallback, p.solving, p.steps_left, p.step_s, p.stall_s,
      p.gap, p.requests);
}

template <class A>
void visit(A& a, core::RotationInput& input) {
  auto& s = input.snapshot;
  all(a, input.domain, input.device, input.now, s.b_hbm, s.b_xfer, s.growth, s.dram,
      s.mean_lateness, s.step, s.requests, input.config, input.requests);
}

template <class A>
void visit(A& a, core::AdmissionInput& input) {
  auto& s = input.snapshot;
  all(a, s.costs, s.decoding, s.queue, s.memory, s.guard, input.queue, input.decoding);
}

template <class A>
void visit(A& a, planner::PlacementRequest& request) {
  all(a, request.blocks, request.tokens, request.slo, request.deposit, request.current);
}

template <class A>
void visit(A& a, core::PlacementInput& input) {
  auto& s = input.snapshot;
  all(a, s.model.compute, s.model.per_block, s.model.per_transfer, s.capacity, s.buffer,
      s.candidates, s.open_blocks, s.block_tokens, s.requests, input.requests);
}

template <class A>
void visit(A& a, core::DeviceStatus& d) {
  static_assert(sizeof(core::DeviceStatus) == 160, "send a new field, too");
  all(a, d.device, d.hbm, d.slabs, d.b_xfer, d.link_rate, d.mean_step_s);
}

template <class A>
void visit(A& a, core::ControllerStatus& s) {
  all(a, s.counters, s.tiers[0], s.tiers[1], s.slabs[0], s.slabs[1], s.devices, s.engines,
      s.requests, s.plans, s.tuning, s.orphaned, s.held, s.cached, s.retained, s.disk_rates,
      s.disk_models, s.remote_servers, s.drain, s.to_remote, s.rotation_inputs, s.admission_inputs,
      s.placement_inputs);
}

template <class A>
void visit(A& a, DomainQuota& q) {
  all(a, q.name, q.per_user, q.hbm, q.dram, q.hbm_over, q.dram_over);
}

template <class A>
void visit(A& a, Snapshot& s) {
  all(a, s.now, s.read, s.uid, s.info, s.status, s.config, s.origins, s.quotas, s.happenings,
      s.samples);
}

template <class A, class T>
void visit(A& a, T& value) {
  static_assert(std::is_trivially_copyable_v<T>, "say how its fields go over the link");
  a.bytes(std::as_writable_bytes(std::span(&value, 1)));
}

template <class T>
Result<T> decode(std::span<const std::byte> bytes) {
  T out;
  Reader reader(bytes);
  visit(reader, out);
  if (reader.complete()) return out;
  return make_error(ErrorCode::kInvalidArgument,
                    "what came over the link is not of this build: kvd and kvd-admin have to "
                    "come from one");
}

}  // namespace

void encode(Snapshot& snapshot, ByteVector& out) {
  Writer writer(out);
  visit(writer, snapshot);
}

Result<Snapshot> decode_snapshot(std::span<const std::byte> bytes) {
  return decode<Snapshot>(bytes);
}

void encode(core::Tuning& tuning, ByteVector& out) {
  Writer writer(out);
  visit(writer, tuning);
}

Result<core::Tuning> decode_tuning(std::span<const std::byte> bytes) {
  return decode<core::Tuning>(bytes);
}

}  // namespace kvd::admin::link
