#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvd {

/// An identifier of one kind of thing; ids of different kinds neither compare nor convert.
/// Value 0 means "none" for every kind but DeviceId, SlabIndex and SlotId, which count from 0.
template <class Tag, class Rep>
struct Id {
  Rep value = 0;
  constexpr Id() = default;
  explicit constexpr Id(Rep v) : value(v) {}
  explicit constexpr operator bool() const { return value != 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

/// A client process known to the daemon, unique for the daemon's life.
using EngineId = Id<struct EngineIdTag, std::uint32_t>;
/// Model shape + block_tokens + layers_per_block; fixes the slot size.
using ClassId = Id<struct ClassIdTag, std::uint32_t>;
using DomainId = Id<struct DomainIdTag, std::uint32_t>;
/// A level-1 lease of whole slabs.
using RegionId = Id<struct RegionIdTag, std::uint64_t>;
/// A copy the daemon has queued; tickets of one session grow and never wrap.
using Ticket = Id<struct TicketTag, std::uint64_t>;
/// Bumped whenever a session starts or is replaced; an old one gets StaleSession.
using Generation = Id<struct GenerationTag, std::uint64_t>;
using PlanVersion = Id<struct PlanVersionTag, std::uint64_t>;
/// A device with HBM of its own, in the order of the configuration.
using DeviceId = Id<struct DeviceIdTag, std::uint32_t>;
/// Slabs of HBM are numbered through all devices, device by device; those of DRAM by themselves.
using SlabIndex = Id<struct SlabIndexTag, std::uint32_t>;

/// What an engine calls one of its requests: its own number, unique within its session.
using RequestId = Id<struct RequestIdTag, std::uint64_t>;

/// A request across all sessions of the daemon.
struct RequestKey {
  EngineId engine;
  RequestId request;
  friend constexpr auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// A block's place in a tier: slab index and slot within the slab in 32 bits, as they stand in
/// block tables.
struct SlotId {
  static constexpr std::uint32_t kIndexBits = 18;
  static constexpr std::uint32_t kMaxSlotsPerSlab = 1u << kIndexBits;
  static constexpr std::uint32_t kMaxSlabs = 1u << (32 - kIndexBits);
  /// No slot; its slab index would be the last one, which pools therefore never use.
  static constexpr std::uint32_t kNone = 0xffffffffu;

  std::uint32_t value = kNone;

  constexpr SlotId() = default;
  explicit constexpr SlotId(std::uint32_t raw) : value(raw) {}
  constexpr SlotId(SlabIndex slab, std::uint32_t index)
      : value((slab.value << kIndexBits) | index) {}

  [[nodiscard]] constexpr bool none() const { return value == kNone; }
  [[nodiscard]] constexpr SlabIndex slab() const { return SlabIndex(value >> kIndexBits); }
  [[nodiscard]] constexpr std::uint32_t index() const { return value & (kMaxSlotsPerSlab - 1); }
  friend constexpr auto operator<=>(SlotId, SlotId) = default;
};

/// Random 128 bits: the daemon's life (boot id) or a session's secret (session key).
struct Id128 {
  std::array<std::uint8_t, 16> bytes{};
  friend constexpr auto operator<=>(const Id128&, const Id128&) = default;
};
using BootId = Id128;
using SessionKey = Id128;

/// Equality whose running time does not depend on where the keys differ (safety rule 6).
[[nodiscard]] inline bool equal_constant_time(const Id128& a, const Id128& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.bytes.size(); ++i) difference |= unsigned{a.bytes[i]} ^ b.bytes[i];
  return difference == 0;
}

/// Where bytes live.
enum class Tier : std::uint8_t { kHbm = 0, kDram = 1 };
constexpr std::size_t kTiers = 2;
constexpr const char* name(Tier tier) { return tier == Tier::kHbm ? "hbm" : "dram"; }

}  // namespace kvd

template <class Tag, class Rep>
struct std::hash<kvd::Id<Tag, Rep>> {
  std::size_t operator()(kvd::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};

template <>
struct std::hash<kvd::RequestKey> {
  std::size_t operator()(const kvd::RequestKey& key) const noexcept {
    // Engines number requests densely from small values; the odd multiplier spreads both halves.
    return std::hash<std::uint64_t>{}(key.request.value * 0x9e3779b97f4a7c15ull ^ key.engine.value);
  }
};
