#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

namespace kvd::bench {

/// Passes frames of 64 bytes from one thread to another and back through two rings. Each side
/// sleeps on a futex when it has nothing: this is the shortest round trip of two sides that can
/// sleep. `spin` is how long a side looks before it sleeps.
class RawRingEcho {
 public:
  explicit RawRingEcho(std::chrono::nanoseconds spin) : spin_(spin) {
    echo_ = std::thread([this] {
      for (Frame frame; there_.receive(frame, spin_) && frame[0] == 0;) back_.send(frame);
    });
  }
  ~RawRingEcho() {
    Frame last{1};
    there_.send(last);
    echo_.join();
  }
  RawRingEcho(const RawRingEcho&) = delete;
  RawRingEcho& operator=(const RawRingEcho&) = delete;

  void round_trip() {
    Frame frame{};
    there_.send(frame);
    back_.receive(frame, spin_);
  }

 private:
  using Frame = std::array<char, 64>;

  struct Lane {
    alignas(64) std::atomic<std::uint32_t> written = 0;
    alignas(64) std::atomic<std::uint32_t> asleep = 0;
    alignas(64) std::uint32_t read = 0;
    alignas(64) std::array<Frame, 16> frames{};

    void send(const Frame& frame) {
      const std::uint32_t at = written.load(std::memory_order_relaxed);
      frames[at % frames.size()] = frame;
      written.store(at + 1);
      if (asleep.load() != 0) syscall(SYS_futex, &written, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }

    bool receive(Frame& frame, std::chrono::nanoseconds spin) {
      if (spin.count() > 0) {
        const auto until = std::chrono::steady_clock::now() + spin;
        while (written.load() == read && std::chrono::steady_clock::now() < until) continue;
      }
      while (written.load() == read) {
        asleep = 1;
        if (written.load() == read) {
          syscall(SYS_futex, &written, FUTEX_WAIT, read, nullptr, nullptr, 0);
        }
        asleep = 0;
      }
      frame = frames[read++ % frames.size()];
      return true;
    }
  };

  std::chrono::nanoseconds spin_;
  Lane there_, back_;
  std::thread echo_;
};

}  // namespace kvd::bench
