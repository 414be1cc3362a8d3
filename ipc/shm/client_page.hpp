#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/shm/keeper_word.hpp"
#include "ipc/shm/layout.hpp"
#include "ipc/shm/sealed_memfd.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::shm {

/// The daemon's end of a client page. The peer can write every byte of it at any time, so each word
/// is loaded once and nothing but the loaded value is used; no pthread function touches it.
/// Owner: the fences' writer is the copy backend, the rest control and liveness threads; every
/// access is one atomic operation.
class ServedClientPage {
 public:
  /// Errors: OutOfMemory, Unavailable when out of fds.
  static Result<ServedClientPage> create();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Where the page is mapped in this process, for callers that need the memory itself.
  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.bytes(); }

  [[nodiscard]] std::uint64_t heartbeat() const { return load(page().heartbeat); }
  [[nodiscard]] PlanVersion using_version() const {
    return PlanVersion(load(page().using_version));
  }
  [[nodiscard]] std::uint64_t iteration_finished() const { return load(page().iteration_finished); }
  [[nodiscard]] std::uint64_t progress() const { return load(page().progress); }
  /// The same word, for a caller that polls it.
  [[nodiscard]] const std::atomic<std::uint64_t>& progress_word() const { return page().progress; }
  [[nodiscard]] bool poisoned() const { return load(page().poison) != 0; }

  /// Call before waiters are released without their bytes (safety rule 2).
  void poison() { page().poison.store(1, std::memory_order_release); }

  /// Words for the copy backend: it stores a ticket once all bytes before it are complete.
  [[nodiscard]] std::atomic<std::uint64_t>& fence_h2d() { return page().fence_h2d; }
  [[nodiscard]] std::atomic<std::uint64_t>& fence_d2h() { return page().fence_d2h; }
  /// Written by the mover itself.
  [[nodiscard]] std::atomic<std::uint64_t>& fence_layers() { return page().fence_layers; }
  /// The word that the daemon sleeps on. The engine that rings takes it.
  [[nodiscard]] std::atomic<std::uint64_t>& progress_wanted() { return page().progress_wanted; }

  /// The word of the ticket with this number.
  [[nodiscard]] std::atomic<std::uint64_t>& cache_ticket(std::uint64_t number) {
    return page().cache_tickets[number % kCacheTickets];
  }

  [[nodiscard]] KeeperWord keeper() { return KeeperWord(&page().keeper); }

 private:
  ServedClientPage(UniqueFd fd, SharedMapping mapping)
      : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  [[nodiscard]] ClientPage& page() const {
    return *reinterpret_cast<ClientPage*>(mapping_.bytes().data());
  }
  static std::uint64_t load(const std::atomic<std::uint64_t>& word) {
    return word.load(std::memory_order_acquire);
  }

  UniqueFd fd_;
  SharedMapping mapping_;
};

/// The engine's end.
class MappedClientPage {
 public:
  /// Checks and maps what came with Welcome; the fd may be closed afterwards.
  /// Errors: InvalidArgument when it is no client page of a layout this side knows.
  static Result<MappedClientPage> map(int fd, Bytes size);

  [[nodiscard]] ClientPage& page() const {
    return *reinterpret_cast<ClientPage*>(mapping_.bytes().data());
  }

  /// Leaves the page mapped for ever, because hardware may still write to it.
  void leak() { mapping_.leak(); }

  /// Makes the keeper mutex robust and process-shared. Call once, before the keeper thread locks
  /// it.
  Status init_keeper();

 private:
  explicit MappedClientPage(SharedMapping mapping) : mapping_(std::move(mapping)) {}
  SharedMapping mapping_;
};

}  // namespace kvd::shm
