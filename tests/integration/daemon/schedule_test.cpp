// Engines that place their blocks themselves, on a running daemon: over either transport, through
// the client library and past it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "client_lib/include/kvd.h"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace kc = kvd_client;

constexpr std::uint64_t kSecond = 1'000'000'000;

kc::ScheduleRequest waiting(std::uint64_t id, std::uint32_t prompt, std::uint64_t age_ns) {
  kc::ScheduleRequest request;
  request.id = id;
  request.prompt_tokens = prompt;
  request.max_new_tokens = 100;
  request.age_ns = age_ns;
  return request;
}

/// Its eleven tokens came one a millisecond, the last one just now.
kc::ScheduleRequest running(std::uint64_t id, std::uint32_t blocks) {
  kc::ScheduleRequest request = waiting(id, blocks * 16 - 18, 5 * kSecond);
  request.state = kc::ScheduleState::kRunning;
  request.generated_tokens = 11;
  request.computed_tokens = request.prompt_tokens + 10;
  request.blocks = blocks;
  request.first_token_age_ns = 11'000'000;
  request.last_token_age_ns = 1;
  return request;
}

kc::ScheduleInput input_of(std::span<const kc::ScheduleRequest> requests,
                           std::uint64_t free_blocks) {
  kc::ScheduleInput input;
  input.free_blocks = free_blocks;
  input.total_blocks = 100;
  input.block_tokens = 16;
  input.last_step_ns = 10'000'000;
  input.last_step_decodes = 4;
  input.requests = requests;
  return input;
}

class Schedule : public testing::TestWithParam<kc::Transport> {
 protected:
  kc::Client open(const char* name, const kc::ModelShape& shape = {}) {
    kc::Options options;
    options.endpoint = daemon_.endpoint();
    options.engine_name = name;
    options.shape = shape;
    options.transport = GetParam();
    auto client = kc::Client::open(options);
    KVD_CHECK(client.ok(), "open");
    return std::move(*client);
  }
  RawEngine attach(const char* name) {
    auto engine = RawEngine::attach(daemon_.endpoint(), name, {},
                                    static_cast<wire::TransportKind>(GetParam()));
    KVD_CHECK(engine.ok(), "attach");
    return std::move(*engine);
  }

  DaemonThread daemon_;
};

TEST_P(Schedule, DecidesByThePoliciesInForceAndShowsWhatItWasTold) {
  auto client = open("places");
  const std::vector requests = {running(1, 45), running(2, 45), waiting(3, 16 * 40, 3 * kSecond),
                                waiting(4, 16, kSecond)};
  const auto answer = client.schedule(input_of(requests, 10), seconds(5));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->preempt.size(), 1u) << "for a prompt past half of its 5 s";
  EXPECT_THAT(answer->admit, ElementsAre(3, 4));
  const auto status = daemon_.status();
  const auto engine = engine_named(status, "places");
  ASSERT_TRUE(engine);
  EXPECT_TRUE(engine->level.places);
  EXPECT_EQ(engine->level.number, 3u);
  EXPECT_EQ(engine->requests, 4u);
  EXPECT_EQ(engine->steps, 1u);
  EXPECT_EQ(std::count_if(status.requests.begin(), status.requests.end(),
                          [](const auto& r) { return r.state == core::RequestState::kRunning; }),
            2);
  EXPECT_EQ(status.counters.schedule.preempted, 1u);
  EXPECT_EQ(status.counters.schedule.admitted, 2u);
}

TEST_P(Schedule, ARequestMayNameItsLongestGap) {
  auto client = open("gaps");
  std::vector requests = {running(1, 45), running(2, 45)};
  ASSERT_TRUE(client.schedule(input_of(requests, 10), seconds(5)).ok());
  const std::vector<kc::RequestGap> gaps = {{1, kSecond / 4}, {7, kSecond}};
  ASSERT_TRUE(client.set_gaps(gaps, seconds(5)).ok());
  ASSERT_TRUE(client.schedule(input_of(requests, 10), seconds(5)).ok());
  const auto status = daemon_.status();
  ASSERT_EQ(status.requests.size(), 2u);
  EXPECT_EQ(status.requests[0].goals.gap_s, 0.25);
  EXPECT_EQ(status.requests[1].goals.gap_s, 1);
  for (const kc::RequestGap bad : {kc::RequestGap{0, 1}, kc::RequestGap{1, 3'601 * kSecond}}) {
    EXPECT_EQ(client.set_gaps(std::span(&bad, 1), seconds(5)).error().code,
              kc::ErrorCode::kInvalidArgument);
  }
}

TEST_P(Schedule, WhoCannotBeParkedDoesNotLeave) {
  auto client = open("recomputes");
  std::vector requests = {running(1, 45), running(2, 45), waiting(3, 16 * 40, 3 * kSecond)};
  requests[0].blocks_to_return = requests[1].blocks_to_return = kc::kRecomputed;
  const auto answer = client.schedule(input_of(requests, 10), seconds(5));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_THAT(answer->preempt, IsEmpty());
  EXPECT_THAT(answer->admit, IsEmpty());
}

TEST_P(Schedule, TakesAsManyRequestsAsThereMayBe) {
  auto client = open("many");
  std::vector<kc::ScheduleRequest> requests;
  for (std::uint64_t id = 1; id <= kc::kMostScheduled; ++id) {
    requests.push_back(waiting(id, 1, kSecond + kc::kMostScheduled - id));
  }
  kc::ScheduleInput input = input_of(requests, 4096);
  input.total_blocks = 4096;
  const auto answer = client.schedule(input, seconds(5));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->admit.size(), kc::kMostScheduled);
  EXPECT_TRUE(std::is_sorted(answer->admit.begin(), answer->admit.end()));
  requests.push_back(waiting(9999, 1, 1));
  input.requests = requests;
  const auto refused = client.schedule(input, seconds(5));
  EXPECT_EQ(refused.error().code, kc::ErrorCode::kInvalidArgument);
  EXPECT_TRUE(client.ping(seconds(5)).ok());
}

TEST_P(Schedule, WhatCannotBeIsRefusedAndTheSessionGoesOn) {
  auto client = open("wrong");
  std::vector requests = {waiting(1, 16, 1), waiting(1, 16, 1)};
  EXPECT_EQ(client.schedule(input_of(requests, 1), seconds(5)).error().code,
            kc::ErrorCode::kInvalidArgument)
      << "an id twice";
  requests[1].id = 0;
  EXPECT_EQ(client.schedule(input_of(requests, 1), seconds(5)).error().code,
            kc::ErrorCode::kInvalidArgument);
  requests.pop_back();
  EXPECT_EQ(client.schedule(input_of(requests, 101), seconds(5)).error().code,
            kc::ErrorCode::kInvalidArgument)
      << "more free than there are";
  requests[0].state = static_cast<kc::ScheduleState>(9);
  EXPECT_EQ(client.schedule(input_of(requests, 1), seconds(5)).error().code,
            kc::ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.schedule(input_of({}, 1), seconds(0)).error().code,
            kc::ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(client.schedule(input_of({}, 1), seconds(5)).ok());
}

TEST_P(Schedule, ASessionWithAShapeIsRefused) {
  auto client = open("shaped", {.layers = 4, .bytes_per_token_per_layer = 1024});
  const auto answer = client.schedule(input_of({}, 1), seconds(5));
  EXPECT_EQ(answer.error().code, kc::ErrorCode::kInvalidArgument);
  EXPECT_THAT(answer.error().message, HasSubstr("without a shape"));
}

TEST_P(Schedule, FramesThatAreNotWhatTheySayAreRefused) {
  RawEngine engine = attach("raw");
  const std::vector requests(3, wire::ScheduleRequest{.request = 1, .state = 1});
  wire::ScheduleCommand command;
  command.body.total_blocks = 10;
  command.body.block_tokens = 16;
  command.requests = requests;
  EXPECT_EQ(engine.call(command).code(), ErrorCode::kInvalidArgument);
  const auto frame = engine.next_frame(command);
  std::vector<std::byte> bytes(frame.begin(), frame.end());
  bytes.resize(bytes.size() - 8);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 8, &length, sizeof(length));
  EXPECT_EQ(engine.call_bytes(bytes, engine.sequence()).code(), ErrorCode::kInvalidArgument);
  command.requests = std::span(requests).first(1);
  EXPECT_TRUE(engine.call(command).ok());
}

TEST_P(Schedule, TheHeartbeatAloneTellsWhetherAnEngineIsSilent) {
  RawEngine engine = attach("beats");
  ASSERT_TRUE(engine.keep().ok());
  const wire::ScheduleRequest runs{.request = 1, .state = 3, .prompt_tokens = 16, .blocks = 1};
  wire::ScheduleCommand command;
  command.body.total_blocks = 10;
  command.body.block_tokens = 16;
  command.requests = std::span(&runs, 1);
  ASSERT_TRUE(engine.call(command).ok());
  const auto responsive = [](bool wanted) {
    return [wanted](const core::ControllerStatus& status) {
      const auto found = engine_named(status, "beats");
      return found && found->responsive == wanted;
    };
  };
  daemon_.clock().advance(seconds(30));
  EXPECT_TRUE(daemon_.wait_until(responsive(false)));
  engine.beat();
  EXPECT_TRUE(daemon_.wait_until(responsive(true)));
}

TEST_P(Schedule, IsTheSameInC) {
  kvd_open_options options{};
  options.struct_size = sizeof(options);
  const std::string endpoint = daemon_.endpoint();
  options.endpoint = endpoint.c_str();
  options.transport = static_cast<std::uint32_t>(GetParam());
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();
  kvd_sched_request request{};
  request.id = 7;
  request.state = KVD_SCHED_WAITING;
  request.prompt_tokens = 32;
  request.slo_class = kvd_slo_class("default");
  kvd_sched_input input{};
  input.struct_size = sizeof(input);
  input.free_blocks = input.total_blocks = 10;
  input.block_tokens = 16;
  input.requests = &request;
  input.count = 1;
  std::uint64_t preempt[1], admit[1];
  kvd_sched_result result{};
  result.struct_size = sizeof(result);
  result.preempt = preempt;
  result.preempt_capacity = 1;
  result.admit = admit;
  result.admit_capacity = 1;
  EXPECT_EQ(kvd_schedule(handle, &input, 5 * kSecond, &result), KVD_OK) << kvd_last_error();
  EXPECT_EQ(result.preempt_count, 0u);
  ASSERT_EQ(result.admit_count, 1u);
  EXPECT_EQ(admit[0], 7u);
  EXPECT_EQ(result.prefill_tokens, KVD_SCHED_ANY_TOKENS);
  result.admit_capacity = 0;
  EXPECT_EQ(kvd_schedule(handle, &input, 5 * kSecond, &result), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(result.admit_count, 0u) << "an answer of before must not be taken for one";
  result.admit_capacity = 1;
  result.admit = nullptr;
  EXPECT_EQ(kvd_schedule(handle, &input, 5 * kSecond, &result), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_schedule(handle, nullptr, 5 * kSecond, &result), KVD_INVALID_ARGUMENT);
  EXPECT_EQ(kvd_schedule(nullptr, &input, 5 * kSecond, &result), KVD_INVALID_ARGUMENT);
  result.admit = admit;
  input.count = KVD_SCHED_MAX_REQUESTS + 1;
  EXPECT_EQ(kvd_schedule(handle, &input, 5 * kSecond, &result), KVD_INVALID_ARGUMENT);
  kvd_close(handle);
}

INSTANTIATE_TEST_SUITE_P(Over, Schedule, testing::Values(kc::Transport::kZmq, kc::Transport::kRing),
                         [](const auto& tested) {
                           return tested.param == kc::Transport::kZmq ? "zmq" : "ring";
                         });

}  // namespace
}  // namespace kvd::test
