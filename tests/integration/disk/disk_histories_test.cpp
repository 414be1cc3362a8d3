// Random histories of stores, loads, device errors, bytes that rot and restarts, against a model
// that knows what each slot holds.
#include <random>

#include "tests/integration/disk/disk_world.hpp"
#include "tests/integration/disk/faulty_io.hpp"

namespace kvd::disk {
namespace {

constexpr std::uint32_t kOperations = 10000;
constexpr std::uint32_t kBatch = 12;

struct Held {
  SlotGeneration generation;
  std::uint64_t seed = 0;
};

class DiskHistories : public EveryWay {
 protected:
  struct Slot {
    std::vector<Held> ever;  ///< the last one is the content that it holds
    bool sound = false;      ///< nothing has happened to it since
  };
  struct PendingLoad {
    Ticket ticket;
    BlockMemory memory;
    Held asked;
    std::uint32_t first, count;
    bool must;  ///< it has no reason to be a miss
    std::uint32_t slot;
  };
  struct PendingStore {
    Ticket ticket;
    BlockMemory memory;
    std::uint32_t slot;
    Held held;
  };

  std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }

  void begin_store(std::uint32_t number) {
    if (written_.contains(number)) return;
    BlockMemory memory(world_.options().shape);
    const std::uint64_t seed = ++last_seed_;
    memory.fill(seed);
    Store store = world_.store_of(DiskSlot(number), seed, memory);
    const Ticket ticket = store.ticket;
    const auto generation = world_.tier().store(std::move(store));
    ASSERT_TRUE(generation.ok()) << generation.error().message;
    written_.insert(number);
    stores_.push_back({ticket, std::move(memory), number, {*generation, seed}});
  }

  void begin_load(std::uint32_t number) {
    const Slot& slot = slots_[number];
    Held asked{SlotGeneration(random_()), last_seed_};
    if (!slot.ever.empty()) {
      asked = pick(4) == 0 ? slot.ever[pick(slot.ever.size())] : slot.ever.back();
    }
    BlockMemory memory(world_.options().shape);
    Load load = world_.load_of(DiskSlot(number), asked.generation, asked.seed, memory);
    const std::uint32_t first = pick(3), count = 1 + pick(3 - first);
    load.first_group = first;
    load.groups = memory.groups(first, count);
    const Ticket ticket = load.ticket;
    ASSERT_TRUE(world_.tier().load(std::move(load)).ok());
    const bool current = !slot.ever.empty() && asked.seed == slot.ever.back().seed;
    loads_.push_back(
        {ticket, std::move(memory), asked, first, count, slot.sound && current, number});
  }

  void end_batch(bool errors) {
    for (PendingLoad& load : loads_) {
      const Fault fault = world_.wait(load.ticket).fault;
      if (fault == Fault::kNone) {
        BlockMemory expected(world_.options().shape);
        expected.fill(load.asked.seed);
        ASSERT_TRUE(load.memory.same(expected, load.first, load.count)) << "wrong bytes";
        ++hits_;
      } else if (!errors && !written_.contains(load.slot)) {
        ASSERT_FALSE(load.must) << name(fault);
      }
    }
    for (PendingStore& store : stores_) {
      const Fault fault = world_.wait(store.ticket).fault;
      ASSERT_TRUE(errors || fault == Fault::kNone) << name(fault);
      Slot& slot = slots_[store.slot];
      slot.ever.push_back(store.held);
      slot.sound = fault == Fault::kNone;
    }
    loads_.clear();
    stores_.clear();
    written_.clear();
  }

  void run_batch() {
    const bool errors = pick(5) == 0;
    const std::uint64_t salt = random_();
    if (errors) {
      control_->fail([salt](const Operation& operation) -> std::optional<std::int64_t> {
        if ((operation.id * 7 + salt) % 5 != 0) return std::nullopt;
        return (salt >> 20) % 2 == 0 ? -EIO : -EAGAIN;
      });
    }
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint32_t slot = pick(slots_.size());
      ASSERT_NO_FATAL_FAILURE(pick(3) == 0 ? begin_store(slot) : begin_load(slot));
    }
    ASSERT_NO_FATAL_FAILURE(end_batch(errors));
    control_->fail(nullptr);
  }

  void rot() {
    const std::uint32_t number = pick(slots_.size());
    const Layout& layout = world_.tier().layout();
    const DiskSlot slot(number);
    world_.flip(layout.segment(slot),
                layout.header_offset(slot) + Bytes(pick(layout.slot_bytes().size())));
    slots_[number].sound = false;
  }

  void restart() {
    std::vector<FoundBlock> index;
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].sound) continue;
      const Held& held = slots_[i].ever.back();
      index.push_back({DiskSlot(i), held.generation, key_of(held.seed)});
    }
    const bool clean = pick(2) == 0;
    if (clean) world_.tier().close(test::kPatience, index);
    ASSERT_NO_FATAL_FAILURE(world_.reopen());
    const auto found =
        clean ? world_.tier().take_index().value_or(std::vector<FoundBlock>()) : world_.scan();
    for (const FoundBlock& block : index) {
      ASSERT_NE(std::find(found.begin(), found.end(), block), found.end())
          << "slot " << block.slot.value;
    }
  }

  std::mt19937_64 random_;
  std::shared_ptr<FaultyIo::Control> control_;
  std::vector<Slot> slots_;
  std::vector<PendingLoad> loads_;
  std::vector<PendingStore> stores_;
  std::set<std::uint32_t> written_;
  std::uint64_t last_seed_ = 0;
  std::uint32_t hits_ = 0;
};

TEST_P(DiskHistories, GiveNoWrongByteAndLoseNothingSound) {
  const std::uint64_t seed = random_seed();
  SCOPED_TRACE("KVD_TEST_SEED=" + std::to_string(seed));
  random_.seed(seed);
  control_ = add_faults(world_.options().wrap);
  world_.reopen();
  slots_.resize(world_.tier().slots());
  for (std::uint32_t done = 0; done < kOperations; done += kBatch) {
    ASSERT_NO_FATAL_FAILURE(run_batch());
    if (pick(4) == 0) rot();
    if (pick(60) == 0) {
      ASSERT_NO_FATAL_FAILURE(restart());
    }
  }
  EXPECT_GT(hits_, kOperations / 10);
}

INSTANTIATE_TEST_SUITE_P(Way, DiskHistories, kWays, name_of_way);

}  // namespace
}  // namespace kvd::disk
