#pragma once

#include <liburing.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvd/tiers/disk/files/event_fd.hpp"
#include "kvd/tiers/disk/files/io.hpp"

namespace kvd::disk {

/// One io_uring without kernel threads of its own and without polling. An operation whose memory
/// lies in added slabs alone uses fixed buffers, one entry for each piece; any other is one
/// vectored entry.
/// Source: kvd design, after liburing's manual pages.
/// Owner: as Io.
/// Errors: Unavailable where the kernel, a container or a sysctl forbids io_uring, or where it
/// lacks
///         an operation that is needed here.
class Ring final : public Io {
 public:
  /// `depth`: entries that are under way at most; the rest waits here.
  static Result<std::unique_ptr<Ring>> open(unsigned depth);
  ~Ring() override;

  void submit(const Operation& operation) override;
  void flush() override;
  void reap(std::vector<Outcome>& outcomes) override;
  [[nodiscard]] int event_fd() const override { return done_event_.get(); }
  [[nodiscard]] std::string_view name() const override { return "io_uring"; }
  Status add_slab(std::span<std::byte> slab) override;
  bool remove_slab(std::span<std::byte> slab) override;

 private:
  /// An operation that still misses outcomes of entries.
  struct Open {
    std::uint64_t id = 0;
    std::size_t entries = 0;
    std::int64_t moved = 0;
    int error = 0;
  };
  /// An entry that waits for its turn.
  struct Entry {
    std::size_t open = 0;
    int fd = -1;
    bool write = false;
    std::uint64_t offset = 0;
    const iovec* parts = nullptr;
    unsigned count = 0;
    std::optional<unsigned> buffer;  ///< fixed: parts is one piece
  };
  struct Slab {
    std::size_t size = 0;
    unsigned buffer = 0;
  };

  explicit Ring(EventFd done_event) : done_event_(std::move(done_event)) {}
  Status set_up(unsigned depth);
  [[nodiscard]] std::size_t open_operation(std::uint64_t id, std::size_t entries);
  [[nodiscard]] std::optional<unsigned> buffer_of(const iovec& part);
  [[nodiscard]] bool fixed(const Operation& operation, std::vector<unsigned>& buffers);
  static void prepare(io_uring_sqe* sqe, const Entry& entry);
  void settle(const io_uring_cqe& cqe, std::vector<Outcome>& outcomes);

  const EventFd done_event_;
  io_uring ring_{};
  bool ready_ = false;
  bool has_buffers_ = false;
  unsigned depth_ = 0;
  unsigned under_way_ = 0;  ///< entries between the submission queue and reap()
  std::deque<Entry> waiting_;
  std::vector<Open> open_;  ///< indexed by the user data of an entry
  std::vector<std::size_t> unused_;
  std::mutex slabs_mutex_;  // guards what follows
  std::map<std::uintptr_t, Slab> slabs_;
  std::vector<unsigned> free_buffers_;
};

}  // namespace kvd::disk
