#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/sim/world/link.hpp"

namespace kvd::sim {

/// The streamed layers of one engine: puts fetches on the link as the engine's progress lets them
/// start, and says how far their fence is.
/// Source: the contract of core::StreamLayers.
/// Owner:  one thread.
class Streams {
 public:
  struct Ended {
    Ticket ticket;
    Bytes bytes;
    std::int64_t slots = 0;
    Nanoseconds busy{0};
  };

  /// A stream without fetches ends at once.
  [[nodiscard]] std::optional<Ended> begin(core::StreamLayers stream, Link& link, TimePoint now);
  /// Starts no further fetch. The stream ends once none of its fetches is in flight.
  [[nodiscard]] std::optional<Ended> stop(Ticket ticket, Link& link, TimePoint now);
  /// The engine's progress word has reached `mark`.
  void progressed(std::uint64_t mark, Link& link, TimePoint now);
  /// A fetch is complete. Returns a value when it was the last of its stream.
  [[nodiscard]] std::optional<Ended> fetched(const Link::Ended& job);
  /// Whether the iteration may touch a layer group (0-based).
  [[nodiscard]] bool ready(std::uint64_t iteration, std::uint32_t group) const;
  [[nodiscard]] bool any() const { return !streams_.empty(); }

 private:
  struct Stream {
    core::StreamLayers order;
    std::vector<bool> issued, complete;
    std::size_t first_open = 0;  ///< fetches before it are complete
    std::size_t pending = 0;     ///< fetches not complete yet
    std::int64_t slots = 0;      ///< slots moved
    Nanoseconds busy{0};
  };

  void issue(Stream& stream, Link& link, TimePoint now);
  [[nodiscard]] std::optional<Ended> end_if_done(std::vector<Stream>::iterator stream);
  [[nodiscard]] std::vector<Stream>::iterator find(Ticket ticket);

  std::vector<Stream> streams_;
  std::uint64_t mark_ = 0;
};

}  // namespace kvd::sim
