#pragma once

#include <cstddef>
#include <mutex>

#include "client_lib/include/kvd.h"

namespace kvd::llama {

/// The process's one session with kvd, and the regions taken through it.
///
/// Opened at the first connect(). At exit it says goodbye if every region has been freed; if not,
/// the engine may still free one from a static destructor, and the session ends with the process.
/// Owner:   thread-safe
/// Errors:  one line on stderr that begins with "kvd: " (llama.cpp's own log may be switched off)
class RegionSource {
 public:
  static RegionSource& instance();

  /// True once a session exists; tries again each time it is asked without one.
  bool connect();
  /// A region of at least `bytes` at an address that is a multiple of alignment(); false: none.
  bool allocate(std::size_t bytes, kvd_region* region);
  void free(const kvd_region& region);

  /// What ggml is told: the page. Every region is aligned at least so, and ggml pads each layer's K
  /// and V to it, which keeps them separately mappable.
  static std::size_t alignment();

 private:
  RegionSource() = default;
  void close_if_unused();

  std::mutex mutex_;
  kvd_handle* client_ = nullptr;
  std::size_t regions_ = 0;  // taken and not freed
};

}  // namespace kvd::llama
