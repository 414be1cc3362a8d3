#include <span>
#include <vector>

#include "client_lib/src/abi/c_handle.hpp"

/// Regions that grow and shrink.
namespace kc = kvd_client;
using namespace kvd::client::c;  // NOLINT(google-build-using-namespace): this file is C outside

namespace {

std::vector<kc::Need> needs_of(const kvd_demand& demand) {
  std::vector<kc::Need> needs;
  for (const kvd_need& need : std::span(demand.needs, demand.need_count)) {
    needs.push_back(
        {need.bytes, need.least_bytes, need.age_ns, need.ttft_ns, need.slo_class, need.begun != 0});
  }
  return needs;
}

}  // namespace

kvd_status kvd_region_reserve(kvd_handle* handle, uint64_t bytes, uint64_t timeout_ns,
                              kvd_region* region) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (!is_writable(region)) return invalid(kNoStruct);
  const auto made = handle->client.reserve_region(bytes, duration(timeout_ns));
  if (!made.ok()) return fail(made.error());
  return write_struct(to_c(*made), region);
}

kvd_status kvd_region_back(kvd_handle* handle, uint64_t region_id, const uint32_t* positions,
                           uint32_t count, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (positions == nullptr) return invalid("positions is NULL");
  return done(
      handle->client.back_region(region_id, std::span(positions, count), duration(timeout_ns)));
}

kvd_status kvd_region_grow(kvd_handle* handle, uint64_t region_id, const uint32_t* positions,
                           uint32_t count, uint64_t timeout_ns, uint64_t* part_id) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (positions == nullptr) return invalid("positions is NULL");
  if (part_id == nullptr) return invalid("part_id is NULL");
  const auto part =
      handle->client.grow_region(region_id, std::span(positions, count), duration(timeout_ns));
  if (!part.ok()) return fail(part.error());
  *part_id = *part;
  return KVD_OK;
}

kvd_status kvd_region_shrink(kvd_handle* handle, uint64_t region_id, uint64_t part_id,
                             uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.shrink_region(region_id, part_id, duration(timeout_ns)));
}

kvd_status kvd_region_shrink_idle(kvd_handle* handle, uint64_t region_id, uint64_t part_id,
                                  uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.shrink_region(region_id, part_id, duration(timeout_ns), true));
}

kvd_status kvd_region_share(kvd_handle* handle, uint64_t region_id, const kvd_demand* demand,
                            uint64_t timeout_ns, uint64_t* bytes) {
  kvd_demand in{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (!read_struct(demand, in)) return invalid(kNoStruct);
  if (bytes == nullptr) return invalid("bytes is NULL");
  if (in.needs == nullptr && in.need_count != 0) return invalid("needs is NULL");
  if (in.need_count > KVD_MAX_NEEDS) {
    return invalid("more than 16 needs: put those with the loosest goals together");
  }
  const auto granted = handle->client.share_region(
      region_id,
      {in.kept_bytes, in.least_bytes, in.wanted_bytes, in.grain_bytes, in.age_ns, needs_of(in)},
      duration(timeout_ns));
  if (!granted.ok()) return fail(granted.error());
  *bytes = *granted;
  return KVD_OK;
}
