#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kernels/copy/copy_extent.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/mover/counters.hpp"
#include "kvd/mover/run_cursor.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::mover {

/// The words of a client page that a session's layer streams go by. The peer can write them all.
struct LayerWords {
  const std::atomic<std::uint64_t>* progress = nullptr;
  std::atomic<std::uint64_t>* progress_wanted = nullptr;
  std::atomic<std::uint64_t>* fence = nullptr;
};

/// What there is to fetch of streamed layers, in which order, and how far each session's fence may
/// go. Knows no device: the mover submits the bursts it hands out and tells how they ended.
///
/// Within a session the earliest iteration and layer group goes first, among the fetches whose
/// `after` its progress word has reached. Domains take turns, burst by burst, and so do sessions
/// within them, whatever their words claim: a session that writes nonsense there harms its own
/// staging slots alone. The fence says that groups are in HBM when every byte of them is, in
/// whatever order and however often ends of bursts are reported (safety rule 1).
/// Source: OrbitFlow sec. 4.1; kvd/DESIGN.md "Bytes on their way".
/// Owner:  control thread. The words of a session must live until the last of its streams is told
///         finished.
class LayerStreamer {
 public:
  /// How often a burst is tried in all. It may be tried again, as its source, a sealed copy, is
  /// intact.
  static constexpr std::uint32_t kTries = 3;

  LayerStreamer(const SlabStore& slabs, MoverCounters& counters)
      : slabs_(&slabs), counters_(&counters) {}

  void begin(core::StreamLayers stream, LayerWords words);
  /// Hands out no more of the stream.
  void end(Ticket stream);

  /// Reads every waiting session's progress word, once.
  void look();
  struct Next {
    std::vector<kernels::CopyExtent> extents;
    DomainId domain;
  };
  /// What to copy next, at most `limit` bytes, under the number that finished() is told.
  [[nodiscard]] std::optional<Next> next(Ticket burst, Bytes limit);
  /// Not ok: no byte of the burst may be trusted. A number that is not known was reported before.
  void finished(Ticket burst, bool ok, Bytes bytes, Nanoseconds busy);

  /// Whether a fetch waits for its engine.
  [[nodiscard]] bool awaits_progress() const;
  /// Call before sleeping: asks these engines to ring. False: one moved on meanwhile.
  [[nodiscard]] bool fall_asleep();

  /// Appends the streams that have ended since the last call.
  void take_ended(std::vector<core::CopyFinished>& ended);

 private:
  struct Burst {
    std::vector<std::size_t> fetches{};  ///< it has a part of each
    std::vector<kernels::CopyExtent> extents{};
    std::uint32_t tries = 0;  ///< that failed
  };
  struct Part {  ///< one fetch's state
    std::optional<RunCursor> cursor;
    bool cut = false;        ///< all of it has been handed out
    std::uint32_t open = 0;  ///< bursts without success yet
  };
  struct Stream {
    core::StreamLayers order;
    std::vector<Part> parts;   ///< by fetch
    std::size_t first = 0;     ///< fetches before it are cut
    std::size_t complete = 0;  ///< fetches before it are all in HBM
    std::deque<Burst> again{};
    std::uint32_t in_flight = 0;
    bool ended = false;
    bool failed = false;
    std::uint64_t told = 0;  ///< mark the fence was raised to
    Bytes bytes{};
    Nanoseconds busy{0};

    [[nodiscard]] bool stopped() const { return ended || failed; }
    [[nodiscard]] bool through() const {
      return in_flight == 0 && (stopped() || complete == parts.size());
    }
    [[nodiscard]] bool due(std::size_t fetch, std::uint64_t progress) const {
      return !parts[fetch].cut && order.fetches[fetch].after <= progress;
    }
    [[nodiscard]] bool any_due(std::uint64_t progress) const;
  };
  struct Session {
    LayerWords words;
    std::uint64_t progress = 0;             ///< as last read
    std::optional<std::uint64_t> awaits{};  ///< progress at which the next fetch is due
    DomainId domain{};
    std::uint64_t served = 0;      ///< turn in which it was served last
    std::deque<Stream> streams{};  ///< by iteration, never empty
  };
  struct Flying {
    EngineId engine;
    Ticket stream;
    Burst burst;
  };

  /// Whether a comes before b.
  [[nodiscard]] bool earlier(const Session& a, const Session& b) const;
  [[nodiscard]] static Stream* with_work(Session& session);
  [[nodiscard]] Burst cut(Stream& stream, std::uint64_t progress, Bytes limit);
  Bytes cut_fetch(Stream& stream, std::size_t fetch, Bytes room, Burst& burst);
  void advance(Stream& stream);
  void settle(EngineId engine);
  static void raise_fence(Session& session);
  static void find_next_wait(Session& session);

  const SlabStore* slabs_;
  MoverCounters* counters_;
  std::map<EngineId, Session> sessions_;
  std::unordered_map<Ticket, Flying> flying_;
  std::unordered_map<Ticket, EngineId> engines_;  ///< by stream
  std::vector<core::CopyFinished> ended_;
  std::map<DomainId, std::uint64_t>
      served_;  ///< domains with sessions, and the turn in which each was served last
  std::uint64_t turns_ = 0;
};

}  // namespace kvd::mover
