#include "ipc/shm/ring.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace kvd::shm {
namespace {

constexpr std::size_t kLargest = std::size_t{256} * 1024;

std::vector<std::byte> frame_of(std::uint64_t number, std::size_t size) {
  std::vector<std::byte> frame(size);
  for (std::size_t i = 0; i < size; ++i) frame[i] = static_cast<std::byte>(number * 31 + i);
  return frame;
}

class RingTest : public ::testing::Test {
 protected:
  RingLane& lane() { return mapping_.pair().commands; }
  bool write(const std::vector<std::byte>& frame) { return writer_.write(frame); }
  std::optional<std::vector<std::byte>> read() {
    const auto frame = reader_.read();
    if (!frame.ok() || !*frame) return std::nullopt;
    return std::vector<std::byte>((*frame)->begin(), (*frame)->end());
  }

  RingMapping mapping_ = std::move(RingMapping::create().value().first);
  RingWriter writer_{lane(), mapping_.commands()};
  RingReader reader_{lane(), mapping_.commands(), kLargest};
};

TEST_F(RingTest, FramesComeOutAsTheyWentInAcrossTheWrap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::size_t> size(0, 9000);
  std::uint64_t written = 0, seen = 0;
  std::vector<std::size_t> sizes;
  while (seen < 2000) {  // about 9 MB through half a MiB
    const std::size_t next = size(random);
    if (written < 2000 && write(frame_of(written, next))) {
      sizes.push_back(next);
      ++written;
      if (random() % 3 != 0) continue;
    }
    ASSERT_EQ(read(), frame_of(seen, sizes[seen])) << "frame " << seen;
    ++seen;
  }
  EXPECT_EQ(read(), std::nullopt);
}

TEST_F(RingTest, AFullLaneTakesNothingUntilItIsRead) {
  std::size_t frames = 0;
  while (write(frame_of(frames, 4096))) ++frames;
  EXPECT_GE(frames, 127u);
  EXPECT_EQ(read(), frame_of(0, 4096));
  EXPECT_TRUE(write(frame_of(frames, 4096)));
  EXPECT_FALSE(write(frame_of(0, 4096)));
  for (std::size_t i = 1; i <= frames; ++i) ASSERT_EQ(read(), frame_of(i, 4096));
}

TEST_F(RingTest, TwoLargestFramesFit) {
  EXPECT_TRUE(write(frame_of(1, kLargest - 8)));
  EXPECT_TRUE(write(frame_of(2, kLargest - 8)));
}

TEST_F(RingTest, TheReaderRefusesPositionsAndLengthsThatCannotBe) {
  for (const std::uint64_t position :
       {std::uint64_t{1}, std::uint64_t{kRingBytes + 1}, ~std::uint64_t{0}}) {
    lane().written = position;
    EXPECT_EQ(reader_.read().error().code, ErrorCode::kInvalidArgument) << position;
  }
  for (const std::uint64_t length :
       {std::uint64_t{9}, std::uint64_t{kLargest + 1}, ~std::uint64_t{0}}) {
    std::memcpy(mapping_.commands().data(), &length, sizeof length);
    lane().written = 16;
    EXPECT_EQ(reader_.read().error().code, ErrorCode::kInvalidArgument) << length;
  }
}

TEST_F(RingTest, TheWriterTakesAPositionThatCannotBeForAFullLane) {
  for (const std::uint64_t position : {std::uint64_t{1}, std::uint64_t{1} << 63}) {
    lane().read = position;
    EXPECT_FALSE(write(frame_of(0, 8))) << position;
  }
  lane().read = 0;
  EXPECT_TRUE(write(frame_of(0, 8)));
}

TEST_F(RingTest, ASleeperIsRungForOnceAndNotWhenSomethingCameFirst) {
  EXPECT_TRUE(reader_.fall_asleep());
  EXPECT_TRUE(write(frame_of(0, 8)));
  EXPECT_TRUE(writer_.take_sleeper());
  EXPECT_FALSE(writer_.take_sleeper());
  EXPECT_FALSE(reader_.fall_asleep()) << "a frame waits";
  EXPECT_FALSE(writer_.take_sleeper()) << "nobody sleeps";
}

TEST_F(RingTest, NoFrameIsLostBetweenTwoThreads) {
  constexpr std::uint64_t kFrames = 20'000;
  std::atomic<std::uint64_t> rings = 0;
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      while (!write(frame_of(i, i % 97))) std::this_thread::yield();
      if (writer_.take_sleeper()) ++rings;
    }
  });
  std::uint64_t slept = 0;
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    std::optional<std::vector<std::byte>> frame;
    while (!(frame = read())) {
      // Asleep: only a ring may wake it. A lost one would hang here.
      if (reader_.fall_asleep()) {
        ++slept;
        while (rings < slept) std::this_thread::yield();
      }
    }
    ASSERT_EQ(*frame, frame_of(i, i % 97));
  }
  writer.join();
}

TEST(RingMapping, RefusesWhatIsNoRing) {
  auto ring = RingMapping::create().value();
  EXPECT_TRUE(RingMapping::map(ring.second.get()).ok());
  const auto page = create_memfd("x", Bytes(4096)).value();
  EXPECT_EQ(RingMapping::map(page.get()).error().code, ErrorCode::kInvalidArgument);
  ring.first.pair().magic = 0;
  EXPECT_EQ(RingMapping::map(ring.second.get()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::shm
