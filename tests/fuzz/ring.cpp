// Words and bytes that an engine may write into its ring at any time, and frames between them. No
// position or length makes the daemon's ends touch what is not the ring's, and what nobody has
// spoiled comes as it was sent.
#include "ipc/shm/ring.hpp"

#include <cstdint>
#include <deque>

#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

constexpr std::size_t kRoom = 256, kLargest = 96;

/// A lane on the heap, so that a byte beside it is found.
struct Lane {
  shm::RingLane words{};
  Data bytes = Data(kRoom);
};

Data frame_of(std::uint8_t size) { return {std::size_t{size} % (kLargest + 1), std::byte(size)}; }

/// The engine's commands, which the daemon reads.
class Commands {
 public:
  void send(std::uint8_t size) {
    const Data frame = frame_of(size);
    if (writer_.write(frame)) sent_.push_back(frame);
  }
  void spoil(View& input) {
    honest_ = false;
    const auto where = take<std::uint16_t>(input);
    if (where % 4 == 0) lane_.words.written.store(take<std::uint64_t>(input));
    if (where % 4 == 1) lane_.words.written.fetch_add(take<std::uint8_t>(input));
    if (where % 4 == 2) lane_.words.read.store(take<std::uint64_t>(input));
    if (where % 4 == 3) lane_.bytes[where / 4 % kRoom] = take<std::byte>(input);
  }
  /// False: the lane is lost.
  bool receive() {
    const auto frame = reader_.read();
    expect(frame.ok() || !honest_, "an honest frame is refused");
    if (!frame.ok()) return false;
    expect(frame->has_value() || !honest_ || sent_.empty(), "a frame is not read");
    if (!frame->has_value()) return true;
    expect((*frame)->size() <= kLargest, "a frame is larger than it may be");
    if (honest_) {
      expect(!sent_.empty() && std::ranges::equal(**frame, sent_.front()), "another frame comes");
      sent_.pop_front();
    }
    return true;
  }
  void doze() { expect(reader_.fall_asleep() == reader_.empty(), "it sleeps beside a frame"); }

 private:
  Lane lane_;
  shm::RingWriter writer_{lane_.words, lane_.bytes};
  shm::RingReader reader_{lane_.words, lane_.bytes, kLargest};
  std::deque<Data> sent_;
  bool honest_ = true;
};

/// The daemon's replies, whose reader says how far it is.
void reply(Lane& lane, shm::RingWriter& writer, View& input) {
  if (take<std::uint8_t>(input) % 2 == 0) lane.words.read.store(take<std::uint64_t>(input));
  const std::uint64_t before = lane.words.written.load();
  const Data frame = frame_of(take<std::uint8_t>(input));
  const bool written = writer.write(frame);
  const std::uint64_t more = lane.words.written.load() - before;
  expect(written ? more >= frame.size() && more <= kRoom : more == 0, "it says something else");
  (void)writer.take_sleeper();
}

}  // namespace

std::vector<Data> seeds() {
  using std::byte;
  return {{byte{0}, byte{9}, byte{0}, byte{96}, byte{1}, byte{1}, byte{3}},
          {byte{0}, byte{9}, byte{2}, byte{1}, byte{0}, byte{64}, byte{1}},
          {byte{4}, byte{1}, byte{90}, byte{4}, byte{1}, byte{90}, byte{4}, byte{0}, byte{200}}};
}

void run(View input) {
  Commands commands;
  Lane replies;
  shm::RingWriter writer(replies.words, replies.bytes);
  bool lost = false;
  while (!input.empty()) {
    switch (take<std::uint8_t>(input) % 5) {
      case 0:
        commands.send(take<std::uint8_t>(input));
        break;
      case 1:
        lost = lost || !commands.receive();
        break;
      case 2:
        commands.spoil(input);
        break;
      case 3:
        commands.doze();
        break;
      default:
        reply(replies, writer, input);
    }
  }
}

}  // namespace kvd::fuzz
