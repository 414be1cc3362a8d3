// Any bytes in what a kvd leaves to the next one (kvd/tiers/kept/FORMAT.md), and what adoption does
// with them: no block is taken over outside its slab, or from another's.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/host/host_backend.hpp"
#include "kvd/core/controller.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/memory/kept_memory.hpp"
#include "kvd/tiers/disk/files/checksum.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

using daemon::KeptMemory;
using kept::Header;
using kept::Record;

constexpr Bytes kSlab = 2 * kMiB;
constexpr std::uint32_t kSlabs = 2;  // each tier has as many
constexpr Bytes kSlot = 64 * kKiB;
constexpr std::uint32_t kMostRecords = 16;

enum Flags : std::uint8_t {
  kWhole = 1,   ///< the sums of header and records are right, and records were written to their end
  kBytes = 2,   ///< the sums of slots' contents are right, too
  kDomain = 4,  ///< the domain is that of the configuration
};

daemon::Config config() {
  daemon::Config made;
  made.backend = daemon::BackendChoice::kHost;
  made.slab = kSlab;
  made.hbm = made.dram = kSlab * kSlabs;
  made.domains.assign(1, {});
  return made;
}

kept::Hash domain_hash() {
  const std::string name = config().domains.front().name;
  const auto text = std::as_bytes(std::span(name));
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  return digest::Sha256()({bytes, text.size()}).bytes;
}

template <class T>
std::uint32_t sum_of(const T& value) {
  return disk::crc32c(std::as_bytes(std::span(&value, 1)));
}

/// Slots are zeros here.
void repair(Record& record, std::uint8_t flags) {
  static const Data kZeros(kSlab.size());
  static const kept::Hash kOwn = domain_hash();
  if ((flags & kDomain) != 0) record.domain = kOwn;
  if ((flags & kBytes) != 0 && record.place.bytes <= kZeros.size()) {
    record.sums = disk::group_sum(View(kZeros).first(record.place.bytes));
  }
  if ((flags & kWhole) == 0) return;
  record.state = record.sum = 0;
  record.sum = sum_of(record);
  record.state = record.generation;
}

UniqueFd state_of(View input, std::uint8_t flags) {
  auto made = kept::State::create(kSlab);
  expect(made.ok(), "no memory for what is kept");
  UniqueFd file(::fcntl(made->file().get(), F_DUPFD_CLOEXEC, 0));
  auto header = take<Header>(input);
  Data records;
  while (!input.empty() && records.size() < kMostRecords * sizeof(Record)) {
    auto record = take<Record>(input);
    repair(record, flags);
    add_pod(records, record);
  }
  if ((flags & kWhole) != 0) {
    header.used = std::min<std::uint64_t>(header.used, kept::kRecords);
    Header summed = header;
    summed.sum = 0;
    summed.used = 0;
    header.sum = sum_of(summed);
  }
  const auto put = [&](View bytes, std::size_t at) {
    const auto size = static_cast<ssize_t>(bytes.size());
    expect(::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)) == size,
           "no memory for records");
  };
  put(std::as_bytes(std::span(&header, 1)), 0);
  put(records, kept::kHeaderBytes);
  return file;
}

kernels::DeviceBackend& backend() {
  static const SteadyClock clock;
  static const auto made = kernels::HostBackend::create(
      {.tiers = {}, .pages = kernels::PagePreference::kSmall, .populate_threads = 1}, clock);
  return **made;
}

/// Memory of the kvd before, once for all inputs: nobody writes there.
const std::map<std::string, UniqueFd>& slabs_of_before() {
  static const auto made = [] {
    std::map<std::string, UniqueFd> slabs;
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      for (std::uint32_t i = 0; i < kSlabs; ++i) {
        const auto slab = backend().create_slab(tier, kSlab);
        expect(slab.ok(), "no memory for a slab");
        auto memory = backend().export_slab(slab->handle);
        expect(memory.ok(), "no descriptor for a slab");
        slabs.emplace(std::string("kvd-") + name(tier) + "-" + std::to_string(i),
                      std::move(*memory));
      }
    }
    return slabs;
  }();
  return made;
}

daemon::KeptDescriptors left(View input, std::uint8_t flags) {
  daemon::KeptDescriptors all;
  for (const auto& [name, memory] : slabs_of_before()) {
    all.emplace(name, UniqueFd(::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0)));
  }
  all.emplace("kvd-state", state_of(input, flags));
  return all;
}

/// The next blocks are written down as if nothing had been there.
void go_on(kept::State& state) {
  const std::uint32_t before = state.size();
  const auto at = state.write(Record());
  expect(at.ok(), "nothing can be written down any more");
  state.erase(*at);
  expect(state.size() == before, "its size is another");
}

/// What the first reader found wrong the next does not find again.
void read_again(const kept::State& state) {
  auto again = kept::State::open(UniqueFd(::fcntl(state.file().get(), F_DUPFD_CLOEXEC, 0)), kSlab);
  expect(again.ok(), "what was read cannot be read again");
  std::uint32_t found = 0;
  expect(again->each([&](std::uint32_t, const Record&) { ++found; }) == 0, "torn twice");
  expect(found == state.size() && found == again->size(), "its size is another");
}

void check_places(const core::AdoptRows& left) {
  for (const core::KeptBlocks& blocks : left.rows) {
    const auto& slabs = left.slabs[static_cast<std::size_t>(blocks.row.tier)];
    for (const SlotId slot : blocks.row.slots) {
      const bool there = std::ranges::find(slabs, slot.slab()) != slabs.end();
      const Bytes size = blocks.row.slot_bytes;
      expect(there && size > Bytes(0) && size <= kSlab, "a block is in no slab");
      expect(slot.index() < kSlab / size, "a block is outside of its slab");
    }
  }
}

void adopt(core::AdoptRows left, KeptMemory& memory) {
  core::Controller::Config wanted;
  wanted.hbm.assign(1, {Tier::kHbm, kSlab, kSlabs});
  wanted.dram = {Tier::kDram, kSlab, kSlabs};
  wanted.keep = {true, true};
  const auto controller = core::Controller::create(wanted);
  expect(controller.ok(), "no controller");
  std::vector<core::Effect> effects;
  (*controller)->on(std::move(left), TimePoint(1), effects);
  const std::string fault = (*controller)->validate();
  expect(fault.empty(), fault);
  for (const core::Effect& effect : effects) {
    const auto* ended = std::get_if<core::ForgetKept>(&effect);
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      if (ended == nullptr) continue;
      for (const SlotId slot : ended->slots[static_cast<std::size_t>(tier)]) {
        const auto record = memory.records().extract({tier, slot});
        if (!record.empty()) memory.state().erase(record.mapped());
      }
    }
  }
}

/// A record of a block with this many layer groups.
Record record_of(Tier tier, std::uint32_t number, std::uint32_t group, std::uint32_t groups) {
  Record record;
  record.generation = std::uint64_t{number} * 2 + group + 1;
  record.place = {static_cast<std::uint32_t>(tier), number % kSlabs, group, 0, kSlot.size()};
  record.shape = {groups, 1, 16, 1, kSlot.size() / 16};
  record.group = group;
  record.groups = groups;
  record.number = number;
  record.has_parent = number > 0 ? 1 : 0;
  record.saved = 1e-6;
  record.digest = {1, static_cast<std::uint8_t>(number)};
  if (number > 0) record.parent = {1, static_cast<std::uint8_t>(number - 1)};
  return record;
}

}  // namespace

std::vector<Data> seeds() {
  std::vector<Data> all;
  for (const auto& [tier, groups] :
       {std::pair(Tier::kHbm, 2u), {Tier::kDram, 2u}, {Tier::kDram, 1u}}) {
    Data data{std::byte{kWhole | kBytes | kDomain}};
    Header header;
    header.record_bytes = sizeof(Record);
    header.slab_bytes = kSlab.size();
    header.used = std::uint64_t{2} * groups;
    add_pod(data, header);
    for (std::uint32_t i = 0; i < header.used; ++i) {
      add_pod(data, record_of(tier, i / groups, i % groups, groups));
    }
    all.push_back(std::move(data));
  }
  return all;
}

void run(View input) {
  ::setenv("NOTIFY_SOCKET", "/nowhere", 1);  // nobody is told of what is kept
  ::setenv("FDSTORE", "100", 1);
  daemon::set_log_level("off");
  const daemon::Config made = config();
  daemon::Domains domains(made.domains);
  const auto flags = take<std::uint8_t>(input);
  KeptMemory memory = KeptMemory::take(made, true, left(input, flags), domains);
  const auto reopen = [&](kernels::SlabSource& device, Tier tier, SlabIndex slab) {
    return memory.reopen(device, {tier, slab});
  };
  const auto slabs =
      mover::SlabStore::create({{&backend(), {kSlab, kSlabs}}}, {kSlab, kSlabs}, {}, reopen);
  expect(slabs.ok() && memory.on(), "no memory for slabs");
  core::AdoptRows rows = memory.rows(*slabs);
  check_places(rows);
  adopt(std::move(rows), memory);
  go_on(memory.state());
  read_again(memory.state());
}

}  // namespace kvd::fuzz
