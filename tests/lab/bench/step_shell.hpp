#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kvd/core/controller.hpp"

namespace kvd::bench {

/// What one step costs, in microseconds of this thread's CPU time.
struct StepCost {
  double step_us = 0;
  /// Time to copy the effects of the step: its reply, table, copies and stream.
  double copy_us = 0;
};

/// A shell around the real Controller without device or sockets: everything that the Controller
/// asks for is done before the next event, in virtual time. The answer about placement is always
/// the same: every second layer group streams. Ends the program where a command is refused.
/// Owner: one thread.
class StepShell {
 public:
  static constexpr Nanoseconds kStep = std::chrono::milliseconds(30);  ///< from step to step

  /// What the Controller said last.
  struct Seen {
    core::StepReply reply;
    std::vector<core::TableRow> table;
    std::int64_t streamed = 0;  ///< blocks of one layer group in the last stream
    std::vector<RegionId> regions;
  };

  explicit StepShell(core::Controller::Config config);

  [[nodiscard]] EngineId attach(const core::Attach& attach);
  void command(EngineId engine, decltype(core::Command::body) body);
  void feed(const core::Event& event);
  /// Measures the same command, one step's time after the one before.
  StepCost step(EngineId engine, core::Step body);

  [[nodiscard]] const core::Tuning& tuning() const { return controller_->tuning(); }
  [[nodiscard]] core::ControllerStatus status() const { return controller_->status(now_); }
  [[nodiscard]] Seen& seen() { return seen_; }
  [[nodiscard]] const Seen& seen() const { return seen_; }

 private:
  [[nodiscard]] core::Event command_event(EngineId engine, decltype(core::Command::body) body);
  void take_all(const std::vector<core::Effect>& effects);
  void settle();
  void copied(Ticket ticket, Bytes bytes);

  void take(const core::Reply& reply);
  void take(const core::PublishTable& table) { seen_.table = table.rows; }
  void take(const core::CopySlots& copy);
  void take(const core::MoveSlots& move);
  void take(const core::StreamLayers& stream);
  void take(const core::SolvePlacement& problem);
  void take(const core::Scrub& scrub) { copied(scrub.ticket, Bytes(0)); }
  void take(const core::RenewSlab& renew) { pending_.emplace_back(core::SlabRenewed{renew.slab}); }
  void take(const core::SendSlab& sent);
  void take(const core::AskUnmap& ask);
  void take(const core::EndStream&) {}  // it has ended
  void take(const core::OpenDisk&) {}   // there is no disk
  void take(const core::ResizeDisk&) {}
  void take(const core::CloseDisk&) {}
  void take(const core::WriteDisk&) {}
  void take(const core::CopyRanges&) {}  // no engine here places its own blocks
  void take(const core::DropCopy&) {}
  void take(const core::SetTicket&) {}
  void take(const core::ReadDisk&) {}
  void take(const core::FindRemote&) {}
  void take(const core::ReadRemote&) {}
  void take(const core::WriteRemote&) {}
  void take(const core::KeepRows&) {}  // nor does a daemon follow this one
  void take(const core::ForgetKept&) {}
  void take(const core::Evict&) {}
  void take(const core::Note&) {}

  std::unique_ptr<core::Controller> controller_;
  TimePoint now_{std::chrono::seconds(1)};
  Seen seen_;
  std::vector<core::Effect> effects_;  ///< of the last step
  std::deque<core::Event> pending_;    ///< answers to effects
  std::uint64_t last_reply_to_ = 0;
};

}  // namespace kvd::bench
