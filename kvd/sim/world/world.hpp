#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "kvd/core/controller.hpp"
#include "kvd/sim/engine/engine.hpp"
#include "kvd/sim/run/setting.hpp"
#include "kvd/sim/world/disk.hpp"
#include "kvd/sim/world/link.hpp"
#include "kvd/sim/world/meter.hpp"
#include "kvd/sim/world/streams.hpp"

namespace kvd::sim {

/// A shell around the Controller without device or sockets: a virtual clock, engines that compute
/// as long as their profile says, and a link that copies as fast as it says.
/// Source: kvd/DESIGN.md "A functional core in a thin shell".
/// Owner:  one thread; deterministic.
class World {
 public:
  /// Errors: as run().
  [[nodiscard]] static Result<std::unique_ptr<World>> create(const Setting& setting);
  /// Call it once. Errors: Internal when the Controller stops granting anything, or refuses a step.
  [[nodiscard]] Result<RunResult> play();

 private:
  enum class Phase : std::uint8_t { kIdle, kAwaitsDevice, kAwaitsCopies, kComputes, kAwaitsLayers };

  /// An engine and the iteration it is in.
  struct Driver {
    explicit Driver(Engine made) : engine(std::move(made)) {}

    Engine engine;
    EngineId id;
    Tokens mean_tokens;  ///< prompt and answer, over its part of the workload
    Streams streams;
    Phase phase = Phase::kIdle;
    bool kicked = false;                ///< something has changed since its last step
    TimePoint wake = TimePoint::max();  ///< its next event
    core::StepReply granted;            ///< the iteration to execute next; none when `run` is empty
    std::uint64_t finished = 0;         ///< last iteration that ended
    std::uint64_t reported = 0;         ///< the last one that it reported
    std::uint64_t iteration = 0;        ///< the current one
    std::vector<Ticket> tickets;        ///< swap-ins that it still has to wait for
    Nanoseconds compute{0};             ///< compute time of the iteration
    bool by_group = false;              ///< layers stream: it computes group by group
    std::uint32_t group = 0;            ///< the group that it computes or waits for
    TimePoint waits_since{0};
  };
  struct Copy {
    Bytes bytes;
    std::int64_t slots = 0;
    bool swap = false;
  };
  /// The parts that move bytes.
  struct Machine {
    Link link;
    std::optional<Disk> disk;
  };
  struct Timed {
    TimePoint due;
    core::Event event;
  };

  World(const Setting& setting, const core::Controller::Config& config);

  // ---- the loop (world.cpp) ----
  [[nodiscard]] Status attach();
  [[nodiscard]] TimePoint next_time() const;
  void happen();
  void arrivals();
  void link_ends();
  void timed_events();
  void seat(Driver& driver);
  void run_kicked();
  void kick_all();
  [[nodiscard]] bool stuck() const;
  [[nodiscard]] Error stuck_error() const;
  /// Sums up a run, which lasted at least this long if it was cut off.
  [[nodiscard]] RunResult close(Seconds at_least);
  [[nodiscard]] Seconds since_start() const { return now_ - kOrigin; }

  // ---- iterations (iterations.cpp) ----
  void turn(Driver& driver);
  void proceed(Driver& driver);
  void step(Driver& driver, bool running);
  void take_device(Driver& driver);
  void execute(Driver& driver);
  void compute(Driver& driver);
  void next_group(Driver& driver);
  void group_done(Driver& driver);
  void finish(Driver& driver);
  void wake(Driver& driver);
  [[nodiscard]] TimePoint group_end(const Driver& driver) const;

  // ---- effects (effects.cpp) ----
  void feed(const core::Event& event);
  void pump();
  void take(core::Reply& reply);
  void take(const core::PublishTable&) {}
  void take(const core::CopySlots& copy);
  void take(const core::MoveSlots& move);
  void take(core::StreamLayers& stream);
  void take(const core::EndStream& end);
  void take(core::SolvePlacement& solve);
  void take(const core::Scrub& scrub);
  void take(const core::RenewSlab& renew);
  void take(const core::SendSlab& slab);
  void take(const core::AskUnmap& ask);
  // Only the disk's orders among these are ever given: here no engine is silent or places its own
  // blocks, and no daemon follows.
  using Rare = std::variant<core::OpenDisk, core::ResizeDisk, core::CloseDisk, core::WriteDisk,
                            core::ReadDisk, core::Evict, core::CopyRanges, core::DropCopy,
                            core::SetTicket, core::FindRemote, core::ReadRemote, core::WriteRemote,
                            core::KeepRows, core::ForgetKept>;
  void take(const Rare& order);
  void take(const core::Note& note);
  void stream_ended(const Streams::Ended& ended);
  [[nodiscard]] Result<planner::PlacementDecision> decide(core::SolvePlacement& solve);
  template <class Body>
  [[nodiscard]] core::Reply command(EngineId engine, Body body);
  [[nodiscard]] Driver& driver_of(EngineId engine);

  /// Time zero of a run. It differs from the clock's zero, which the Controller takes for "never".
  static constexpr TimePoint kOrigin{1'000'000'000};

  const Setting& setting_;
  std::unique_ptr<core::Controller> controller_;
  TimePoint now_ = kOrigin;
  std::size_t next_arrival_ = 0;
  std::deque<Driver> drivers_;
  Machine machine_;
  Bytes slab_bytes_[kTiers];
  Meter meter_;
  RunTotals totals_;
  std::vector<RequestRecord> records_;

  std::deque<std::uint32_t> device_queue_;  ///< drivers; the first one has the device
  std::unordered_map<Ticket, Copy> copies_;
  std::deque<core::Event> pending_;  ///< answered at once, after the current effects
  std::vector<Timed> timed_;
  std::vector<core::Effect> effects_;
  std::vector<Link::Ended> ended_;
  std::optional<core::Reply> reply_;
  std::uint64_t last_reply_to_ = 0;
  std::map<std::string, std::unique_ptr<planner::PlacementPolicy>, std::less<>> placement_;
  TimePoint last_progress_ = kOrigin;
  std::size_t done_ = 0;
  Status fault_;
  std::string last_note_;
  std::mt19937 random_{1};  ///< for Setting::Victim::kRandom
};

}  // namespace kvd::sim
