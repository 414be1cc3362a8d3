#pragma once

#include <cstddef>
#include <map>

#include "tests/support/fakecuda/cuda_api.hpp"

namespace fakecuda {

/// Host memory made known by cuMemHostRegister. The device address of a registration is a range of
/// its own that the CPU cannot touch, so that a host pointer passed where the device's is meant is
/// found. Not thread-safe: driver().mutex.
class HostRegistry {
 public:
  struct Registration {
    std::size_t size = 0;
    unsigned flags = 0;
    CUdeviceptr device = 0;
    CUcontext context = nullptr;
  };
  using Found = std::map<CUdeviceptr, Registration>::const_iterator;

  ~HostRegistry();
  CUresult add(CUdeviceptr host, std::size_t size, unsigned flags, CUcontext context);
  /// A violation where queued work touches it.
  void expect_unused(CUdeviceptr host) const;
  CUresult remove(CUdeviceptr host);
  void remove_all_of(CUcontext context);

  /// The registration around a host or device address; none().
  Found find(CUdeviceptr pointer) const;
  Found none() const { return by_host_.end(); }
  /// Whether any byte of the range is registered (as host or device address).
  bool touches(CUdeviceptr pointer, std::size_t size) const;
  /// The host address of `pointer`, or 0 unless one registration holds the whole range.
  CUdeviceptr host_address(CUdeviceptr pointer, std::size_t size) const;
  std::size_t size() const { return by_host_.size(); }

 private:
  using Map = std::map<CUdeviceptr, Registration>;
  void drop(Map::iterator item);

  Map by_host_;
  std::map<CUdeviceptr, CUdeviceptr> host_of_device_;  // by start
};

}  // namespace fakecuda
