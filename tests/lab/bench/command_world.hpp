#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ipc/wire/codec.hpp"
#include "kvd/core/controller.hpp"

namespace kvd::bench {

/// What one command, or another event, costs the control thread.
struct CommandCost {
  std::string name;
  double ms = 0;  ///< CPU time of decoding and of the Controller
};

/// A Controller in its fullest state. One of its domains does all that it may at once: its cache
/// fills DRAM and files, and its engines have as many requests, names, regions, caches and copies
/// under way as they can. Each command is then given its largest counts. The memory consists of ids
/// alone. Refused commands count as well, because refusing costs time, too. Owner: one thread.
class CommandWorld {
 public:
  CommandWorld();

  /// Runs each command and event several times and returns the most expensive run of each. It ends
  /// what it measures as it goes, so one world serves for one call.
  [[nodiscard]] std::vector<CommandCost> measure();

 private:
  struct Placer {  ///< an engine that places its blocks
    EngineId id;
    RegionId region;
    core::CacheId cache;   ///< blocks of one piece
    core::CacheId pieces;  ///< the same of 16
    core::CacheId large;   ///< a cache for which many blocks of the others have to make way
    std::uint64_t ticket = 0;
  };

  [[nodiscard]] EngineId attach(DomainId domain, bool places);
  [[nodiscard]] Placer placer(DomainId domain);
  [[nodiscard]] core::CacheId open_cache(const Placer& placer, std::uint32_t pieces,
                                         Bytes block = Bytes(4096));
  void fill_requests(EngineId engine);
  void fill_cache(Placer& placer);
  void occupy(Placer& placer);

  void measure_requests(EngineId engine);
  void compute_prompts(EngineId engine);
  void step(const std::string& name, EngineId engine, bool ends = false);
  void measure_caches(Placer& placer);
  void measure_regions();
  void measure_events(const Placer& fullest, const Placer& parks, EngineId requests,
                      EngineId named);

  /// Decodes and carries out a frame, under this name.
  void frame(const std::string& name, EngineId engine, wire::CommandBody body);
  void measured(const std::string& name, const core::Event& event);
  void count(const std::string& name, double ms);
  /// A cache command of kCount blocks, from this digest on.
  [[nodiscard]] wire::CommandBody cache(Placer& placer, core::CacheId cache, wire::CacheOp op,
                                        std::uint64_t first, bool park = false);

  void command(EngineId engine, decltype(core::Command::body) body);
  double timed(const core::Event& event);
  void take_all();
  void settle();

  void take(const core::Reply& reply);
  void take(const core::CopySlots& copy) { ended(copy.ticket); }
  void take(const core::CopyRanges& copy);
  void take(const core::MoveSlots& copy) { ended(copy.ticket); }
  void take(const core::StreamLayers& stream) { ended(stream.ticket); }
  void take(const core::Scrub& scrub) { ended(scrub.ticket); }
  void take(const core::RenewSlab& renew) { pending_.emplace_back(core::SlabRenewed{renew.slab}); }
  void take(const core::SendSlab& sent) {
    if (!sent.region) pending_.emplace_back(core::SlabMapped{sent.engine, sent.slab});
  }
  void take(const core::AskUnmap& ask) {
    pending_.emplace_back(core::SlabUnmapped{ask.engine, ask.slab});
  }
  void take(const core::OpenDisk& order);
  void take(const core::CloseDisk& order) { pending_.emplace_back(core::DiskClosed{order.disk}); }
  void take(const core::WriteDisk& order) { on_disk(order.ticket); }
  void take(const core::ReadDisk& order) { on_disk(order.ticket); }
  template <class Other>
  void take(const Other&) {}
  void on_disk(Ticket ticket) {
    pending_.emplace_back(core::DiskFinished{ticket, true, ++generation_, false, false});
  }
  void ended(Ticket ticket) {
    pending_.emplace_back(core::CopyFinished{ticket, true, Bytes(1), Nanoseconds(1), false});
  }

  std::unique_ptr<core::Controller> controller_;
  TimePoint now_{std::chrono::seconds(1)};
  std::uint64_t last_reply_to_ = 0;
  std::vector<core::Effect> effects_;
  std::deque<core::Event> pending_;
  std::uint64_t generation_ = 0;  ///< generation of the last write to disk
  bool hold_ = false;             ///< copies of regions stay under way
  std::vector<Ticket> held_;
  std::uint64_t value_ = 0;  ///< value of the last reply, or its region
  std::string refused_;      ///< why the last command was refused
  std::vector<core::RunEntry> run_;
  std::uint64_t iteration_ = 0;
  std::vector<wire::CacheBlock> blocks_;  ///< of the current command
  std::vector<CommandCost> costs_;
};

}  // namespace kvd::bench
