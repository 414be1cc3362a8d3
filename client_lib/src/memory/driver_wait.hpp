#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "client_lib/src/memory/signals_blocked.hpp"
#include "ipc/vocabulary/clock.hpp"

namespace kvd::client {

/// Makes a driver call that may wait for the device without any limit, in a thread of its own.
/// False: the call has not returned within the limit and goes on in its thread. So `call` must own
/// everything that it needs.
template <class Call>
[[nodiscard]] bool ended_within(Nanoseconds limit, Call call) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };
  const auto wait = std::make_shared<Wait>();
  std::thread thread;
  {
    const AllSignalsBlocked blocked;
    thread = std::thread([wait, call = std::move(call)]() mutable {
      call();
      const std::lock_guard lock(wait->mutex);
      wait->ended = true;
      wait->changed.notify_all();
    });
  }
  std::unique_lock lock(wait->mutex);
  const bool ended = wait->changed.wait_for(lock, limit, [&] { return wait->ended; });
  lock.unlock();
  ended ? thread.join() : thread.detach();
  return ended;
}

}  // namespace kvd::client
