#include "client_lib/llama/plugin/region_source.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace kvd::llama {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kAttachTimeoutNs = 5'000'000'000;
// A region may be many GiB that the daemon zeroes before it hands them over.
constexpr std::uint64_t kRegionTimeoutNs = 30'000'000'000;
constexpr std::chrono::milliseconds kAskAgain{50};

const char* endpoint_for_message() {
  const char* endpoint = std::getenv("KVD_ENDPOINT");
  return endpoint != nullptr ? endpoint : "the default socket, KVD_ENDPOINT is not set";
}

/// How long a buffer that does not fit may wait.
std::chrono::seconds patience() {
  constexpr std::uint32_t kMost = 7 * 24 * 3600;
  const char* value = std::getenv("KVD_LLAMA_WAIT");
  if (value == nullptr) return {};
  const char* end = value + std::strlen(value);
  std::uint32_t seconds = 0;
  if (const auto read = std::from_chars(value, end, seconds);
      read.ec == std::errc{} && read.ptr == end && seconds <= kMost) {
    return std::chrono::seconds(seconds);
  }
  std::fprintf(stderr, "kvd: KVD_LLAMA_WAIT=%s is no number of seconds from 0 to %u; not waiting\n",
               value, kMost);
  return {};
}

/// Others may hold what is missing, and free it.
bool may_pass(kvd_status status) {
  return status == KVD_OUT_OF_MEMORY || status == KVD_QUOTA_EXCEEDED || status == KVD_WOULD_BLOCK ||
         status == KVD_DEADLINE_EXCEEDED;
}

void report(std::size_t bytes, kvd_status status, const char* ending) {
  std::fprintf(stderr, "kvd: no memory for a KV buffer of %zu bytes: %s: %s%s\n", bytes,
               kvd_strerror(status), kvd_last_error(), ending);
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

bool RegionSource::allocate(std::size_t bytes, Memory* memory) {
  const auto begin = SteadyClock::now();
  std::chrono::seconds wait{};
  for (bool first = true;; first = false) {
    kvd_status status = KVD_OK;
    {
      // Not held while waiting: another thread's buffer may be what makes room.
      const std::lock_guard lock(mutex_);
      if (client_ == nullptr) return false;
      if (pack(bytes, memory)) return true;
      status = take_region(bytes, memory);
    }
    if (status == KVD_OK) return true;
    if (first && may_pass(status)) wait = patience();
    if (!may_pass(status) || SteadyClock::now() - begin >= wait) {
      report(bytes, status, wait.count() > 0 ? " (waited for it: KVD_LLAMA_WAIT)" : "");
      return false;
    }
    if (first) report(bytes, status, "; waiting for it (KVD_LLAMA_WAIT)");
    std::this_thread::sleep_for(kAskAgain);
  }
}

bool RegionSource::pack(std::size_t bytes, Memory* memory) {
  const Session now = session();
  for (Region& region : regions_) {
    // What an earlier session lent, of this kvd or one before it, is only kept until its buffers
    // go.
    if (region.session != now) continue;
    if (const auto offset = region.space.take(bytes)) {
      *memory = {region.lease.id, *offset, static_cast<char*>(region.lease.address) + *offset};
      return true;
    }
  }
  return false;
}

kvd_status RegionSource::take_region(std::size_t bytes, Memory* memory) {
  kvd_region lease{};
  lease.struct_size = sizeof lease;
  const kvd_status status = kvd_region_allocate(client_, bytes, kRegionTimeoutNs, &lease);
  if (status != KVD_OK) return status;
  regions_.push_back({lease, session(), RegionSpace(lease.bytes, alignment())});
  *memory = {lease.id, *regions_.back().space.take(bytes), lease.address};
  return KVD_OK;
}

void RegionSource::free(const Memory& memory) {
  const std::lock_guard lock(mutex_);
  const auto region = std::ranges::find(regions_, memory.region,
                                        [](const Region& candidate) { return candidate.lease.id; });
  if (region == regions_.end()) return;
  region->space.give_back(memory.offset);
  if (!region->space.empty()) return;
  regions_.erase(region);
  const kvd_status status = kvd_region_free(client_, memory.region, kRegionTimeoutNs);
  if (status == KVD_OK) return;
  std::fprintf(stderr, "kvd: region %llu was not returned: %s: %s\n",
               static_cast<unsigned long long>(memory.region), kvd_strerror(status),
               kvd_last_error());
}

RegionSource::Session RegionSource::session() const {
  kvd_session_info info{};
  info.struct_size = sizeof info;
  Session session;
  if (kvd_get_session_info(client_, &info) != KVD_OK) return session;
  session.generation = info.generation;
  std::ranges::copy(info.boot_id, session.boot_id.begin());
  return session;
}

void RegionSource::close_if_unused() {
  const std::lock_guard lock(mutex_);
  if (!regions_.empty()) return;
  kvd_close(client_);
  client_ = nullptr;
}

std::size_t RegionSource::alignment() {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

}  // namespace kvd::llama
