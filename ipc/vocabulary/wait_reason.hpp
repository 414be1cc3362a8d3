#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvd {

/// Why a request makes no token now.
enum class WaitReason : std::uint8_t {
  kNone,  ///< it runs, or owes no token
  kStep,
  kSilent,
  kMemory,
  kDram,
  kBehind,
  kLate,
  kHeldBack,
  kCurbed,
  kSeats,
  kPromised,
  kMapping,
  kYields,
  kCopy,
  kDisk,
  kPaused,
  kForced,
  kDrained,
  kEnds,
};

/// How programs and people read a reason.
struct WaitText {
  std::string_view word;
  std::string_view sentence;
};

/// In the order of the reasons.
inline constexpr std::array<WaitText, 19> kWaitTexts = {{
    {"", "it does not wait"},
    {"step", "it waits for its engine's next step"},
    {"silent", "its engine is silent"},
    {"memory", "HBM has no room for it"},
    {"dram", "HBM is full, and DRAM has no room for those who would leave"},
    {"behind", "others go first"},
    {"late", "its goal has passed, and those that can still be in time go first"},
    {"held_back", "the admission policy holds it back, so that others keep their pace"},
    {"curbed", "it may not grow, so that others can end"},
    {"seats", "its engine runs as many requests as it can"},
    {"promised", "a request of another engine makes room for it"},
    {"mapping", "its engine has to map the memory first"},
    {"yields", "it makes room for others"},
    {"copy", "its blocks come back from DRAM"},
    {"disk", "its blocks are read from disk"},
    {"paused", "the placement policy pauses it"},
    {"forced", "a command took it out of HBM"},
    {"drained", "its engine is out of service"},
    {"ends", "it ends for want of memory"},
}};

/// The reason as JSON has it; empty: the request does not wait.
[[nodiscard]] constexpr std::string_view name(WaitReason reason) {
  return kWaitTexts[static_cast<std::size_t>(reason)].word;
}

/// An unknown word is returned as it is: a newer kvd may know more reasons.
[[nodiscard]] constexpr std::string_view wait_sentence(std::string_view word) {
  for (const WaitText& text : kWaitTexts) {
    if (text.word == word) return text.sentence;
  }
  return word;
}

static_assert(name(WaitReason::kEnds) == "ends", "each reason has its text");

}  // namespace kvd
