#pragma once

#include <sys/epoll.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kvd/tiers/disk/files/event_fd.hpp"
#include "kvd/tiers/disk/files/io.hpp"

namespace kvd::disk {

/// A real Io that answers some operations itself, and holds others back as a hung device would.
/// Thread-safe where the tests need it: script and release.
class FaultyIo final : public Io {
 public:
  /// What happens to an operation: the result it gets without being carried out, or none.
  using Script = std::function<std::optional<std::int64_t>(const Operation&)>;

  /// What a test keeps hold of. It outlives the tier.
  struct Control {
    std::mutex mutex;
    Script script;
    bool hold = false;
    std::vector<const Operation*> held;
    std::vector<std::pair<bool, std::int64_t>> started;  ///< write, offset
    EventFd event = std::move(EventFd::make()).value();

    void fail(Script with) {
      const std::lock_guard lock(mutex);
      script = std::move(with);
    }
    void set_hold(bool on) {
      {
        const std::lock_guard lock(mutex);
        hold = on;
      }
      event.signal();
    }
    std::size_t held_now() {
      const std::lock_guard lock(mutex);
      return held.size();
    }
  };

  FaultyIo(std::unique_ptr<Io> real, std::shared_ptr<Control> control)
      : real_(std::move(real)),
        control_(std::move(control)),
        both_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (const int fd : {real_->event_fd(), control_->event.get()}) {
      epoll_event event{EPOLLIN, {}};
      KVD_CHECK(::epoll_ctl(both_.get(), EPOLL_CTL_ADD, fd, &event) == 0,
                "a descriptor is watched");
    }
  }

  void submit(const Operation& operation) override {
    const std::lock_guard lock(control_->mutex);
    control_->started.emplace_back(operation.write, operation.offset.value);
    const auto answer = control_->script ? control_->script(operation) : std::nullopt;
    if (answer) {
      answered_.push_back({operation.id, *answer});
      control_->event.signal();
    } else if (control_->hold) {
      control_->held.push_back(&operation);
    } else {
      real_->submit(operation);
    }
  }
  void flush() override {
    release();
    real_->flush();
  }
  void reap(std::vector<Outcome>& outcomes) override {
    control_->event.drain();
    {
      const std::lock_guard lock(control_->mutex);
      outcomes.insert(outcomes.end(), answered_.begin(), answered_.end());
      answered_.clear();
    }
    real_->reap(outcomes);
  }
  [[nodiscard]] int event_fd() const override { return both_.get(); }
  [[nodiscard]] std::string_view name() const override { return real_->name(); }
  Status add_slab(std::span<std::byte> slab) override { return real_->add_slab(slab); }
  bool remove_slab(std::span<std::byte> slab) override { return real_->remove_slab(slab); }

 private:
  void release() {
    const std::lock_guard lock(control_->mutex);
    if (control_->hold) return;
    for (const Operation* operation : std::exchange(control_->held, {})) real_->submit(*operation);
  }

  const std::unique_ptr<Io> real_;
  const std::shared_ptr<Control> control_;
  const UniqueFd both_;
  std::vector<Outcome> answered_;
};

/// Puts a FaultyIo into the options.
inline std::shared_ptr<FaultyIo::Control> add_faults(
    std::function<std::unique_ptr<Io>(std::unique_ptr<Io>)>& wrap) {
  auto control = std::make_shared<FaultyIo::Control>();
  wrap = [control](std::unique_ptr<Io> real) {
    return std::make_unique<FaultyIo>(std::move(real), control);
  };
  return control;
}

}  // namespace kvd::disk
