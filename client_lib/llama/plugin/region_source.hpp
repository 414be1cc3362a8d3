#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>

#include "client_lib/include/kvd.h"
#include "client_lib/llama/plugin/region_space.hpp"

namespace kvd::llama {

/// Memory of kvd for one buffer: a part of a region.
struct Memory {
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
  void* address = nullptr;
};

/// The process's one session with kvd, and the regions taken through it.
///
/// kvd lends whole slabs, so what a buffer leaves free of its region serves the next ones. A region
/// goes back with its last buffer.
/// Opened at the first connect(). At exit it says goodbye if every region has been freed; if not,
/// the engine may still free one from a static destructor, and the session ends with the process.
/// Owner:   thread-safe
/// Errors:  one line on stderr that begins with "kvd: " (llama.cpp's own log may be switched off)
class RegionSource {
 public:
  static RegionSource& instance();

  /// True once a session exists; tries again each time it is asked without one.
  bool connect();
  /// At least `bytes` at an address that is a multiple of alignment(); false: none. Where the pool
  /// or the quota is used up it asks again for as long as KVD_LLAMA_WAIT says.
  bool allocate(std::size_t bytes, Memory* memory);
  void free(const Memory& memory);

  /// What ggml is told: the page. Every region is aligned at least so, and ggml pads each layer's K
  /// and V to it, which keeps them separately mappable.
  static std::size_t alignment();

 private:
  /// Each life of the daemon counts its generations anew.
  struct Session {
    std::uint64_t generation = 0;
    std::array<std::uint8_t, 16> boot_id{};
    friend bool operator==(const Session&, const Session&) = default;
  };
  struct Region {
    kvd_region lease;
    Session session;  // that took it
    RegionSpace space;
  };

  RegionSource() = default;
  bool pack(std::size_t bytes, Memory* memory);
  kvd_status take_region(std::size_t bytes, Memory* memory);
  [[nodiscard]] Session session() const;
  void close_if_unused();

  std::mutex mutex_;
  kvd_handle* client_ = nullptr;
  std::list<Region> regions_;
};

}  // namespace kvd::llama
