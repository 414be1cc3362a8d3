#include "kvd_client/client.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "ipc/vocabulary/layer_mark.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/client_lib/mini_daemon.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr seconds kLong{30};

class ClientTest : public testing::Test {
 protected:
  void start_daemon(std::uint8_t boot = 1) {
    MiniDaemon::Script script;
    script.boot = boot;
    start_daemon(script);
  }
  void start_daemon(const MiniDaemon::Script& script) {
    daemon_.reset();
    daemon_ = std::make_unique<MiniDaemon>(folder_, script);
  }
  /// The next daemon gives regions back to whoever claims them. It gives `answers` answers; the
  /// rest wait until the test allows more.
  void start_next_daemon(std::uint32_t answers) {
    MiniDaemon::Script script;
    script.boot = 2;
    script.takes_back = true;
    script.answers = answers;
    start_daemon(script);
  }

  kvd_client::Result<Client> open(std::uint32_t layers = 0,
                                  kvd_client::Duration attach_timeout = seconds(5)) {
    kvd_client::Options options;
    options.attach_timeout = attach_timeout;
    options.endpoint = folder_.path("attach.sock");
    options.engine_name = "client-test";
    options.shape = {layers, 0, 0, layers == 0 ? 0u : 2048u};
    return Client::open(options);
  }

  /// A client with one request submitted, running in two blocks per group of slab 3.
  Client open_running(std::uint64_t ticket = 0) {
    Client client = std::move(open(4)).value();
    slab_ = std::make_unique<shm::SharedMapping>(daemon_->send_slab(3));
    EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.slabs_acknowledged == 1; }));
    EXPECT_TRUE(client.submit({.id = 42, .prompt_tokens = 20, .max_new_tokens = 4}, kLong).ok());
    daemon_->run_next({42, 0, ticket, 20, wire::kRunPrefill, 0, 0}, slots());
    const auto step = client.step({}, 0, 0, kLong);
    EXPECT_TRUE(step.ok());
    return client;
  }

  static std::vector<SlotId> slots() {
    return {SlotId(SlabIndex(3), 5), SlotId(SlabIndex(3), 6), SlotId(SlabIndex(3), 9),
            SlotId(SlabIndex(3), 8)};
  }

  TemporaryFolder folder_;
  std::unique_ptr<MiniDaemon> daemon_;
  std::unique_ptr<shm::SharedMapping> slab_;
};

TEST_F(ClientTest, IntroducesItselfAndLearnsItsClass) {
  start_daemon();
  const auto client = open(4);
  ASSERT_TRUE(client.ok()) << client.error().message;
  const auto seen = daemon_->seen();
  ASSERT_EQ(seen.hellos.size(), 1u);
  EXPECT_STREQ(seen.hellos[0].name.data(), "client-test");
  EXPECT_EQ(seen.hellos[0].orphaned_bytes, 0u);
  const auto session = client->session();
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->engine, 7u);
  EXPECT_EQ(session->layer_groups, MiniDaemon::kGroups);
  EXPECT_EQ(session->shape.block_tokens, 16u);
}

TEST_F(ClientTest, SaysWhereNobodyListens) {
  const auto client = open();
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(client.error().message, HasSubstr(folder_.path("attach.sock")));
}

TEST_F(ClientTest, PassesOnWhyItWasRefused) {
  start_daemon();
  daemon_->change([](auto& script) {
    script.refuse_attach = make_error(kvd::ErrorCode::kUnsupported, "speaks 2 to 3");
  });
  const auto client = open();
  EXPECT_EQ(client.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(client.error().message, "speaks 2 to 3");
}

TEST_F(ClientTest, TriesAgainWhereTheDaemonHangsUpBeforeItAnswers) {
  start_daemon();
  daemon_->change([](auto& script) { script.hang_ups = 3; });
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(daemon_->seen().hellos.size(), 4u);
}

TEST_F(ClientTest, AHangUpEveryTimeIsUnavailableInTheEnd) {
  start_daemon();
  daemon_->change([](auto& script) { script.hang_ups = UINT32_MAX; });
  EXPECT_EQ(open(0, milliseconds(200)).code(), ErrorCode::kUnavailable);
}

TEST_F(ClientTest, KeepsItsSessionWhereACommandCannotBeSentInTime) {
  start_daemon();
  daemon_->change([](auto& script) { script.leave_commands = true; });
  auto client = open();
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->ping(milliseconds(50)).code(), ErrorCode::kDeadlineExceeded);
  daemon_->change([](auto& script) { script.leave_commands = false; });
  EXPECT_TRUE(client->ping(kLong).ok());
  EXPECT_EQ(daemon_->seen().hellos.size(), 1u) << "attached anew";
  EXPECT_EQ(daemon_->seen().sequences.front(), 1u);
}

TEST_F(ClientTest, HoldsTheKeeperMutexAndBeats) {
  start_daemon();
  auto client = open();
  const auto page = daemon_->page();
  EXPECT_TRUE(page->keeper().arm().held());
  EXPECT_FALSE(page->keeper().arm().owner_died());
  const std::uint64_t first = page->heartbeat();
  EXPECT_GT(first, 0u) << "the mutex is held before the first beat";
  EXPECT_TRUE(daemon_->wait_until([&](const auto&) { return page->heartbeat() > first; }));
}

TEST_F(ClientTest, MapsARegionBackToBack) {
  start_daemon();
  auto client = open();
  const auto region = client->allocate_region(MiniDaemon::kSlabBytes.size() * 2 + 1, kLong);
  ASSERT_TRUE(region.ok()) << region.error().message;
  EXPECT_EQ(region->bytes, MiniDaemon::kSlabBytes.size() * 3);
  EXPECT_EQ(region->granularity, MiniDaemon::kSlabBytes.size());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->address) % region->granularity, 0u);
  for (std::uint32_t position = 0; position < 3; ++position) {
    region->address[position * region->granularity] = std::byte(position + 1);
    EXPECT_EQ(daemon_->region_slab(1, position)[0], std::byte(position + 1));
  }
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.slabs_acknowledged == 3; }));
}

TEST_F(ClientTest, TellsTheLongestGapsOfRequestsAndGoesOnWhereTheDaemonIsOlder) {
  start_daemon();
  auto client = open(4);
  kvd_client::Request request{.id = 5, .prompt_tokens = 20, .max_new_tokens = 2};
  request.gap_slo = seconds(2);
  ASSERT_TRUE(client->submit(request, kLong).ok());
  const std::vector<kvd_client::RequestGap> gaps = {{6, 7}};
  ASSERT_TRUE(client->set_gaps(gaps, kLong).ok());
  const auto seen = daemon_->seen();
  ASSERT_EQ(seen.gaps.size(), 2u);
  EXPECT_EQ(seen.gaps[0].request, 5u);
  EXPECT_EQ(seen.gaps[0].gap_ns, 2'000'000'000u);
  EXPECT_EQ(seen.gaps[1].gap_ns, 7u);
  for (const kvd_client::Duration bad :
       {kvd_client::Duration(-1), kvd_client::Duration(seconds(3601))}) {
    request.gap_slo = bad;
    EXPECT_EQ(client->submit(request, kLong).code(), ErrorCode::kInvalidArgument);
  }
  daemon_->change([](auto& script) { script.is_older = true; });
  request.gap_slo = seconds(2);
  EXPECT_TRUE(client->submit(request, kLong).ok());
  EXPECT_EQ(client->set_gaps(gaps, kLong).code(), ErrorCode::kUnsupported);
}

TEST_F(ClientTest, AsksWhichLayersStay) {
  start_daemon();
  auto client = open();
  const std::vector<kvd_client::LayersInput::Request> requests = {{3, 1000}, {5, 70}};
  const kvd_client::LayersInput input{96, 65536, 20'000'000, 4, 32, requests};
  const auto plan = client->place_layers(input, kLong);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->budget_blocks, 96u);
  ASSERT_EQ(plan->entries.size(), 2u);
  EXPECT_EQ(plan->entries[1].request, 5u);
  EXPECT_EQ(plan->entries[1].resident_blocks, 70u);
  EXPECT_EQ(plan->entries[1].distance, 2u);
  const auto seen = daemon_->seen();
  EXPECT_EQ(seen.layers.step_ns, 20'000'000u);
  EXPECT_EQ(seen.layers.layers, 4u);
  EXPECT_EQ(seen.layers.block_tokens, 32u);
  daemon_->change([](auto& script) { script.is_older = true; });
  EXPECT_EQ(client->place_layers(input, kLong).code(), ErrorCode::kUnsupported);
}

// Otherwise the daemon would count memory as the engine's for ever.
TEST_F(ClientTest, APartThatTheDaemonDidNotHearOfIsHandedBackAgain) {
  start_daemon();
  auto client = open();
  const auto region = client->reserve_region(4 * MiniDaemon::kSlabBytes.size(), kLong);
  const std::vector<std::uint32_t> positions = {1, 2};
  const auto part = client->grow_region(region->id, positions, kLong);
  ASSERT_TRUE(part.ok()) << part.error().message;
  daemon_->change([](auto& script) {
    script.refuse_command = make_error(kvd::ErrorCode::kDeadlineExceeded, "busy");
  });
  EXPECT_EQ(client->shrink_region(region->id, *part, kLong).code(), ErrorCode::kDeadlineExceeded);
  daemon_->change([](auto& script) { script.refuse_command.reset(); });
  ASSERT_TRUE(client->shrink_region(region->id, *part, kLong).ok());
  EXPECT_THAT(daemon_->seen().finished_regions, ElementsAre(1u));
  EXPECT_EQ(client->shrink_region(region->id, *part, kLong).code(), ErrorCode::kNotFound);
}

TEST_F(ClientTest, SharesByGoalsAndByAgeWhereTheDaemonIsOlder) {
  start_daemon();
  auto client = open();
  const auto region = client->reserve_region(4 * MiniDaemon::kSlabBytes.size(), kLong);
  ASSERT_TRUE(region.ok()) << region.error().message;
  kvd_client::Demand demand{.least_bytes = 3, .wanted_bytes = 9, .grain_bytes = 1};
  EXPECT_EQ(*client->share_region(region->id, demand, kLong), 9u) << "nobody told any goal";
  demand.needs = {
      {.bytes = 9, .least = 3, .age_ns = 5, .ttft_ns = 6, .slo_class = 7, .begun = true}};
  EXPECT_EQ(*client->share_region(region->id, demand, kLong), 3u);
  const auto seen = daemon_->seen();
  ASSERT_EQ(seen.needs.size(), 1u);
  EXPECT_EQ(seen.needs[0].ttft_ns, 6u);
  EXPECT_EQ(seen.needs[0].begun, 1u);
  daemon_->change([](auto& script) { script.is_older = true; });
  EXPECT_EQ(*client->share_region(region->id, demand, kLong), 9u);
}

TEST_F(ClientTest, HandsARegionBackOnce) {
  start_daemon();
  auto client = open();
  const auto region = client->allocate_region(1, kLong);
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(client->free_region(region->id, kLong).ok());
  EXPECT_THAT(daemon_->seen().finished_regions, ElementsAre(1u));
  EXPECT_EQ(client->free_region(region->id, kLong).code(), ErrorCode::kNotFound);
}

TEST_F(ClientTest, GivesBackARegionWhoseSlabsDoNotArrive) {
  start_daemon();
  auto client = open();
  daemon_->change([](auto& script) { script.withhold_slabs = 1; });
  const auto region = client->allocate_region(MiniDaemon::kSlabBytes.size() * 2, milliseconds(200));
  EXPECT_EQ(region.code(), ErrorCode::kDeadlineExceeded);
  // It goes back at once, or with a later call when even the grant came too late.
  const std::vector<std::uint64_t> expected{1};
  for (int call = 0; call < 100 && daemon_->seen().finished_regions != expected; ++call) {
    ASSERT_TRUE(client->ping(kLong).ok());
  }
  EXPECT_EQ(daemon_->seen().finished_regions, expected);
}

TEST_F(ClientTest, EndsACallAtItsDeadline) {
  start_daemon();
  auto client = open();
  ASSERT_TRUE(client->ping(kLong).ok());
  daemon_->change([](auto& script) { script.answers = 0; });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client->ping(milliseconds(100)).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
}

TEST_F(ClientTest, DoesNotWaitForAnotherThreadsCallBeyondItsDeadline) {
  start_daemon();
  auto client = open();
  daemon_->change([](auto& script) { script.answers = 0; });
  std::thread slow([&] { (void)client->ping(kLong); });
  ASSERT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.sequences.size() == 1; }));
  EXPECT_EQ(client->ping(milliseconds(20)).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(daemon_->seen().sequences.size(), 1u) << "the second call never had its turn";
  daemon_.reset();
  slow.join();
}

TEST_F(ClientTest, PassesOnTheDaemonsRefusal) {
  start_daemon();
  auto client = open();
  daemon_->change([](auto& script) {
    script.refuse_command = make_error(kvd::ErrorCode::kQuotaExceeded, "raise the quota");
  });
  const auto region = client->allocate_region(1, kLong);
  EXPECT_EQ(region.code(), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(region.error().message, "raise the quota");
}

TEST_F(ClientTest, SaysGoodbyeAfterUnmapping) {
  start_daemon();
  {
    auto client = open();
    ASSERT_TRUE(client->allocate_region(1, kLong).ok());
  }
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.goodbyes == 1; }));
}

TEST_F(ClientTest, FindsBlocksThroughTheTable) {
  start_daemon();
  auto client = open_running();
  const std::size_t slot_bytes = MiniDaemon::kSlotBytes.size();
  const std::uint32_t expected[2][2] = {{5, 6}, {9, 8}};
  for (std::uint32_t group = 0; group < 2; ++group) {
    for (std::uint32_t block = 0; block < 2; ++block) {
      const auto address = client.block_address(0, group, block);
      ASSERT_TRUE(address.ok()) << address.error().message;
      **address = std::byte(10 * group + block + 1);
      EXPECT_EQ(slab_->bytes()[expected[group][block] * slot_bytes],
                std::byte(10 * group + block + 1));
    }
  }
  EXPECT_EQ(client.block_address(1, 0, 0).code(), ErrorCode::kNotFound);
  EXPECT_EQ(client.block_address(0, 2, 0).code(), ErrorCode::kNotFound);
  EXPECT_EQ(client.block_address(0, 0, 2).code(), ErrorCode::kNotFound);
}

TEST_F(ClientTest, TellsTheDaemonWhichTableIsInUse) {
  start_daemon();
  auto client = open_running();
  EXPECT_EQ(daemon_->page()->using_version(), PlanVersion(1));
  const kvd_client::StepReport report{42, 20, false};
  ASSERT_TRUE(client.step(std::span(&report, 1), 1, 0, kLong).ok());
  const auto seen = daemon_->seen();
  ASSERT_EQ(seen.reports.size(), 1u);
  EXPECT_EQ(seen.reports[0].tokens, 20u);
  EXPECT_EQ(seen.steps.back().iteration_finished, 1u);
  EXPECT_EQ(seen.steps.back().table_version, 0u) << "nothing runs meanwhile";
  EXPECT_EQ(daemon_->page()->iteration_finished(), 1u);
}

TEST_F(ClientTest, KeepsTheTableOfARunningIterationInUse) {
  start_daemon();
  auto client = open_running();
  daemon_->run_next({42, 20, 0, 1, 0, 0, 0}, slots());
  ASSERT_TRUE(client.step({}, 0, 1, kLong).ok());
  EXPECT_EQ(daemon_->seen().steps.back().table_version, 1u);
  EXPECT_EQ(daemon_->page()->using_version(), PlanVersion(1)) << "iteration 1 still reads it";
  const kvd_client::StepReport report{42, 20, false};
  ASSERT_TRUE(client.step(std::span(&report, 1), 1, 2, kLong).ok());
  EXPECT_EQ(daemon_->page()->using_version(), PlanVersion(2));
}

TEST_F(ClientTest, NumbersCommandsWithoutAGap) {
  start_daemon();
  auto client = open(4);
  const std::vector<std::uint64_t> too_many(wire::kMaxRequestsPerStep + 1);
  EXPECT_EQ(client->place(too_many, kLong).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(client->ping(kLong).ok());
  daemon_->change([](auto& script) { script.answers = 0; });
  EXPECT_EQ(client->ping(milliseconds(200)).code(), ErrorCode::kDeadlineExceeded);
  daemon_->change([](auto& script) { script.answers = UINT32_MAX; });
  EXPECT_TRUE(client->ping(kLong).ok());
  EXPECT_THAT(daemon_->seen().sequences, ElementsAre(1u, 2u, 3u));
}

TEST_F(ClientTest, UnmapsASlabWhenAsked) {
  start_daemon();
  auto client = open_running();
  ASSERT_TRUE(client.block_address(0, 0, 0).ok());
  daemon_->ask_unmap(3);
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.slabs_unmapped == 1; }));
  EXPECT_EQ(client.block_address(0, 0, 0).code(), ErrorCode::kNotFound);
}

TEST_F(ClientTest, StartsANewSessionWhereASlabCannotBeMapped) {
  start_daemon();
  Client client = open_running();
  daemon_->send_short_slab(4);
  kvd_client::Error told;
  ASSERT_TRUE(poll_until([&] {
    const auto step = client.step({}, 1, 0, kLong);
    if (!step.ok()) told = step.error();
    return !step.ok();
  }));
  EXPECT_EQ(told.code, ErrorCode::kUnavailable);
  // A caller that waits for a copy at that moment only learns that the session has gone.
  EXPECT_THAT(told.message,
              testing::AnyOf(HasSubstr("could not be mapped"), HasSubstr("submit again")));
  EXPECT_TRUE(client.step({}, 0, 0, kLong).ok());
  EXPECT_EQ(daemon_->seen().hellos.size(), 2u);
}

// kvd poisons the page first and hangs up later; the keeper of this process may be slower still.
TEST_F(ClientTest, TellsALossOnceWhateverComesFirst) {
  start_daemon();
  Client client = open_running(7);
  daemon_->page()->poison();
  EXPECT_EQ(client.step({}, 1, 0, kLong).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(client.step({}, 0, 0, kLong).ok());
  EXPECT_EQ(daemon_->seen().hellos.size(), 2u);
}

TEST_F(ClientTest, WaitsForATicket) {
  start_daemon();
  auto client = open_running(7);
  daemon_->page()->fence_h2d().store(6);
  EXPECT_EQ(client.wait(7, milliseconds(50)).code(), ErrorCode::kDeadlineExceeded);
  std::thread copy([page = daemon_->page()] { page->fence_h2d().store(7); });
  EXPECT_TRUE(client.wait(7, kLong).ok());
  copy.join();
}

TEST_F(ClientTest, WaitsForAStreamedLayer) {
  start_daemon();
  auto client = open_running();
  const auto page = daemon_->page();
  page->fence_layers() = layer_mark(5, 1);
  EXPECT_TRUE(client.wait_layer(5, 0, kLong).ok());
  EXPECT_TRUE(client.wait_layer(4, 1, kLong).ok());
  EXPECT_EQ(client.wait_layer(5, 1, milliseconds(50)).code(), ErrorCode::kDeadlineExceeded);
  std::thread fetch([&] { page->fence_layers() = layer_mark(5, 2); });
  EXPECT_TRUE(client.wait_layer(5, 1, kLong).ok());
  fetch.join();
  EXPECT_EQ(client.wait_layer(5, MiniDaemon::kGroups, kLong).code(), ErrorCode::kInvalidArgument);
  page->poison();
  EXPECT_EQ(client.wait_layer(5, 1, kLong).code(), ErrorCode::kUnavailable);
}

TEST_F(ClientTest, ReleasesAWaiterForALayerWhenTheDaemonDies) {
  start_daemon();
  auto client = open_running();
  std::optional<ErrorCode> code;
  std::thread waiter([&] { code = client.wait_layer(5, 0, kLong).code(); });
  daemon_.reset();
  waiter.join();
  EXPECT_EQ(code, ErrorCode::kUnavailable);
  EXPECT_EQ(client.layer_done(5, 0).code(), ErrorCode::kUnavailable);
}

TEST_F(ClientTest, TellsOfALayerDoneAndRingsWhereTheDaemonSleepsOnIt) {
  start_daemon();
  auto client = open_running();
  const auto page = daemon_->page();
  ASSERT_TRUE(client.layer_done(5, 0).ok());
  EXPECT_EQ(page->progress(), layer_mark(5, 1));
  EXPECT_EQ(daemon_->take_rings(), 0u) << "nobody sleeps";
  page->progress_wanted() = layer_mark(6, 1);
  ASSERT_TRUE(client.layer_done(5, 1).ok());
  EXPECT_EQ(daemon_->take_rings(), 0u) << "it would be too early";
  ASSERT_TRUE(client.layer_done(6, 0).ok());
  EXPECT_EQ(daemon_->take_rings(), 1u);
  EXPECT_EQ(page->progress_wanted(), 0u);
  ASSERT_TRUE(client.layer_done(6, 1).ok());
  EXPECT_EQ(daemon_->take_rings(), 0u) << "once a sleep";
  EXPECT_EQ(client.layer_done(6, MiniDaemon::kGroups).code(), ErrorCode::kInvalidArgument);
}

TEST_F(ClientTest, FindsManyBlocksAtOnce) {
  start_daemon();
  auto client = open_running();
  std::vector<std::byte*> addresses(2);
  for (std::uint32_t group = 0; group < MiniDaemon::kGroups; ++group) {
    ASSERT_TRUE(client.block_addresses(0, group, addresses).ok());
    for (std::uint32_t block = 0; block < 2; ++block) {
      EXPECT_EQ(addresses[block], *client.block_address(0, group, block));
    }
  }
  addresses.resize(3);
  EXPECT_EQ(client.block_addresses(0, 0, addresses).code(), ErrorCode::kNotFound);
  EXPECT_EQ(client.block_addresses(0, MiniDaemon::kGroups, {}).code(), ErrorCode::kNotFound);
  EXPECT_TRUE(client.block_addresses(0, 0, std::span(addresses).first(1)).ok());
}

TEST_F(ClientTest, SaysWhichEntriesAreStreamed) {
  start_daemon();
  auto client = open_running();
  daemon_->run_next({42, 20, 0, 1, wire::kRunStreamed, 2, 0}, slots());
  const auto step = client.step({}, 0, 1, kLong);
  ASSERT_TRUE(step.ok());
  EXPECT_TRUE(step->run.at(0).streamed);
  EXPECT_EQ(step->run.at(0).distance, 2u);
  EXPECT_FALSE(step->run.at(0).swapped_in);
  EXPECT_EQ(client.session()->boot_id[0], 1);
}

TEST_F(ClientTest, RefusesAWaitThatIsPoisonedThoughItsFenceIsThere) {
  start_daemon();
  auto client = open_running(7);
  daemon_->page()->fence_h2d().store(7);
  daemon_->page()->poison();
  EXPECT_EQ(client.wait(7, kLong).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(client.step({}, 0, 0, kLong).ok()) << "the loss has been told";
  EXPECT_EQ(daemon_->seen().hellos.size(), 2u);
}

TEST_F(ClientTest, ReleasesAWaiterWhenTheDaemonDies) {
  start_daemon();
  auto client = open_running(7);
  std::optional<ErrorCode> code;
  std::thread waiter([&] { code = client.wait(7, seconds(30)).code(); });
  const auto page = daemon_->page();
  daemon_.reset();
  waiter.join();
  EXPECT_EQ(code, ErrorCode::kUnavailable);
  EXPECT_TRUE(page->poisoned());
}

TEST_F(ClientTest, AttachesAgainAndReportsItsOldRegions) {
  start_daemon(1);
  auto client = open();
  const auto old = client->allocate_region(1, kLong);
  ASSERT_TRUE(old.ok());
  *old->address = std::byte{0x77};
  daemon_.reset();
  EXPECT_EQ(client->ping(milliseconds(200)).code(), ErrorCode::kUnavailable);

  start_daemon(2);
  ASSERT_TRUE(client->ping(kLong).ok());
  const auto hello = daemon_->seen().hellos.at(0);
  EXPECT_EQ(hello.previous_boot[0], 1);
  EXPECT_EQ(hello.orphaned_bytes, old->bytes);
  EXPECT_EQ(*old->address, std::byte{0x77}) << "readable until freed";

  const auto fresh = client->allocate_region(1, kLong);
  ASSERT_TRUE(fresh.ok());
  EXPECT_NE(fresh->id, old->id);
  EXPECT_TRUE(client->free_region(old->id, kLong).ok());
  EXPECT_THAT(daemon_->seen().finished_regions, IsEmpty()) << "not this daemon's region";
  EXPECT_TRUE(client->free_region(fresh->id, kLong).ok());
  EXPECT_THAT(daemon_->seen().finished_regions, ElementsAre(1u));
}

TEST_F(ClientTest, TellsAFreshDaemonOfItsRegionsThoughNobodyCalls) {
  start_daemon(1);
  auto client = open();
  ASSERT_TRUE(client->allocate_region(1, kLong).ok());
  start_daemon(2);
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.hellos.size() == 1; }));
  EXPECT_EQ(daemon_->seen().hellos[0].orphaned_bytes, MiniDaemon::kSlabBytes.size());
}

TEST_F(ClientTest, AsksAgainForARegionWhoseClaimIsAnsweredLateThoughNobodyCalls) {
  start_daemon(1);
  auto client = open();
  const auto region = client->allocate_region(1, kLong);
  ASSERT_TRUE(region.ok());
  start_next_daemon(0);
  EXPECT_TRUE(
      daemon_->wait_until([](const auto& seen) { return seen.claimed_regions.size() == 2; }));
  daemon_->change([](auto& script) { script.answers = UINT32_MAX; });
  ASSERT_TRUE(client->ping(kLong).ok());
  EXPECT_TRUE(client->free_region(region->id, kLong).ok());
  EXPECT_THAT(daemon_->seen().finished_regions, ElementsAre(MiniDaemon::kTakenBack + 1));
}

TEST_F(ClientTest, HasASpaceAgainWhicheverAnswerIsLate) {
  const std::uint32_t before[] = {0, 2}, after[] = {1};
  for (const std::uint32_t answers : {0u, 1u, 2u}) {  // a claim, an opening and a placing
    start_daemon(1);
    auto client = open();
    const auto region = client->reserve_region(4 * MiniDaemon::kSlabBytes.size(), kLong);
    ASSERT_TRUE(region.ok() && client->grow_region(region->id, before, kLong).ok());
    start_next_daemon(answers);
    // Longer than the client itself tries.
    EXPECT_EQ(client->ping(milliseconds(1500)).code(), ErrorCode::kDeadlineExceeded);
    daemon_->change([](auto& script) { script.answers = UINT32_MAX; });
    EXPECT_TRUE(client->ping(kLong).ok());
    EXPECT_TRUE(client->grow_region(region->id, after, kLong).ok()) << answers;
    const auto spaces = daemon_->seen().placed_regions;
    EXPECT_THAT(spaces, Contains(MiniDaemon::kTakenBack + 1)) << answers;
    EXPECT_THAT(spaces, Contains(0u).Times(1)) << answers;
  }
}

TEST_F(ClientTest, ReportsLostRequestsOnceAndThenWorks) {
  start_daemon(1);
  auto client = open_running();
  const auto block = client.block_address(0, 0, 0);
  ASSERT_TRUE(block.ok());
  start_daemon(2);
  EXPECT_TRUE(client.ping(kLong).ok()) << "memory calls go on";
  **block = std::byte{1};  // the engine does not know yet: its addresses must still stand
  EXPECT_EQ(client.step({}, 1, 0, kLong).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(client.step({}, 0, 0, kLong).ok());
  EXPECT_TRUE(client.submit({.id = 42, .prompt_tokens = 1, .max_new_tokens = 1}, kLong).ok());
}

TEST_F(ClientTest, ForgetsEndedRequestsBeforeALoss) {
  start_daemon(1);
  auto client = open_running();
  const kvd_client::StepReport last{42, 20, true};
  ASSERT_TRUE(client.step(std::span(&last, 1), 1, 0, kLong).ok());
  start_daemon(2);
  EXPECT_TRUE(client.step({}, 0, 0, kLong).ok()) << "nothing was lost";
}

TEST_F(ClientTest, TakesAStaleSessionForALostDaemon) {
  start_daemon();
  auto client = open();
  daemon_->change([](auto& script) {
    script.refuse_command = make_error(kvd::ErrorCode::kStaleSession, "replaced");
  });
  EXPECT_EQ(client->ping(kLong).code(), ErrorCode::kUnavailable);
  daemon_->change([](auto& script) { script.refuse_command.reset(); });
  EXPECT_TRUE(client->ping(kLong).ok());
  EXPECT_EQ(daemon_->seen().hellos.size(), 2u);
}

/// Runs `child` in a forked process and returns its exit status, or -1 after a signal.
template <class Child>
int run_forked(Child child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(ClientTest, IsDeadInAForkedChild) {
  start_daemon();
  auto client = std::make_unique<Client>(std::move(open()).value());
  const auto region = client->allocate_region(1, kLong);
  ASSERT_TRUE(region.ok());
  const int failed = run_forked([&] {
    if (client->ping(kLong).code() != ErrorCode::kPeerGone) return 1;
    if (client->allocate_region(1, kLong).code() != ErrorCode::kPeerGone) return 2;
    if (client->free_region(region->id, kLong).code() != ErrorCode::kPeerGone) return 3;
    if (client->wait(1, kLong).code() != ErrorCode::kPeerGone) return 4;
    if (client->session().code() != ErrorCode::kPeerGone) return 5;
    client.reset();
    return 0;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(client->ping(kLong).ok()) << "the child's destructor reached the parent's session";
  EXPECT_EQ(daemon_->seen().goodbyes, 0u);
  EXPECT_THAT(daemon_->seen().finished_regions, IsEmpty());
  *region->address = std::byte{1};
}

TEST_F(ClientTest, MapsNothingIntoAForkedChild) {
  start_daemon();
  auto client = open();
  const auto region = client->allocate_region(1, kLong);
  ASSERT_TRUE(region.ok());
  const int mapped = run_forked([&] {
    unsigned char resident = 0;
    // ENOMEM: the kernel knows no mapping at this address.
    return ::mincore(region->address, 4096, &resident) == 0 ? 1 : 0;
  });
  EXPECT_EQ(mapped, 0);
}

// An engine that follows pointers must never be given device pointers unasked.
TEST_F(ClientTest, AsksForHostMemoryAndTakesNothingElse) {
  start_daemon();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(daemon_->seen().hellos.at(0).slab_kinds, kvd_client::kHostMemory);
  EXPECT_EQ(daemon_->seen().hellos.at(0).abilities, 0u);
  daemon_->change([](auto& script) { script.gpu = {0xab}; });
  EXPECT_EQ(open().code(), ErrorCode::kInternal);
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.goodbyes == 2; }))
      << "it was admitted and has to leave in order";
}

TEST_F(ClientTest, HostMemoryHasNoStreams) {
  start_daemon();
  Client client = open_running(3);
  EXPECT_EQ(client.session()->memory, kvd_client::MemoryKind::kHost);
  EXPECT_EQ(client.session()->device, -1);
  EXPECT_EQ(client.wait_on_stream(3, nullptr).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(client.wait_layer_on_stream(1, 0, nullptr).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(client.layer_done_on_stream(1, 0, nullptr).code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(client.confirm().ok());
}

// A stream cannot be woken: only the word itself ends its wait, and a copy may still write there.
TEST_F(ClientTest, FencesOfAGoneDaemonStayReleased) {
  start_daemon();
  Client client = open_running(3);
  const auto page = daemon_->page();
  daemon_.reset();
  constexpr std::uint64_t kReleased = INT64_MAX;
  const auto released = [&] {
    return page->fence_h2d() == kReleased && page->fence_d2h() == kReleased;
  };
  ASSERT_TRUE(poll_until(released));
  EXPECT_TRUE(page->poisoned()) << "before the release, not after it";
  page->fence_h2d() = 2;
  EXPECT_TRUE(poll_until(released));
  EXPECT_EQ(client.confirm().code(), ErrorCode::kUnavailable);
}

TEST_F(ClientTest, AViewedRegionIsNotFreed) {
  start_daemon();
  Client client = std::move(open()).value();
  const auto region = client.allocate_region(1, kLong);
  ASSERT_TRUE(region.ok());
  auto view = client.view_region(region->id, kLong);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->address, region->address);
  EXPECT_EQ(view->device, -1);
  EXPECT_EQ(client.free_region(region->id, kLong).code(), ErrorCode::kWouldBlock);
  view->mapping.reset();
  EXPECT_TRUE(client.free_region(region->id, kLong).ok());
}

TEST_F(ClientTest, AClientThatClosesWithAViewSaysNoGoodbye) {
  start_daemon();
  kvd_client::RegionView view;
  {
    Client client = std::move(open()).value();
    const auto region = client.allocate_region(1, kLong);
    ASSERT_TRUE(region.ok());
    view = std::move(client.view_region(region->id, kLong)).value();
  }
  *view.address = std::byte{5};
  ASSERT_TRUE(open().ok());  // and leaves, so that its goodbye has been heard
  EXPECT_TRUE(daemon_->wait_until([](const auto& seen) { return seen.goodbyes == 1; }));
  EXPECT_EQ(*view.address, std::byte{5});
}

}  // namespace
}  // namespace kvd::test
