#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/core/controller.hpp"

namespace kvd::daemon {

/// The way of events to the Controller and of its effects to whoever carries them out. Carrying out
/// an effect can bring about an event (a peer turns out to be gone). That event waits its turn,
/// because effects, copies above all, are carried out in the order in which they were decided.
/// Owner: control thread. The clock must outlive it.
class EventFeed {
 public:
  using Perform = std::function<void(const core::Effect&)>;

  EventFeed(std::unique_ptr<core::Controller> controller, const Clock& clock)
      : controller_(std::move(controller)), clock_(clock) {}

  /// To be called once, before the first event.
  void carry_out_with(Perform perform) { perform_ = std::move(perform); }

  void feed(core::Event event) { feed(std::move(event), clock_.now()); }
  void feed(core::Event event, TimePoint at);
  /// Errors: those of Controller::attach.
  [[nodiscard]] Result<core::AttachGrant> attach(const core::Attach& attach) {
    return controller_->attach(attach, clock_.now());
  }

  [[nodiscard]] TimePoint now() const { return clock_.now(); }
  [[nodiscard]] core::ControllerStatus status() const { return controller_->status(clock_.now()); }
  [[nodiscard]] std::vector<core::DiskFound::Block> on_disk(core::DiskId disk) const {
    return controller_->on_disk(disk);
  }
  [[nodiscard]] std::map<DomainId, Bytes> excess(Tier tier) const {
    return controller_->excess(tier);
  }
  [[nodiscard]] const core::Tuning& tuning() const { return controller_->tuning(); }
  [[nodiscard]] bool is_behind() const { return controller_->is_behind(); }
  [[nodiscard]] bool drains() const { return controller_->drains(); }
  [[nodiscard]] bool drained() const { return controller_->drained(); }

 private:
  std::unique_ptr<core::Controller> controller_;
  const Clock& clock_;
  Perform perform_;
  std::deque<std::pair<core::Event, TimePoint>> waiting_;  ///< fed while another is carried out
  bool feeding_ = false;
};

}  // namespace kvd::daemon
