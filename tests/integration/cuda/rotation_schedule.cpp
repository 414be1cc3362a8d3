#include "tests/integration/cuda/rotation_schedule.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/support/fakecuda/fakecuda.h"

namespace kvd::tests {
namespace {

using kernels::CopyBatch;
using kernels::Direction;

constexpr unsigned kLayers = 4;
constexpr std::size_t kBlock = RotationSchedule::World::kBlock;
constexpr std::size_t kPage = 4096;
constexpr int kPatienceMs = 30'000;

/// One launch of either kernel: the blocks of a request, by layer.
struct Blocks {
  std::array<CUdeviceptr, kLayers> at;
  std::uint64_t request;
  std::uint64_t token;
};

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t word(std::uint64_t request, std::uint64_t token, unsigned layer, std::size_t i) {
  return mixed(mixed(request << 32 | token << 8 | layer) + i);
}

bool is_right(const void* block, std::uint64_t request, std::uint64_t token, unsigned layer) {
  const auto* words = static_cast<const std::uint64_t*>(block);
  for (std::size_t i = 0; i < kBlock / 8; ++i) {
    if (words[i] != word(request, token, layer, i)) return false;
  }
  return true;
}

// The engine's kernels: they run on the engine's stream and see what the device sees.
void fill_blocks(const FakecudaLaunch*, void** parameters) {
  const auto& blocks = *static_cast<const Blocks*>(parameters[0]);
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    auto* words = static_cast<std::uint64_t*>(::fakecuda_access(blocks.at[layer], kBlock, 1));
    for (std::size_t i = 0; words != nullptr && i < kBlock / 8; ++i) {
      words[i] = word(blocks.request, blocks.token, layer, i);
    }
  }
}

void check_blocks(const FakecudaLaunch*, void** parameters) {
  const auto& blocks = *static_cast<const Blocks*>(parameters[0]);
  auto* wrong = *static_cast<std::atomic<std::uint64_t>**>(parameters[1]);
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    const void* block = ::fakecuda_access(blocks.at[layer], kBlock, 0);
    const bool right = block != nullptr && is_right(block, blocks.request, blocks.token, layer);
    *wrong += right ? 0 : 1;
  }
}

void must(CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); }

}  // namespace

RotationSchedule::World::World() {
  auto backend = kernels::CudaBackend::create({}, clock_);
  EXPECT_TRUE(backend.ok()) << (backend.ok() ? std::string() : backend.error().to_string());
  if (!backend.ok()) return;
  backend_ = std::move(backend).value();
  const auto granularity = backend_->granularity(Tier::kHbm);
  auto hbm = backend_->create_slab(Tier::kHbm, granularity);
  auto dram = backend_->create_slab(Tier::kDram, backend_->granularity(Tier::kDram));
  EXPECT_TRUE(hbm.ok() && dram.ok());
  if (!hbm.ok() || !dram.ok()) return;
  hbm_ = *hbm, dram_ = *dram;
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(page, MAP_FAILED);
  fence_ = static_cast<std::atomic<std::uint64_t>*>(page);
  EXPECT_TRUE(backend_->adopt_page(page, Bytes(kPage)).ok());
  must(::cuDevicePrimaryCtxRetain(&context_, 0));
  must(::cuCtxSetCurrent(context_));
  must(::cuMemHostGetDevicePointer(&fence_on_device_, page, 0));
  must(::cuStreamCreateWithPriority(&engine_, CU_STREAM_NON_BLOCKING, 0));
  must(::cuEventCreate(&iteration_, CU_EVENT_DISABLE_TIMING));
  const std::size_t sizes[] = {sizeof(Blocks), sizeof(void*)};
  ::fakecuda_register_kernel("fill_blocks", fill_blocks, sizes, 1);
  ::fakecuda_register_kernel("check_blocks", check_blocks, sizes, 2);
  must(::cuModuleLoadData(&module_, "//\n.version 7.0\n.target sm_80\n"));
  must(::cuModuleGetFunction(&fill_, module_, "fill_blocks"));
  must(::cuModuleGetFunction(&check_, module_, "check_blocks"));
  ready_ = !::testing::Test::HasFailure();
}

RotationSchedule::World::~World() {
  if (context_ != nullptr) {
    must(::cuModuleUnload(module_));
    must(::cuEventDestroy(iteration_));
    must(::cuStreamDestroy(engine_));
    must(::cuCtxSetCurrent(nullptr));
    must(::cuDevicePrimaryCtxRelease(0));
  }
  if (fence_ == nullptr) return;
  backend_->release_page(fence_, {});
  backend_.reset();
  ::munmap(fence_, kPage);
}

RotationSchedule::RotationSchedule(World& world, std::uint64_t seed, Mutant mutant)
    : world_(world), random_(seed), mutant_(mutant) {
  for (std::size_t i = 0; i < World::kHbmSlots; ++i) free_hbm_.push_back(i);
  for (std::size_t i = 0; i < World::kDramSlots; ++i) free_dram_.push_back(i);
  next_id_ = (seed << 8) + 1;
  world_.wrong_ = 0;
}

std::uint64_t RotationSchedule::play(unsigned steps) {
  for (unsigned i = 0; i < steps; ++i) step();
  park_everybody();
  corrupt_once();
  return world_.wrong_ + wrong_in_dram();
}

void RotationSchedule::step() {
  wait_for_iteration();
  settle(chance(30));
  if (chance(20)) corrupt_once();
  retire_some();
  swap_out_some();
  swap_in_some();
  admit_some();
  iterate();
  if (mutant_ == Mutant::kNoIterationWait) swap_out_some();
}

void RotationSchedule::wait_for_iteration() { must(::cuEventSynchronize(world_.iteration_)); }

void RotationSchedule::settle(bool wait) {
  if (wait && !copies_.empty()) {
    pollfd ready{world_.backend_->completion_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, kPatienceMs), 1) << "copies did not finish";
  }
  std::vector<kernels::Completion> completed;
  world_.backend_->poll(completed);
  for (const auto& done : completed) finish(done);
}

void RotationSchedule::finish(const kernels::Completion& done) {
  EXPECT_TRUE(done.status.ok()) << done.status.error().to_string();
  const auto found = copies_.find(done.ticket.value);
  ASSERT_NE(found, copies_.end());
  const Copy& copy = found->second;
  Slots& free = copy.out ? free_hbm_ : free_dram_;
  free.insert(free.end(), copy.freed.begin(), copy.freed.end());
  if (copy.out && copy.request->copy == done.ticket) copy.request->state = State::kParked;
  copies_.erase(found);
}

// A request that has made its last token gives its slots back at once: its iteration is over.
void RotationSchedule::retire_some() {
  std::erase_if(requests_, [this](const auto& request) {
    const bool busy = std::any_of(copies_.begin(), copies_.end(), [&](const auto& item) {
      return item.second.request == request.get();
    });
    if (request->state != State::kRunning || busy || !chance(8)) return false;
    free_hbm_.insert(free_hbm_.end(), request->hbm.begin(), request->hbm.end());
    return true;
  });
}

void RotationSchedule::swap_out_some() {
  for (const auto& request : requests_) {
    if (request->state == State::kRunning && chance(45)) swap_out(*request);
  }
}

void RotationSchedule::swap_in_some() {
  for (const auto& request : requests_) {
    const bool early = mutant_ == Mutant::kLoadTooEarly && request->state == State::kLeaving;
    if ((request->state == State::kParked || early) && chance(60)) swap_in(*request);
  }
}

void RotationSchedule::admit_some() {
  while (requests_.size() < World::kDramSlots / kLayers && chance(70)) {
    auto slots = take_hbm(Mutant::kFillWhileLeaving);
    if (!slots) return;
    requests_.push_back(std::make_unique<Request>());
    requests_.back()->id = next_id_++;
    requests_.back()->hbm = *std::move(slots);
  }
}

// Each running request makes a token: it reads all of its blocks, then writes them anew.
void RotationSchedule::iterate() {
  for (const auto& request : requests_) {
    if (request->state == State::kRunning) check_and_fill(*request);
  }
  must(::cuEventRecord(world_.iteration_, world_.engine_));
}

void RotationSchedule::check_and_fill(Request& request) {
  if (request.fence && mutant_ != Mutant::kNoFenceWait) {
    must(::cuStreamWaitValue64(world_.engine_, world_.fence_on_device_, *request.fence,
                               CU_STREAM_WAIT_VALUE_GEQ));
  }
  request.fence.reset();
  Blocks blocks{{}, request.id, request.token};
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    blocks.at[layer] = world_.hbm_.address + request.hbm[layer] * kBlock;
  }
  auto* wrong = &world_.wrong_;
  void* parameters[] = {&blocks, &wrong};
  const auto launch = [&](CUfunction kernel) {
    must(::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, world_.engine_, parameters, nullptr));
  };
  if (request.token > 0) launch(world_.check_);
  blocks.token = ++request.token;
  launch(world_.fill_);
}

bool RotationSchedule::swap_out(Request& request) {
  auto slots = take_dram();
  if (!slots) return false;
  request.dram = *std::move(slots);
  request.state = State::kLeaving;
  submit(request, true, request.hbm, request.dram);
  return true;
}

bool RotationSchedule::swap_in(Request& request) {
  auto slots = take_hbm(Mutant::kLoadWhileLeaving);
  if (!slots) return false;
  request.hbm = *std::move(slots);
  request.state = State::kRunning;
  submit(request, false, request.dram, request.hbm);
  request.fence = request.copy.value;
  return true;
}

void RotationSchedule::submit(Request& request, bool out, const Slots& from, const Slots& to) {
  const auto& source = out ? world_.hbm_ : world_.dram_;
  const auto& target = out ? world_.dram_ : world_.hbm_;
  request.copy = Ticket(++world_.last_ticket_);
  CopyBatch batch;
  batch.ticket = request.copy;
  batch.direction = out ? Direction::kDeviceToHost : Direction::kHostToDevice;
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    batch.extents.push_back({target.address + to[layer] * kBlock,
                             source.address + from[layer] * kBlock,
                             Bytes(static_cast<std::int64_t>(kBlock))});
  }
  if (!out) batch.fence = kernels::Fence{world_.fence_, request.copy.value};
  copies_[request.copy.value] = Copy{&request, from, out};
  EXPECT_TRUE(world_.backend_->submit(std::move(batch)).ok());
}

std::optional<RotationSchedule::Slots> RotationSchedule::take_hbm(Mutant early) {
  for (auto& [ticket, copy] : copies_) {
    if (mutant_ == early && copy.out && !copy.freed.empty()) return std::exchange(copy.freed, {});
  }
  if (free_hbm_.size() < kLayers) return std::nullopt;
  const Slots taken(free_hbm_.end() - kLayers, free_hbm_.end());
  free_hbm_.resize(free_hbm_.size() - kLayers);
  return taken;
}

std::optional<RotationSchedule::Slots> RotationSchedule::take_dram() {
  if (free_dram_.size() < kLayers) return std::nullopt;
  const Slots taken(free_dram_.end() - kLayers, free_dram_.end());
  free_dram_.resize(free_dram_.size() - kLayers);
  return taken;
}

void RotationSchedule::park_everybody() {
  wait_for_iteration();
  for (const auto& request : requests_) {
    while (!copies_.empty() && !::testing::Test::HasFatalFailure()) settle(true);
    if (request->state != State::kRunning) continue;
    EXPECT_TRUE(swap_out(*request)) << "DRAM has room for all";
  }
  while (!copies_.empty() && !::testing::Test::HasFatalFailure()) settle(true);
}

void RotationSchedule::corrupt_once() {
  if (mutant_ != Mutant::kCorruptByte || corrupted_) return;
  for (const auto& request : requests_) {
    if (request->state != State::kParked) continue;
    const std::size_t at = request->dram[random_() % kLayers] * kBlock + random_() % kBlock;
    reinterpret_cast<unsigned char*>(world_.dram_.address)[at] ^= 1u;
    corrupted_ = true;
    return;
  }
}

std::uint64_t RotationSchedule::wrong_in_dram() const {
  std::uint64_t wrong = 0;
  for (const auto& request : requests_) {
    EXPECT_EQ(request->state, State::kParked);
    for (unsigned layer = 0; layer < kLayers && request->dram.size() == kLayers; ++layer) {
      const auto at = world_.dram_.address + request->dram[layer] * kBlock;
      const bool right =
          is_right(reinterpret_cast<const void*>(at), request->id, request->token, layer);
      wrong += right ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace kvd::tests
