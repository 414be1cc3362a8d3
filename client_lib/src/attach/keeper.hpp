#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "client_lib/src/memory/slab_map.hpp"
#include "ipc/shm/client_page.hpp"
#include "ipc/transport/attach.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::client {

/// The thread that represents the process while the session lives. It holds the robust mutex whose
/// release the kernel guarantees, bumps the heartbeat, maps the slabs that the daemon sends, and is
/// the first to notice that the daemon is gone.
/// Owner:   the session; page, connection and slabs must outlive it
class Keeper {
 public:
  /// Returns once the thread holds the mutex.
  static Result<std::unique_ptr<Keeper>> start(shm::MappedClientPage& page,
                                               transport::AttachConnection& connection,
                                               SlabMap& slabs);
  /// Ends the thread, which releases the mutex.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// The session is over: poisons the page, which ends all waits on it for good, and ends waits for
  /// slabs.
  void declare_gone();
  [[nodiscard]] bool gone() const { return gone_.load(std::memory_order_acquire); }

 private:
  Keeper(shm::ClientPage& page, transport::AttachConnection& connection, SlabMap& slabs,
         UniqueFd stop);
  void run(const std::function<void(int)>& locked);
  void serve();
  void beat();
  /// Takes all frames that have come; where mappings are held, it takes them later. False once the
  /// session cannot go on: the daemon is gone, or what it lends cannot be mapped.
  bool take_frames(bool hung_up);
  Status handle(const transport::AttachFrame& frame);

  shm::ClientPage& page_;
  transport::AttachConnection& connection_;
  SlabMap& slabs_;
  UniqueFd stop_;
  std::atomic<bool> gone_{false};
  std::thread thread_;
};

}  // namespace kvd::client
