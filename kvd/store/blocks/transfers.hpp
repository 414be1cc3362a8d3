#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/blocks/blocks.hpp"
#include "kvd/store/memory/orders.hpp"

namespace kvd::store {

/// Why blocks move.
enum class Purpose : std::uint8_t {
  kRotateOut,  ///< their request leaves HBM
  kRotateIn,   ///< it comes back
  kSync,       ///< a copy in DRAM, made ahead
  kFetch,      ///< layers that are to stay in HBM from now on
};

/// Blocks of one request on their way from one tier to the other. They have a slot in both; the
/// bytes of the target are those of the source once the transfer has ended well.
struct Transfer {
  Purpose purpose = Purpose::kRotateOut;
  RequestKey request;
  DomainId domain;
  Bytes slot_bytes;
  std::vector<std::uint32_t> places;  ///< in the request's block table
  std::vector<DeviceId> devices{};    ///< whose links it takes
  bool abandoned = false;  ///< its request has ended; its slots are held until the transfer ends

  [[nodiscard]] Tier to() const {
    return purpose == Purpose::kRotateOut || purpose == Purpose::kSync ? Tier::kDram : Tier::kHbm;
  }
};

/// Layers of an engine's requests, fetched while one of its iterations runs.
struct Stream {
  EngineId engine;
  DomainId domain;
  DeviceId device;
  std::uint64_t iteration = 0;
  bool ending = false;  ///< starts no further fetch
};

/// What is under way: transfers of blocks and streams of layers, by ticket. It orders the copies
/// and remembers what each is for until the shell says that it has ended.
///
/// Source: kvd design (DESIGN.md "Blocks that come and go").
///
/// Owner: control thread. Errors: none. Cost: O(blocks moved); what asks by domain or engine O(what
/// is under way).
class Transfers {
 public:
  explicit Transfers(Orders& orders) : orders_(orders) {}

  /// Orders the copy of transfer.places of the table, whose slots in both tiers are taken.
  [[nodiscard]] Ticket start(const Blocks& blocks, const BlockTable& table, Transfer transfer);
  /// None: no such transfer is open.
  [[nodiscard]] std::optional<Transfer> ended(Ticket ticket);
  /// Tells that its request ends first. Returns its places.
  [[nodiscard]] std::vector<std::uint32_t> abandon(Ticket ticket);
  /// The engine has ended and waits at no fence: the abandoned transfers of its requests are copied
  /// no further.
  void drop(EngineId engine);
  [[nodiscard]] const Transfer& at(Ticket ticket) const { return transfers_.at(ticket); }

  /// Orders the fetches, sorted by layer group here.
  [[nodiscard]] Ticket start(StreamLayers stream, DomainId domain, DeviceId device);
  [[nodiscard]] std::optional<Stream> stream_ended(Ticket ticket);
  /// Iterations up to `finished` are over: their streams start no further fetch.
  void end_streams(EngineId engine, std::uint64_t finished);

  /// Whether a transfer of the domain is under way from or to the device's HBM.
  [[nodiscard]] bool under_way(DomainId domain, DeviceId device) const;
  /// Bytes on their way into the device's HBM, streams aside.
  [[nodiscard]] Bytes coming(DeviceId device) const;
  [[nodiscard]] bool open(Ticket ticket) const { return transfers_.contains(ticket); }
  [[nodiscard]] bool streams(Ticket ticket) const { return streams_.contains(ticket); }

 private:
  Orders& orders_;
  std::map<Ticket, Transfer> transfers_;
  std::map<Ticket, Stream> streams_;
};

}  // namespace kvd::store
