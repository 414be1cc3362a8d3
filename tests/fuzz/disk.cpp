// Any bytes in the files of a disk folder: opening it, its index, its slots. What is loaded has the
// sums that its header says, and files that are not kvd's stay as they are.
#include <poll.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/store/index/disk_directory.hpp"
#include "kvd/tiers/disk/disk_tier.hpp"
#include "kvd/tiers/disk/files/checkpoint.hpp"
#include "kvd/tiers/disk/files/folders.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

using namespace disk;
namespace fs = std::filesystem;

// Headers are short here: behind these bytes, and before their sum, they are zero. Groups are
// neither, as there are two sums to a sector of them that nobody reads.
constexpr std::uint32_t kGroups = 2, kSlots = 2, kSegments = 2;
constexpr Bytes kGroupBytes{96};
constexpr std::size_t kShort = 184;
const ClassShape kShape{{1, 2, 3}, kGroups, kGroupBytes};
constexpr Bytes kSegment = kSector + (kSector + kSector * kGroups) * kSlots;

enum Flags : std::uint8_t {
  kRepaired = 1,       ///< the sums of headers, superblocks and the checkpoint are right
  kSecondSegment = 2,  ///< there are two, which differ only in their number
  kCheckpoint = 4,
  kCut = 8,  ///< the first file ends early
  kOnDemand = 16,
  kOtherSize = 32,  ///< the tier is to have segments of another size
  kZeroed = 64,     ///< payloads are zeros, else as their place
};

struct Case {
  std::uint8_t flags = 0;
  std::array<std::byte, 8> lock{};
  std::array<std::byte, kShort> superblock{};
  std::array<std::array<std::byte, kShort>, kSlots> headers{};
};

Layout layout() { return Layout::make(kShape, kSegment).value(); }

std::string home() { return folder() + "/class"; }
std::string segment_name(std::uint32_t number) {
  return home() + "/segment-000" + std::to_string(number);
}

void put_sum(std::span<std::byte> bytes) {
  const std::uint32_t sum = crc32c(bytes.first(bytes.size() - sizeof(std::uint32_t)));
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
}

void write(const std::string& name, View bytes) {
  std::ofstream(name, std::ios::binary | std::ios::trunc) << text_of(bytes);
}

std::string read(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Data segment_of(const Case& c, std::uint32_t number) {
  constexpr std::size_t kNumberAt = 32;
  const Layout where = layout();
  Data file(kSegment.size());
  const auto put = [&](Bytes at, View bytes) {
    std::copy(bytes.begin(), bytes.end(), file.begin() + at.value);
    if (number > 0) std::memcpy(file.data() + at.size() + kNumberAt, &number, sizeof number);
    if ((c.flags & kRepaired) != 0) put_sum(std::span(file).subspan(at.size(), kSector.size()));
  };
  put(Bytes(0), c.superblock);
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    const DiskSlot at(slot);
    put(where.header_offset(at), c.headers[slot]);
    const auto fill = static_cast<std::byte>((c.flags & kZeroed) != 0 ? 0 : slot + 1);
    const auto begin = file.begin() + where.group_offset(at, 0).value;
    std::fill(begin, begin + (where.group_stride() * kGroups).value, fill);
  }
  return file;
}

void fill_folder(const Case& c, View rest) {
  fs::remove_all(folder());
  fs::create_directories(home());
  fs::permissions(home(), fs::perms::owner_all);
  write(home() + "/lock", c.lock);
  const Data file = segment_of(c, 0);
  const std::size_t size = (c.flags & kCut) != 0 ? take<std::uint16_t>(rest) : file.size();
  write(segment_name(0), View(file).first(std::min(size, file.size())));
  if ((c.flags & kSecondSegment) != 0) write(segment_name(1), segment_of(c, 1));
  if ((c.flags & kCheckpoint) == 0) return;
  Data index(rest.begin(), rest.end());
  if ((c.flags & kRepaired) != 0 && index.size() >= sizeof(std::uint32_t)) put_sum(index);
  write(home() + "/checkpoint", index);
}

Completion answer(DiskTier& tier) {
  constexpr int kPatienceMs = 60'000;
  std::vector<Completion> done;
  while (done.empty()) {
    pollfd entry{tier.completion_fd(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, kPatienceMs);
    // libFuzzer's alarm interrupts a wait.
    expect(ready == 1 || (ready < 0 && errno == EINTR), "the tier does not answer");
    tier.poll(done);
  }
  return done.front();
}

constexpr Nanoseconds kPatience = std::chrono::minutes(1);

/// What the block's header says, as it is in the file.
std::array<GroupSum, kGroups> sums_of(const DiskTier& tier, DiskSlot slot) {
  constexpr Bytes kSumsAt{160};
  const Layout& where = tier.layout();
  std::array<GroupSum, kGroups> sums{};
  std::ifstream file(segment_name(where.segment(slot)), std::ios::binary);
  file.seekg((where.header_offset(slot) + kSumsAt).value);
  file.read(reinterpret_cast<char*>(sums.data()), sizeof sums);
  return sums;
}

void load(DiskTier& tier, const FoundBlock& block) {
  std::array<Data, kGroups> groups;
  Load order{Ticket(1), block.slot, block.generation, block.key, 0, {}, kPatience};
  for (Data& group : groups) {
    group.resize(kGroupBytes.size());
    order.groups.emplace_back(group);
  }
  expect(tier.load(order).ok(), "a block that was found cannot be asked for");
  if (answer(tier).fault != Fault::kNone) return;
  const auto sums = sums_of(tier, block.slot);
  for (std::size_t i = 0; i < kGroups; ++i) {
    expect(group_sum(groups[i]) == sums[i], "bytes were loaded that fail their sum");
  }
}

/// What is written is what is read.
void store(DiskTier& tier) {
  const std::array<Data, kGroups> groups{Data(kGroupBytes.size(), std::byte{7}),
                                         Data(kGroupBytes.size(), std::byte{9})};
  const BlockKey key{{4}, {5}};
  Store order{Ticket(2), DiskSlot(0), key, {groups[0], groups[1]}, kPatience};
  const auto generation = tier.store(order);
  expect(generation.ok(), "a block cannot be stored");
  expect(answer(tier).fault == Fault::kNone, "a block was not stored");
  load(tier, {DiskSlot(0), *generation, key});
}

void use(DiskTier& tier) {
  store::DiskDirectory directory(tier.slots());
  auto blocks = tier.take_index().value_or(std::vector<FoundBlock>());
  for (std::uint32_t first = 0; first < tier.slots(); first += kMaxScan) {
    const std::uint32_t count = std::min(kMaxScan, tier.slots() - first);
    expect(tier.scan({Ticket(3), DiskSlot(first), count, kPatience}).ok(), "no scan");
    const Completion scanned = answer(tier);
    blocks.insert(blocks.end(), scanned.found.begin(), scanned.found.end());
  }
  for (const FoundBlock& block : blocks) {
    expect(block.slot.value < tier.slots(), "a block is in no slot");
    (void)directory.restore({block.key.domain}, {block.key.digest},
                            {block.slot.value, block.generation.value});
    load(tier, block);
  }
  expect(directory.used() <= directory.slots(), "more blocks than slots");
  store(tier);
  const auto closed = tier.close(kPatience, std::move(blocks));
  expect(closed.held.empty() && closed.checkpoint.ok(), "the tier does not close");
}

template <std::size_t N>
std::array<std::byte, N> short_of(const Sector& sector) {
  std::array<std::byte, N> front{};
  std::copy_n(sector.begin(), N, front.begin());
  return front;
}

/// A folder that a tier has left, with a block in each slot.
Data left_behind(std::uint8_t flags, std::uint32_t same_digest) {
  const Layout where = layout();
  const Data payload(kGroupBytes.size());
  Case c{flags, {}, short_of<kShort>(encode_superblock(where, 0)), {}};
  std::vector<FoundBlock> blocks;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    const auto digest = static_cast<std::uint8_t>(same_digest > 0 ? same_digest : slot);
    const SlotHeader header{DiskSlot(slot),
                            SlotGeneration(slot + 1),
                            {{1}, {digest}},
                            std::vector<GroupSum>(kGroups, group_sum(payload))};
    c.headers[slot] = short_of<kShort>(encode_header(where, header));
    blocks.push_back({header.slot, header.generation, header.key});
  }
  fs::create_directories(home());
  fs::permissions(home(), fs::perms::owner_all);
  expect(write_checkpoint(Folder::open(home()).value(), where, blocks).ok(), "no checkpoint");
  Data data;
  add_pod(data, c);
  if ((flags & kCut) != 0) add_pod(data, std::uint16_t{5000});
  add_text(data, read(home() + "/checkpoint"));
  return data;
}

}  // namespace

std::vector<Data> seeds() {
  return {left_behind(kRepaired | kZeroed | kCheckpoint, 0),
          left_behind(kRepaired | kZeroed, 0),
          left_behind(kZeroed | kCheckpoint | kOnDemand | kSecondSegment, 0),
          left_behind(kRepaired | kZeroed | kCut, 0),
          left_behind(kRepaired | kOtherSize, 0),
          left_behind(kRepaired | kZeroed | kCheckpoint, 9)};
}

void run(View input) {
  const auto c = take<Case>(input);
  fill_folder(c, input);
  const std::string before = read(segment_name(0));
  DiskOptions options;
  options.folder = home();
  options.shape = kShape;
  options.segment = (c.flags & kOtherSize) != 0 ? kSegment * 2 : kSegment;
  options.capacity = kSegment * kSegments;
  options.on_demand = (c.flags & kOnDemand) != 0;
  options.floor = Bytes(0);
  options.threads = 1;
  options.io_uring = false;
  options.direct = false;
  auto tier = DiskTier::open(options, std::make_shared<SteadyClock>());
  if (tier.ok()) {
    use(**tier);
    tier->reset();
  } else if ((c.flags & kSecondSegment) == 0) {
    expect(read(segment_name(0)) == before, "a file that is not kvd's was written");
  }
  Folders folders(folder(), kSegment, Bytes(0));
  expect(folders.scan().ok(), "the folders cannot be looked at");
  for (const auto& [name, entry] : folders.list()) {
    expect(entry.bytes >= Bytes(0), "a folder has less than nothing");
  }
}

}  // namespace kvd::fuzz
