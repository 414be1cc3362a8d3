#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "tests/support/fakecuda/cuda_api.hpp"

namespace fakecuda {

/// One physical allocation: a sealed memfd whose last page says what it is, so that an import knows
/// a real export from any other descriptor. The CPU side of the fake reaches the bytes through one
/// private mapping, `data()`; the addresses programs see are separate.
/// The first descriptor carries a lock that the kernel drops when the last descriptor and mapping
/// of it are gone in whatever process, which is when the memory is free again.
class Physical {
 public:
  /// Fresh memory, poisoned. Null where the machine has no memory or descriptors left.
  static std::shared_ptr<Physical> create(std::size_t size, const CUmemAllocationProp& prop);
  /// Null when `fd` is no export of this driver.
  static std::shared_ptr<Physical> import(int fd);
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  const CUmemAllocationProp& prop() const { return prop_; }
  bool on_device() const { return prop_.location.type == CU_MEM_LOCATION_TYPE_DEVICE; }
  int fd() const { return fd_; }
  /// A new descriptor of the same allocation; not close-on-exec, nothing promises that.
  int export_fd() const;
  ino_t inode() const { return inode_; }

 private:
  Physical() = default;
  bool map();

  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  ino_t inode_ = 0;
  CUmemAllocationProp prop_{};
};

/// How much device memory is taken. It counts all that this process created, imported or has a
/// descriptor of, until it is gone in every process. Not thread-safe.
class Occupancy {
 public:
  ~Occupancy();
  bool add(const Physical& memory);
  std::size_t used(int device);

 private:
  bool watch(int fd, ino_t inode, int device, std::size_t size);
  /// Finds memory that other processes have made and handed to this one.
  void find_descriptors();

  struct Watched {
    int fd;  // a description of its own, to ask after the lock of the first
    ino_t inode;
    int device;
    std::size_t size;
  };
  std::vector<Watched> watched_;
};

/// Descriptors of exports that are open in this process, the driver's own not counted.
std::size_t open_exports();

constexpr unsigned char kPoison = 0xA5;

}  // namespace fakecuda
