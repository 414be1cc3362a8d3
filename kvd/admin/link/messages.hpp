#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "ipc/vocabulary/ids.hpp"

namespace kvd::admin {

/// Decides who may read over REST. Changes always need the token.
enum class ReadPolicy : std::uint8_t {
  kAuto,  ///< everybody while all engines have kvd's uid, else the token's bearer
  kOpen,
  kToken,
};

}  // namespace kvd::admin

/// What kvd and kvd-admin say to each other over their socket pair. Both come from one build and
/// one starts the other, so there is one version and no negotiation; kvd checks every length and
/// number nevertheless, as kvd-admin reads what strangers send.
namespace kvd::admin::link {

constexpr std::uint32_t kMagic = 0x4144564bu;  // "KVDA"
constexpr std::uint16_t kVersion = 1;
constexpr int kDescriptor = 3;  ///< kvd-admin's end of the pair

enum class Type : std::uint16_t {
  kBegin = 1,       ///< kvd: Begin
  kStarted = 2,     ///< kvd-admin: Verdict, once it listens (then a message warns) or cannot
  kStanding = 3,    ///< kvd-admin: Token; answered by Standing
  kSnapshot = 4,    ///< kvd-admin: nothing; answered by Verdict and, where it is Ok, a Snapshot
  kChange = 5,      ///< kvd-admin: Change; answered by Verdict and, where it is Ok, the new Tuning
  kClearCache = 6,  ///< kvd-admin: Token; answered by Verdict
};

/// Starts every message; `length` bytes follow.
struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t type = 0;
  std::uint64_t length = 0;
};
static_assert(sizeof(Header) == 16);

using Text = std::array<char, 64>;    ///< NUL-terminated
using Token = std::array<char, 256>;  ///< likewise

template <std::size_t N>
constexpr std::string_view text_of(const std::array<char, N>& text) {
  const std::string_view all(text.data(), N);
  return all.substr(0, all.find('\0'));
}
/// Cuts off what does not fit.
template <std::size_t N>
constexpr std::array<char, N> to_text(std::string_view text) {
  std::array<char, N> out{};
  text.copy(out.data(), N - 1);
  return out;
}

/// How kvd-admin is to run. An empty address: that listener is off.
struct Begin {
  Text admin_address{};
  Text metrics_address{};
  std::uint16_t admin_port = 0;
  std::uint16_t metrics_port = 0;
  std::uint32_t changes_user = 0;  ///< 1: it may and must become the user below
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
};
static_assert(sizeof(Begin) == 144);

struct Verdict {
  std::uint32_t code = 0;  ///< ErrorCode
  std::array<char, 508> message{};
};
static_assert(sizeof(Verdict) == 512);

/// What a token is worth, and whether engines can attach now.
struct Standing {
  std::uint32_t bears_token = 0;
  std::array<char, 252> not_ready{};  ///< why they cannot; empty: they can
};
static_assert(sizeof(Standing) == 256);

/// The documents that can be changed, each with a tag that tells its versions apart. The first two
/// are the tuning's.
enum class Part : std::uint32_t { kPolicy = 0, kSlo = 1, kQuotas = 2, kDrain = 3 };

/// One value that is to change.
struct Assignment {
  std::uint32_t key = 0;  ///< index into core::tuning_keys(), or a SloKey, a QuotaKey, a DrainKey
  std::uint32_t reserved = 0;
  Text slo_class{};   ///< with a SloKey; with a QuotaKey the domain
  Text text{};        ///< of a text
  double number = 0;  ///< of a number; with a DrainKey the engine, 0: the node
  /// A whole number, true (1) or false (0), nanoseconds for seconds, bytes, or kAutomatic.
  std::int64_t whole = 0;
};
static_assert(sizeof(Assignment) == 152);
constexpr std::int64_t kAutomatic = INT64_MIN;

/// What can be assigned to an SLO class.
enum class SloKey : std::uint32_t {
  kTtft = 1000,
  kTbt,
  kTpot,
  kGap,     ///< kAutomatic: by the goal between tokens
  kAdd,     ///< with the goals of "default"; it changes nothing where the class exists
  kRemove,  ///< nothing where it is not there
};

/// What can be assigned to a domain, in bytes. A maximum of kAutomatic means that there is none.
enum class QuotaKey : std::uint32_t {
  kHbmGuarantee = 2000,
  kHbmMaximum,
  kDramGuarantee,
  kDramMaximum,
};

/// What can be done to an engine or to the node. kDrain has the nanoseconds after which the
/// remaining requests end; kAutomatic: they run to their end. kDrainToRemote is the same, for the
/// node.
enum class DrainKey : std::uint32_t { kDrain = 3000, kCancel, kDrainToRemote };

constexpr std::size_t kMostAssignments = 256;
constexpr std::size_t kMostTags = 8;

/// `count` Assignments follow. It takes effect as a whole or not at all.
struct Change {
  Token token{};
  Part part = Part::kPolicy;
  std::uint32_t conditional = 0;  ///< 1: only while the part has one of the tags
  std::array<std::uint64_t, kMostTags> tags{};
  std::uint32_t tag_count = 0;
  std::uint32_t count = 0;
};
static_assert(sizeof(Change) == 336);

static_assert(std::is_trivially_copyable_v<Change> && std::is_trivially_copyable_v<Assignment> &&
              std::is_trivially_copyable_v<Begin>);

}  // namespace kvd::admin::link
