// Messages that the command socket must not believe: each error has its documented code and changes
// nothing, and the session that made it, or the one it pretends to be, goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

using testing::HasSubstr;

constexpr wire::ModelShape kShape{4, 0, 0, 0, 1024};

class BadInput : public testing::Test {
 protected:
  explicit BadInput(const DaemonThread::Edit& edit = {}) : daemon_(edit) {
    auto engine = RawEngine::attach(daemon_.endpoint(), "bad", kShape);
    KVD_CHECK(engine.ok(), "attach");
    engine_ = std::make_unique<RawEngine>(std::move(*engine));
  }
  ~BadInput() override {
    EXPECT_TRUE(engine_->call(wire::PingCommand{}).ok()) << "the session did not survive";
    wire::Goodbye goodbye;
    EXPECT_TRUE(engine_->connection().send(wire::seal(goodbye)).ok());
    EXPECT_TRUE(daemon_.wait_all_free());
  }
  std::uint64_t refused() { return daemon_.status().counters.stale_commands; }

  DaemonThread daemon_;
  std::unique_ptr<RawEngine> engine_;
};

TEST_F(BadInput, AWrongKeyIsDenied) {
  const auto status =
      engine_->call(wire::PingCommand{}, [](wire::CommandHeader& header) { header.key[15] ^= 1; });
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refused(), 1u);
}

TEST_F(BadInput, AnotherSessionsKeyIsDenied) {
  const auto other = RawEngine::attach(daemon_.endpoint(), "other");
  ASSERT_TRUE(other.ok());
  const auto status = engine_->call(wire::PingCommand{}, [&](wire::CommandHeader& header) {
    header.key = other->welcome().session_key;
  });
  EXPECT_EQ(status.code(), ErrorCode::kPermissionDenied);
}

TEST_F(BadInput, AGenerationThatNeverWasOrHasEndedIsStale) {
  std::uint64_t ended = 0;
  {
    auto earlier = RawEngine::attach(daemon_.endpoint(), "earlier");
    ASSERT_TRUE(earlier.ok());
    ended = earlier->welcome().generation;
    wire::Goodbye goodbye;
    ASSERT_TRUE(earlier->connection().send(wire::seal(goodbye)).ok());
    ASSERT_TRUE(daemon_.wait_until(
        [](const auto& status) { return !engine_named(status, "earlier").has_value(); }));
  }
  for (const std::uint64_t generation : {std::uint64_t{0}, ended, ~std::uint64_t{0}}) {
    const auto status = engine_->call(
        wire::PingCommand{}, [&](wire::CommandHeader& header) { header.generation = generation; });
    EXPECT_EQ(status.code(), ErrorCode::kStaleSession) << generation;
    EXPECT_THAT(status.error().message, HasSubstr("attach again"));
  }
}

TEST_F(BadInput, ARepeatedOrSkippedSequenceIsInvalidAndChangesNothing) {
  wire::SubmitBody submit;
  submit.request = 1;
  submit.prompt_tokens = submit.max_new_tokens = 8;
  ASSERT_TRUE(engine_->call(wire::PingCommand{}).ok());
  for (const std::uint64_t sequence :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, ~std::uint64_t{0}}) {
    const auto status =
        engine_->call(submit, [&](wire::CommandHeader& header) { header.sequence = sequence; });
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << sequence;
  }
  EXPECT_TRUE(daemon_.status().requests.empty());
  EXPECT_TRUE(engine_->call(submit).ok()) << "2 is still due";
}

/// A good frame of the session's next command, with one thing changed.
struct Damage {
  const char* name;
  std::size_t offset;
  std::uint8_t value;
  ErrorCode code;
};

TEST_F(BadInput, ADamagedFrameGetsItsCode) {
  const Damage damages[] = {{"version", 4, 9, ErrorCode::kUnsupported},
                            {"unknown type", 6, 99, ErrorCode::kUnsupported},
                            {"length", 8, 57, ErrorCode::kInvalidArgument},
                            {"reserved", 12, 1, ErrorCode::kInvalidArgument},
                            {"timeout", 55, 0x7f, ErrorCode::kInvalidArgument}};
  for (const Damage& damage : damages) {
    const auto good = engine_->next_frame(wire::PingCommand{});
    std::vector<std::byte> frame(good.begin(), good.end());
    frame[damage.offset] = std::byte{damage.value};
    EXPECT_EQ(engine_->call_bytes(frame, engine_->sequence()).code(), damage.code) << damage.name;
  }
}

TEST_F(BadInput, ACountBeyondTheFrameIsInvalid) {
  const auto good = engine_->next_frame(wire::StepCommand{});
  std::vector<std::byte> frame(good.begin(), good.end());
  frame[56 + 24] = std::byte{200};  // count
  EXPECT_EQ(engine_->call_bytes(frame, engine_->sequence()).code(), ErrorCode::kInvalidArgument);
}

TEST_F(BadInput, FieldsOutOfRangeAreInvalid) {
  wire::SubmitBody submit;
  submit.prompt_tokens = submit.max_new_tokens = 8;
  EXPECT_EQ(engine_->call(submit).code(), ErrorCode::kInvalidArgument) << "request 0";
  submit.request = 1;
  submit.prompt_tokens = 0;
  EXPECT_EQ(engine_->call(submit).code(), ErrorCode::kInvalidArgument) << "no prompt";
  submit.prompt_tokens = ~std::uint64_t{0};
  EXPECT_EQ(engine_->call(submit).code(), ErrorCode::kInvalidArgument) << "2^64 tokens";
  submit.prompt_tokens = wire::kMaxTokens;
  EXPECT_EQ(engine_->call(submit).code(), ErrorCode::kOutOfMemory) << "more than the pool";
  submit.prompt_tokens = 8;
  submit.ttft_slo_ns = -1;
  EXPECT_EQ(engine_->call(submit).code(), ErrorCode::kInvalidArgument) << "negative SLO";
  wire::AllocateBody allocate;
  EXPECT_EQ(engine_->call(allocate).code(), ErrorCode::kInvalidArgument) << "kind 0";
  allocate.kind = 1;
  EXPECT_EQ(engine_->call(allocate).code(), ErrorCode::kInvalidArgument) << "no bytes";
  allocate.amount = ~std::uint64_t{0};
  EXPECT_EQ(engine_->call(allocate).code(), ErrorCode::kInvalidArgument) << "2^64 bytes";
  wire::RotateBody rotate{1, 3, 0};
  EXPECT_EQ(engine_->call(rotate).code(), ErrorCode::kInvalidArgument) << "direction 3";
}

TEST_F(BadInput, IdsOfNobodyOrOfAnotherSessionAreNotFound) {
  auto other = RawEngine::attach(daemon_.endpoint(), "other", kShape);
  ASSERT_TRUE(other.ok());
  wire::SubmitBody submit;
  submit.request = 5;
  submit.prompt_tokens = submit.max_new_tokens = 8;
  ASSERT_TRUE(other->call(submit).ok());
  wire::AllocateBody allocate{1, 0, 0, 1};
  ASSERT_TRUE(other->call(allocate).ok());
  const auto region = std::get<wire::AllocateReplyBody>(other->reply().body).region;

  EXPECT_EQ(engine_->call(wire::RotateBody{5, 1, 0}).code(), ErrorCode::kNotFound);
  EXPECT_EQ(engine_->call(wire::AbortCommand{{5, 1, 0}}).code(), ErrorCode::kNotFound);
  EXPECT_EQ(engine_->call(wire::FinishCommand{{region, 2, 0}}).code(), ErrorCode::kNotFound);
  EXPECT_EQ(engine_->call(wire::FinishCommand{{9999, 2, 0}}).code(), ErrorCode::kNotFound);
  EXPECT_EQ(daemon_.status().requests.size(), 1u);
  wire::Goodbye goodbye;
  ASSERT_TRUE(other->connection().send(wire::seal(goodbye)).ok());
}

TEST_F(BadInput, AStepThatLiesAboutItsIterationIsInvalid) {
  wire::StepCommand step;
  step.body.iteration_finished = 5;
  EXPECT_EQ(engine_->call(step).code(), ErrorCode::kInvalidArgument);
  step.body = {};
  step.body.iteration_running = 1;
  EXPECT_EQ(engine_->call(step).code(), ErrorCode::kInvalidArgument);
}

TEST_F(BadInput, ReportsOfMoreThanWasRunAreInvalid) {
  wire::SubmitBody submit;
  submit.request = 1;
  submit.prompt_tokens = submit.max_new_tokens = 8;
  ASSERT_TRUE(engine_->call(submit).ok());
  const wire::StepReport report{1, 1000, 0, 0};
  wire::StepCommand step;
  step.reports = std::span(&report, 1);
  EXPECT_EQ(engine_->call(step).code(), ErrorCode::kInvalidArgument);
}

class Quota : public BadInput {
 protected:
  Quota()
      : BadInput([](daemon::Config& config) {
          config.max_requests = 2;
          config.domains[0].hbm_maximum = 4 * kMiB;
        }) {}
};

TEST_F(Quota, ADomainsMaximumIsNotExceeded) {
  wire::AllocateBody region{1, 0, 0, 6 << 20};
  const auto status = engine_->call(region);
  EXPECT_EQ(status.code(), ErrorCode::kQuotaExceeded);
  EXPECT_FALSE(status.error().message.empty());
  region.amount = 4 << 20;
  EXPECT_TRUE(engine_->call(region).ok());
  EXPECT_EQ(engine_->call(region).code(), ErrorCode::kQuotaExceeded);
}

TEST_F(Quota, MoreRequestsThanAllowedExceedTheQuota) {
  wire::SubmitBody submit;
  submit.prompt_tokens = submit.max_new_tokens = 8;
  for (submit.request = 1; submit.request <= 2; ++submit.request) {
    ASSERT_TRUE(engine_->call(submit).ok());
  }
  EXPECT_EQ(engine_->call(submit).code(), ErrorCode::kQuotaExceeded);
}

}  // namespace
}  // namespace kvd::test
