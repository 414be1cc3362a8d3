#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kvd/tiers/disk/files/event_fd.hpp"
#include "kvd/tiers/disk/files/io.hpp"

namespace kvd::disk {

/// preadv and pwritev on threads: for where io_uring is forbidden (containers, sysctl
/// kernel.io_uring_disabled) or too old.
/// Owner: as Io. Destruction waits for the calls in hand; a hung device makes it hang.
class Pool final : public Io {
 public:
  static Result<std::unique_ptr<Pool>> open(std::size_t threads);
  ~Pool() override;

  void submit(const Operation& operation) override;
  void flush() override {}
  void reap(std::vector<Outcome>& outcomes) override;
  [[nodiscard]] int event_fd() const override { return done_event_.get(); }
  [[nodiscard]] std::string_view name() const override { return "threads"; }
  Status add_slab(std::span<std::byte> slab) override;
  bool remove_slab(std::span<std::byte>) override { return false; }

 private:
  explicit Pool(EventFd done_event) : done_event_(std::move(done_event)) {}
  void run();

  const EventFd done_event_;
  std::mutex mutex_;  // guards the members up to the threads
  std::condition_variable wake_;
  std::deque<const Operation*> waiting_;
  std::vector<Outcome> done_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvd::disk
