#include "client_lib/llama/plugin/region_source.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace kvd::llama {
namespace {

constexpr std::uint64_t kAttachTimeoutNs = 5'000'000'000;
// A region may be many GiB that the daemon zeroes before it hands them over.
constexpr std::uint64_t kRegionTimeoutNs = 30'000'000'000;

const char* endpoint_for_message() {
  const char* endpoint = std::getenv("KVD_ENDPOINT");
  return endpoint != nullptr ? endpoint : "the default socket, KVD_ENDPOINT is not set";
}

}  // namespace

RegionSource& RegionSource::instance() {
  static auto* source = new RegionSource;  // on purpose never destroyed, see the class comment
  return *source;
}

bool RegionSource::connect() {
  const std::lock_guard lock(mutex_);
  if (client_ != nullptr) return true;
  kvd_open_options options{};
  options.struct_size = sizeof options;
  options.timeout_ns = kAttachTimeoutNs;
  const kvd_status status = kvd_open(&options, &client_);
  if (status == KVD_OK) {
    std::atexit([] { instance().close_if_unused(); });
    return true;
  }
  client_ = nullptr;
  std::fprintf(stderr, "kvd: cannot attach to the daemon (%s): %s: %s\n", endpoint_for_message(),
               kvd_strerror(status), kvd_last_error());
  return false;
}

bool RegionSource::allocate(std::size_t bytes, kvd_region* region) {
  const std::lock_guard lock(mutex_);
  if (client_ == nullptr) return false;
  *region = kvd_region{};
  region->struct_size = sizeof *region;
  const kvd_status status = kvd_region_allocate(client_, bytes, kRegionTimeoutNs, region);
  if (status != KVD_OK) {
    std::fprintf(stderr, "kvd: no memory for a KV buffer of %zu bytes: %s: %s\n", bytes,
                 kvd_strerror(status), kvd_last_error());
    return false;
  }
  if (reinterpret_cast<std::uintptr_t>(region->address) % alignment() == 0) {
    ++regions_;
    return true;
  }
  std::fprintf(stderr, "kvd: region %llu at %p is not aligned to %zu bytes\n",
               static_cast<unsigned long long>(region->id), region->address, alignment());
  kvd_region_free(client_, region->id, kRegionTimeoutNs);
  return false;
}

void RegionSource::free(const kvd_region& region) {
  const std::lock_guard lock(mutex_);
  --regions_;
  const kvd_status status = kvd_region_free(client_, region.id, kRegionTimeoutNs);
  if (status == KVD_OK) return;
  std::fprintf(stderr, "kvd: region %llu was not returned: %s: %s\n",
               static_cast<unsigned long long>(region.id), kvd_strerror(status), kvd_last_error());
}

void RegionSource::close_if_unused() {
  const std::lock_guard lock(mutex_);
  if (regions_ > 0) return;
  kvd_close(client_);
  client_ = nullptr;
}

std::size_t RegionSource::alignment() {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

}  // namespace kvd::llama
