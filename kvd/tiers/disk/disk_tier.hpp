#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/tiers/disk/files/requests.hpp"
#include "kvd/tiers/disk/workers/flights.hpp"

namespace kvd::disk {

class Worker;

struct DiskOptions {
  std::string folder;    ///< of this class alone; its parent must be there
  ClassShape shape;      ///< of every block in it
  Bytes capacity;        ///< whole segments of it are used, at least one
  Bytes segment = kGiB;  ///< size of a file; a folder keeps the one that it was made with
  /// The folder begins with the segments that it has, at least one, and resize() makes others.
  bool on_demand = false;
  Bytes floor = kGiB;          ///< room that the file system must have left for others
  std::uint32_t depth = 32;    ///< requests under way at most
  std::uint32_t queue = 1024;  ///< requests of each kind that wait at most
  std::size_t threads = 8;     ///< where io_uring cannot be used
  bool io_uring = true;        ///< false: do not try it
  bool direct = true;          ///< false: do not try O_DIRECT
  /// For tests and measurements: sums of another kind, and an Io around the real one.
  SumFunction sum = group_sum;
  std::function<std::unique_ptr<Io>(std::unique_ptr<Io>)> wrap;
};

/// Keeps the sealed blocks of one class in files, and never gives out a byte that it has not
/// verified. It knows slots, not blocks: the asker remembers which block is where, and where it is
/// wrong the load is a miss like any other fault (Fault). Files: FORMAT.md.
///
/// Source:  kvd design.
/// Owner:   one thread opens and closes it; all else is thread-safe. One thread of its own
/// ("kvd-disk") submits, completes and verifies; where
///          io_uring cannot be used, more ("kvd-disk-io") make the calls. No call here waits for
///          the device but open(), which tries it, and close(), which has a deadline.
/// Errors:  of calls: InvalidArgument, WouldBlock where a queue is full or the slot is being
///          written, Unavailable after close(). Of requests: their completion's Fault.
/// Memory of a request belongs to the tier until its last completion, and to the kernel for ever if
/// close() says so.
/// Cost:    4 KiB a request under way, nothing a slot.
/// A write beyond RLIMIT_FSIZE is an error, whatever the process does about SIGXFSZ.
class DiskTier {
 public:
  /// Errors: those of Folder, Layout and Segments; Unavailable where the disk does not answer.
  static Result<std::unique_ptr<DiskTier>> open(const DiskOptions& options,
                                                std::shared_ptr<const Clock> clock);
  /// As close(10 s) without an index.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  [[nodiscard]] std::uint32_t slots() const;
  [[nodiscard]] const Layout& layout() const;

  /// With O_DIRECT (status().direct), memory must start at multiples of 4 KiB.
  Status load(Load load);
  /// The generation that the slot has when the completion says that all went well. What the slot
  /// held before is lost from now on.
  Result<SlotGeneration> store(Store store);
  Status scan(Scan scan);

  /// From now on no scan and no index tells of what was stored until now. A later kvd does not
  /// either, once keep_cleared() has written it down. That call waits for the file system; any
  /// thread may make it.
  void clear() { cleared_ = last_generation_.load(); }
  [[nodiscard]] Status keep_cleared() const;

  /// Appends what has ended; returns at once.
  void poll(std::vector<Completion>& completions);
  /// Readable while poll() has something to say.
  [[nodiscard]] int completion_fd() const;

  /// Memory that requests will name, registered with the kernel where that is possible. Elsewhere
  /// everything works as well, and status() says why.
  void add_slab(std::span<std::byte> slab);
  /// Takes the slab as it was added. Call it when no request names the slab any more, and before
  /// its memory goes.
  void remove_slab(std::span<std::byte> slab);

  /// The index of the last clean stop; it is handed out once. None: scan all slots. Any block in it
  /// may be gone.
  [[nodiscard]] std::optional<std::vector<FoundBlock>> take_index();

  struct Closed {
    /// Requests whose memory the device may still write to: it must stay until the process ends.
    std::vector<Ticket> held;
    Status checkpoint;  ///< of writing the index
  };
  /// Changes the files to this many bytes: whole segments, one at least, and no more than the
  /// capacity or the file system's floor allow. Nobody uses slots beyond, or reads the headers
  /// meanwhile. Returns how many slots there are. One call at a time, on any thread: it waits for
  /// the file system.
  std::uint32_t resize(Bytes bytes);
  /// The size of a segment.
  [[nodiscard]] Bytes grain() const { return layout().segment_bytes(); }

  /// Takes no more requests, ends those that have not started (kClosed), waits for those under way,
  /// writes the index. Requests that are not over within `patience` are left to themselves. poll()
  /// has the completions.
  Closed close(Nanoseconds patience, std::optional<std::vector<FoundBlock>> index);

  [[nodiscard]] DiskStatus status() const;

 private:
  DiskTier(std::unique_ptr<Worker> worker, DiskStatus words);
  void forget_cleared(std::vector<FoundBlock>& blocks) const;
  Status check(std::uint32_t first_group, std::size_t groups, Nanoseconds patience,
               DiskSlot slot) const;
  Status check_memory(const void* memory, std::size_t size) const;

  std::unique_ptr<Worker> owned_;  ///< null when it is kept for ever
  Worker* const worker_;
  std::atomic<std::uint64_t> last_generation_;
  std::atomic<std::uint64_t> cleared_;  ///< blocks up to this generation
  std::optional<std::vector<FoundBlock>> index_;
  bool closed_ = false;
  mutable std::mutex words_mutex_;  // guards words_
  DiskStatus words_;
};

}  // namespace kvd::disk
