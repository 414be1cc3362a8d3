#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "client_lib/include/kvd.h"
#include "kvd_client/client.hpp"

/// What a C handle owns: the client, and the arrays its last answers point into.
struct kvd_handle {
  kvd_client::Client client;
  std::vector<kvd_run_entry> run;
  std::vector<kvd_hold_entry> hold;
  std::vector<kvd_placement_entry> placement;
  kvd_client::CacheChanges changes{};
  std::vector<kvd_cache_change> change_views{};
};

/// What the C functions share: errors, and structs of programs older or newer than this library.
namespace kvd::client::c {

/// Remembers the sentence for kvd_last_error().
kvd_status fail(const kvd_client::Error& error);

inline kvd_status invalid(const char* message) {
  return fail({kvd_client::ErrorCode::kInvalidArgument, message});
}

inline kvd_status done(const kvd_client::Status& status) {
  return status.ok() ? KVD_OK : fail(status.error());
}

/// A timeout beyond 292 years counts as 292 years.
inline kvd_client::Duration duration(std::uint64_t nanoseconds) {
  constexpr auto kLongest = std::numeric_limits<std::int64_t>::max();
  return kvd_client::Duration(
      nanoseconds > std::uint64_t{kLongest} ? kLongest : static_cast<std::int64_t>(nanoseconds));
}

/// Reads a struct of a program that may be older or newer: what it does not have reads as zero.
template <class T>
bool read_struct(const T* from, T& into) {
  if (from == nullptr || from->struct_size < sizeof(std::size_t)) return false;
  into = T{};
  std::memcpy(&into, from, std::min(from->struct_size, sizeof(T)));
  return true;
}

/// Whether an output struct says its size; checked before anything is asked of the daemon.
template <class T>
bool is_writable(const T* into) {
  return into != nullptr && into->struct_size >= sizeof(std::size_t);
}

/// Writes as much of the answer as the program's struct has room for, and keeps its size.
template <class T>
kvd_status write_struct(const T& from, T* into) {
  const std::size_t size = into->struct_size;
  std::memcpy(into, &from, std::min(size, sizeof(T)));
  into->struct_size = size;
  return KVD_OK;
}

inline kvd_region to_c(const kvd_client::Region& region) {
  return {sizeof(kvd_region), region.id, region.address, region.bytes, region.granularity,
          region.device,      0};
}

constexpr const char* kNoHandle = "the handle is NULL";
constexpr const char* kNoStruct = "a struct is NULL or its struct_size is not set";

}  // namespace kvd::client::c
