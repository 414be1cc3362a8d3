#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client_lib/include/kvd.h"
#include "tests/unit/client_lib/mini_daemon.hpp"

extern "C" int kvd_c_round_trip(const char* endpoint);
extern "C" int kvd_c_misuse(void);

namespace kvd::test {
namespace {

TEST(CAbiTest, ServesAProgramWrittenInC) {
  const TemporaryFolder folder;
  const MiniDaemon daemon(folder, {});
  EXPECT_EQ(kvd_c_round_trip(daemon.endpoint().c_str()), 0) << kvd_last_error();
}

TEST(CAbiTest, RefusesMisuseWithoutADaemon) { EXPECT_EQ(kvd_c_misuse(), 0); }

TEST(CAbiTest, StepsThroughTheArraysOfItsHandle) {
  const TemporaryFolder folder;
  MiniDaemon daemon(folder, {});
  kvd_open_options options{};
  options.struct_size = sizeof options;
  options.endpoint = daemon.endpoint().c_str();
  options.layers = 4;
  options.abilities = KVD_STREAMS_LAYERS;
  options.bytes_per_token_per_layer = 2048;
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();
  EXPECT_EQ(daemon.seen().hellos.at(0).abilities, wire::kStreamsLayers);
  const auto slab = daemon.send_slab(3);
  ASSERT_TRUE(daemon.wait_until([](const auto& seen) { return seen.slabs_acknowledged == 1; }));

  kvd_request request{sizeof request, 42, 20, 4, 0, 0, nullptr, nullptr, nullptr, 0};
  EXPECT_EQ(kvd_submit(handle, &request, 1'000'000'000), KVD_OK);
  daemon.run_next({42, 0, 0, 20, wire::kRunPrefill, 0, 0},
                  {SlotId(SlabIndex(3), 5), SlotId(SlabIndex(3), 6)});
  kvd_step_input input{sizeof input, nullptr, 0, 0, 0};
  kvd_step_result result{};
  result.struct_size = sizeof result;
  ASSERT_EQ(kvd_step(handle, &input, 1'000'000'000, &result), KVD_OK) << kvd_last_error();
  ASSERT_EQ(result.run_count, 1u);
  EXPECT_EQ(result.run[0].tokens, 20u);
  EXPECT_EQ(result.run[0].flags, KVD_RUN_PREFILL);
  void* address = nullptr;
  ASSERT_EQ(kvd_block_address(handle, 0, 1, 0, &address), KVD_OK) << kvd_last_error();
  *static_cast<char*>(address) = 3;
  EXPECT_EQ(slab.bytes()[6 * MiniDaemon::kSlotBytes.size()], std::byte{3});
  void* addresses[2] = {nullptr, nullptr};
  ASSERT_EQ(kvd_block_addresses(handle, 0, 1, 1, addresses), KVD_OK) << kvd_last_error();
  EXPECT_EQ(addresses[0], address);
  EXPECT_EQ(kvd_block_addresses(handle, 0, 1, ~std::uint64_t{0}, addresses), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_block_addresses(handle, 0, 1, 2, addresses), KVD_NOT_FOUND);
  EXPECT_EQ(kvd_layer_done(handle, 1, 0), KVD_OK);
  EXPECT_EQ(daemon.page()->progress(), (std::uint64_t{1} << 16) | 1u);
  EXPECT_EQ(kvd_wait_layer(handle, 1, 0, 0), KVD_DEADLINE_EXCEEDED);
  daemon.page()->fence_layers() = daemon.page()->progress();
  EXPECT_EQ(kvd_wait_layer(handle, 1, 0, 0), KVD_OK);
  kvd_close(handle);
}

// More entries than the array has, and so many that their bytes wrap to those of one.
TEST(CAbiTest, LooksAtACountBeforeItReadsTheArray) {
  const TemporaryFolder folder;
  MiniDaemon daemon(folder, {});
  kvd_open_options options{};
  options.struct_size = sizeof options;
  options.endpoint = daemon.endpoint().c_str();
  options.layers = 4;
  options.bytes_per_token_per_layer = 2048;
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();

  const std::uint64_t requests[1] = {42};
  kvd_placement placement{};
  placement.struct_size = sizeof placement;
  EXPECT_EQ(kvd_place(handle, requests, (std::uint64_t{1} << 61) + 1, 1'000'000'000, &placement),
            KVD_INVALID_ARGUMENT);
  EXPECT_THAT(kvd_last_error(), ::testing::HasSubstr("4096"));

  const kvd_step_report reports[1] = {{42, 20, 0, 0}};
  kvd_step_input input{sizeof input, reports, std::uint64_t{1} << 40, 0, 0};
  kvd_step_result result{};
  result.struct_size = sizeof result;
  EXPECT_EQ(kvd_step(handle, &input, 1'000'000'000, &result), KVD_INVALID_ARGUMENT);
  EXPECT_THAT(kvd_last_error(), ::testing::HasSubstr("4096"));
  EXPECT_THAT(daemon.seen().steps, ::testing::IsEmpty());
  kvd_close(handle);
}

TEST(CAbiTest, LendsARegionAsATensor) {
  const TemporaryFolder folder;
  const MiniDaemon daemon(folder, {});
  kvd_open_options options{};
  options.struct_size = sizeof options;
  options.endpoint = daemon.endpoint().c_str();
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();
  kvd_region region{};
  region.struct_size = sizeof region;
  ASSERT_EQ(kvd_region_allocate(handle, 1, 1'000'000'000, &region), KVD_OK) << kvd_last_error();
  EXPECT_EQ(region.device, -1);
  kvd_dl_managed_tensor* tensor = nullptr;
  ASSERT_EQ(kvd_region_dlpack(handle, region.id, 1'000'000'000, &tensor), KVD_OK);
  EXPECT_EQ(tensor->dl_tensor.data, region.address);
  EXPECT_EQ(tensor->dl_tensor.device.device_type, 1);
  EXPECT_EQ(tensor->dl_tensor.shape[0], static_cast<std::int64_t>(region.bytes));
  ASSERT_NE(tensor->dl_tensor.strides, nullptr);
  EXPECT_EQ(tensor->dl_tensor.strides[0], 1);
  EXPECT_EQ(kvd_region_free(handle, region.id, 1'000'000'000), KVD_WOULD_BLOCK);
  tensor->deleter(tensor);
  EXPECT_EQ(kvd_region_free(handle, region.id, 1'000'000'000), KVD_OK) << kvd_last_error();
  EXPECT_EQ(kvd_wait_on_stream(handle, 1, nullptr), KVD_UNSUPPORTED);
  EXPECT_EQ(kvd_wait_layer_on_stream(handle, 1, 0, nullptr), KVD_UNSUPPORTED);
  EXPECT_EQ(kvd_layer_done_on_stream(handle, 1, 0, nullptr), KVD_UNSUPPORTED);
  kvd_close(handle);
}

}  // namespace
}  // namespace kvd::test
