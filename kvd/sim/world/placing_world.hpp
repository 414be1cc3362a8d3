#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kvd/core/controller.hpp"
#include "kvd/sim/engine/placing_engine.hpp"
#include "kvd/sim/run/setting.hpp"
#include "kvd/sim/world/link.hpp"
#include "kvd/sim/world/mapper.hpp"

namespace kvd::sim {

/// A shell around the Controller for engines that place their blocks themselves: a virtual clock,
/// engines that compute as long as their profile says, and a link that copies what they park and
/// fetch as fast as the profile says. Each engine has its part of HBM and DRAM, by its guarantee or
/// else an equal one; or the engines lend each other HBM, by spaces (EngineSetting::elastic).
/// Source: kvd/DESIGN.md "Engines that place their blocks".
/// Owner:  one thread; deterministic.
class PlacingWorld {
 public:
  /// Errors: as run().
  [[nodiscard]] static Result<std::unique_ptr<PlacingWorld>> create(const Setting& setting);
  /// Call it once. Errors: Internal when no request makes progress any more, or the Controller
  /// refuses a question.
  [[nodiscard]] Result<RunResult> play();

 private:
  enum class Phase : std::uint8_t { kIdle, kAwaitsDevice, kComputes };

  /// An engine and the step it is in.
  struct Driver {
    explicit Driver(PlacingEngine made) : engine(std::move(made)) {}

    PlacingEngine engine;
    std::optional<Mapper> mapper;  ///< set where HBM comes and goes
    EngineId id;
    Phase phase = Phase::kIdle;
    Nanoseconds compute{0};             ///< compute time of the step
    TimePoint wake = TimePoint::max();  ///< when it ends, or the engine asks again
  };
  struct Copy {
    Driver* driver = nullptr;
    PlacingEngine::Transfer transfer;
  };

  explicit PlacingWorld(const Setting& setting);

  [[nodiscard]] Status attach();
  [[nodiscard]] Status open_space(Driver& driver);
  [[nodiscard]] TimePoint next_time() const;
  void happen();
  void arrivals();
  void copies_end();
  void map();
  void turn(Driver& driver);
  [[nodiscard]] std::optional<core::ScheduleReply> ask(Driver& driver);
  /// kvd's answer; none: it comes later, to the engine's mapper.
  [[nodiscard]] std::optional<core::Reply> command(EngineId engine,
                                                   decltype(core::Command::body) body,
                                                   Nanoseconds patience);
  /// Returns the answer to `awaited`; other answers go to mappers.
  std::optional<core::Reply> feed(const core::Event& event, core::ReplyTo awaited = {});
  void begin_scrub(const core::Scrub& scrub);
  void begin_copies(Driver& driver);
  void compute(Driver& driver);
  void finish(Driver& driver);
  [[nodiscard]] Seconds since_start() const { return now_ - kOrigin; }
  [[nodiscard]] Error stuck_error() const;
  [[nodiscard]] RunResult close(Seconds at_least);

  /// Time zero of a run. It differs from the clock's zero, which the Controller takes for "never".
  static constexpr TimePoint kOrigin{1'000'000'000};

  const Setting& setting_;
  std::unique_ptr<core::Controller> controller_;
  TimePoint now_ = kOrigin;
  std::size_t next_arrival_ = 0;
  std::vector<RequestRecord> records_;
  std::deque<Driver> drivers_;
  Link link_;
  std::map<Ticket, Copy> copies_;
  std::uint64_t last_ticket_ = 0, last_reply_to_ = 0;
  std::multimap<TimePoint, core::CopyFinished> scrubs_;  ///< under way
  TimePoint tick_ = TimePoint::max();                    ///< when it gives up waiting for a growth
  std::deque<Driver*> device_queue_;                     ///< the first one has the device
  RunTotals totals_;
  std::uint64_t asked_ = 0;  ///< steps planned
  TimePoint last_progress_ = kOrigin;
  Status fault_;
};

}  // namespace kvd::sim
