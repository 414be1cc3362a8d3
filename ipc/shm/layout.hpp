#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

/// What stands in the memory a session shares with the daemon. Fixed offsets, no pointers: the
/// peer is untrusted, so every word the other side can write is read once into private memory,
/// validated, then used (safety rule 7).
namespace kvd::shm {

constexpr std::uint32_t kClientPageMagic = 0x5043564bu;  // "KVCP"
constexpr std::uint32_t kTableMagic = 0x4254564bu;       // "KVTB"
constexpr std::uint32_t kLayoutVersion = 1;              ///< of both
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kClientPageBytes = 4096;
constexpr std::size_t kCacheTickets = 256;
constexpr std::size_t kMaxTableBytes = std::size_t{1} << 30;

/// The page both sides write. One per session, created and sealed by the daemon.
struct ClientPage {
  std::uint32_t magic = kClientPageMagic;
  std::uint32_t layout_version = kLayoutVersion;

  /// Robust and process-shared, held by the client's keeper thread for the session's life; the
  /// client initialises it. The daemon never calls a pthread function on it: it watches the first
  /// 32-bit word for FUTEX_OWNER_DIED (safety rule 8).
  alignas(kCacheLine) pthread_mutex_t keeper;

  // Written by the client.
  alignas(kCacheLine) std::atomic<std::uint64_t> heartbeat;  ///< counts up while the keeper lives
  std::atomic<std::uint64_t> using_version;  ///< table version the running iteration reads; 0: none
  std::atomic<std::uint64_t> iteration_finished;  ///< for inspection; the daemon goes by the step
  std::atomic<std::uint64_t> progress;            ///< layer_mark of the layer groups done

  /// Non-zero once waiters were released without their bytes (safety rule 2).
  alignas(kCacheLine) std::atomic<std::uint64_t> poison;

  // Written by the daemon: the highest completed ticket of each direction.
  alignas(kCacheLine) std::atomic<std::uint64_t> fence_h2d;
  alignas(kCacheLine) std::atomic<std::uint64_t> fence_d2h;
  /// layer_mark up to which streamed layers are in HBM.
  alignas(kCacheLine) std::atomic<std::uint64_t> fence_layers;

  /// Non-zero: the daemon sleeps and wants its bell rung once `progress` has reached it. Set by the
  /// daemon, taken by the client.
  alignas(kCacheLine) std::atomic<std::uint64_t> progress_wanted;
  std::uint8_t reserved[1592];

  /// States of the copies that a cache of the session makes: each is a wire::ticket_word() at its
  /// number modulo their count. The daemon writes one when it has taken the command, and again when
  /// all bytes of the copy are in place or none will come any more. The engine writes one for a
  /// ticket that the daemon never got.
  std::atomic<std::uint64_t> cache_tickets[kCacheTickets];
};
static_assert(sizeof(ClientPage) == kClientPageBytes &&
              offsetof(ClientPage, cache_tickets) == 2048);
static_assert(offsetof(ClientPage, keeper) == 64 && offsetof(ClientPage, heartbeat) == 128 &&
              offsetof(ClientPage, poison) == 192 && offsetof(ClientPage, fence_h2d) == 256 &&
              offsetof(ClientPage, fence_d2h) == 320 && offsetof(ClientPage, progress) == 152 &&
              offsetof(ClientPage, fence_layers) == 384 &&
              offsetof(ClientPage, progress_wanted) == 448);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// One request in a block table: slot ids stand at slots[first + group * blocks + block].
struct TableRow {
  std::uint64_t request = 0;
  std::uint64_t tokens = 0;  ///< tokens whose KV is present
  std::uint32_t first = 0;
  std::uint32_t blocks = 0;  ///< blocks per layer group
  std::uint32_t groups = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TableRow) == 32);

/// One immutable version of a session's table. Versions grow but may skip numbers, so a reader
/// looks for its version in all buffers.
struct TableBuffer {
  std::atomic<std::uint64_t> version;  ///< 0: none, or being rewritten
  std::uint32_t rows = 0;
  std::uint32_t slots = 0;
  std::uint32_t rows_offset = 0;  ///< bytes from the start of the memfd
  std::uint32_t slots_offset = 0;
};
static_assert(sizeof(TableBuffer) == 24);

/// The running iteration may read one version, and the next one was told another. In a group whose
/// other ranks are a step ahead one more is published.
constexpr std::size_t kTableBuffers = 3;

/// Starts a table memfd, which only the daemon can write. A step reply names the version to read;
/// a buffer is rewritten only after the session's `using_version` has moved past it.
struct TableHeader {
  std::uint32_t magic = kTableMagic;
  std::uint32_t layout_version = kLayoutVersion;
  std::uint32_t max_rows = 0;
  std::uint32_t max_slots = 0;
  alignas(kCacheLine) std::atomic<std::uint64_t> current;  ///< newest published version
  alignas(kCacheLine) TableBuffer buffers[kTableBuffers];
};
static_assert(sizeof(TableHeader) == 256);

/// Bytes of a table memfd for the given capacity, all buffers included.
constexpr std::size_t table_bytes(std::uint32_t max_rows, std::uint32_t max_slots) {
  return sizeof(TableHeader) + kTableBuffers * (std::size_t{max_rows} * sizeof(TableRow) +
                                                std::size_t{max_slots} * sizeof(std::uint32_t));
}

}  // namespace kvd::shm
