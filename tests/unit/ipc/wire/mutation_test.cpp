// Damaged frames: a decoder answers with an error code or a message whose every entry can be read,
// whatever bytes it is given. Runs with the same seed each time; KVD_TEST_SEED picks another.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "ipc/wire/attach_codec.hpp"
#include "ipc/wire/codec.hpp"
#include "tests/unit/ipc/wire/golden.hpp"

namespace kvd::wire {
namespace {

constexpr int kRounds = 3000;

std::uint64_t seed() {
  const char* given = std::getenv("KVD_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 20250711;
}

/// An exact-size heap copy, so that asan sees a read one byte past the frame.
std::vector<std::byte> damaged(std::vector<std::byte> frame, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return random() % n; };
  switch (below(4)) {
    case 0:
      frame.resize(below(frame.size() + 1));
      break;
    case 1:
      resize(frame, frame.size() + below(200));
      break;
    case 2:
      resize(frame, 16 + below(frame.size()));
      break;
    default:
      break;
  }
  for (std::size_t flips = below(6); flips > 0 && !frame.empty(); --flips) {
    frame[below(frame.size())] ^= static_cast<std::byte>(1u << below(8));
  }
  frame.shrink_to_fit();
  return frame;
}

std::uint64_t sum(const Command& command) {
  std::uint64_t total = 0;
  if (const auto* step = std::get_if<StepCommand>(&command.body)) {
    for (const StepReport report : step->reports) total += report.tokens;
  } else if (const auto* place = std::get_if<PlaceCommand>(&command.body)) {
    for (const std::uint64_t request : place->requests) total += request;
  } else if (const auto* name = std::get_if<NameCommand>(&command.body)) {
    for (const BlockName block : name->blocks) total += block.digest[31];
  } else if (const auto* schedule = std::get_if<ScheduleCommand>(&command.body)) {
    for (const ScheduleRequest request : schedule->requests) total += request.tbt_ns;
  } else if (const auto* space = std::get_if<SpaceCommand>(&command.body)) {
    for (const std::uint32_t position : space->positions) total += position;
  }
  return total;
}

std::uint64_t sum(const Reply& reply) {
  std::uint64_t total = reply.message.size();
  if (const auto* step = std::get_if<StepReply>(&reply.body)) {
    for (const RunEntry entry : step->run) total += entry.request;
    for (const HoldEntry entry : step->hold) total += entry.request;
  } else if (const auto* place = std::get_if<PlaceReply>(&reply.body)) {
    for (const PlaceEntry entry : place->entries) total += entry.request;
  } else if (const auto* schedule = std::get_if<ScheduleReply>(&reply.body)) {
    for (const std::uint64_t request : schedule->preempt) total += request;
    for (const std::uint64_t request : schedule->admit) total += request;
  }
  return total;
}

std::uint64_t sum(const AttachMessage& message) { return message.index(); }

template <class Names, class Decode>
void damage_all(const Names& names, Decode decode) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed()));
  std::mt19937_64 random(seed());
  int good = 0, bad = 0;
  std::uint64_t touched = 0;
  for (const char* name : names) {
    const auto file = golden(name);
    ASSERT_FALSE(file.empty()) << name;
    for (int i = 0; i < kRounds; ++i) {
      const auto frame = damaged(file, random);
      const auto result = decode(frame);
      result.ok() ? ++good : ++bad;
      if (result.ok()) {
        touched += sum(*result);
      } else {
        EXPECT_NE(result.error().code, ErrorCode::kOk);
      }
    }
  }
  // Both outcomes must occur, or the damage is too weak or too strong to show anything.
  EXPECT_GT(good, 0);
  EXPECT_GT(bad, kRounds);
  EXPECT_NE(touched, 0u);
}

TEST(Mutation, CommandsNeverCrashTheDecoder) {
  damage_all(kGoldenCommands, [](const auto& frame) { return decode_command(frame); });
}
TEST(Mutation, RepliesNeverCrashTheDecoder) {
  damage_all(kGoldenReplies, [](const auto& frame) { return decode_reply(frame); });
}
TEST(Mutation, AttachFramesNeverCrashTheDecoder) {
  damage_all(kGoldenAttach, [](const auto& frame) { return decode_attach(frame); });
}

}  // namespace
}  // namespace kvd::wire
