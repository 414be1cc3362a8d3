// kvd-engine's API as a client sees it, over a socket, with a kvd behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "tests/engines/engine_support.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;

class EngineHttp : public testing::Test {
 protected:
  void SetUp() override { start({}); }

  void start(const std::vector<std::string>& options) {
    if (!kvd_) kvd_.emplace(folder_);
    ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
    engine_.emplace(kvd_->endpoint(), options);
    ASSERT_TRUE(engine_->wait_ready()) << engine_->log();
  }
  [[nodiscard]] std::uint16_t port() const { return engine_->port(); }
  [[nodiscard]] json requests_of_kvd() const {
    return json::parse(kvd_->get("/v1/status").body).at("counters");
  }
  [[nodiscard]] std::string get(const std::string& path, const std::string& host = "127.0.0.1") {
    return admin::http_exchange(
        port(), "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  }

  const RuntimeFolder folder_;
  std::optional<KvdProcess> kvd_;
  std::optional<EngineProcess> engine_;
};

TEST_F(EngineHttp, AnswersWholeAndStreamedAlike) {
  const json asked = {{"prompt", "hello"}, {"max_tokens", 30}, {"kvd_digest", true}};
  const Generation whole = post(port(), asked.dump());
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.tokens.size(), 30U);
  EXPECT_THAT(whole.text, MatchesRegex("( [a-z]+ the [a-z]+){30}"));
  EXPECT_EQ(whole.finish_reason, "length");
  EXPECT_EQ(whole.usage["prompt_tokens"], 5);
  EXPECT_EQ(whole.usage["completion_tokens"], 30);

  json streamed = asked;
  streamed["stream_options"] = {{"include_usage", true}};
  const Generation stream = Stream(port(), streamed).finish();
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(stream.done);
  EXPECT_TRUE(stream.same_bits(whole));
  EXPECT_EQ(stream.text, whole.text);
  EXPECT_EQ(stream.finish_reason, "length");
  EXPECT_EQ(stream.usage, whole.usage);

  const Generation ids = post(port(), R"({"prompt": [104,101,108,108,111], "max_tokens": 30})");
  EXPECT_EQ(ids.tokens, whole.tokens);
}

TEST_F(EngineHttp, ChatsInOpenAisFormAndFindsTheConversationBefore) {
  const std::string path = "/v1/chat/completions";
  json turns = {{{"role", "user"}, {"content", std::string(200, 'a')}}};
  const json asked = {{"messages", turns}, {"max_completion_tokens", 20}};
  const Generation whole = post(port(), asked.dump(), path);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.tokens.size(), 20U);
  EXPECT_FALSE(whole.text.empty());
  const Generation plain =
      post(port(),
           json{{"prompt", "user: " + std::string(200, 'a') + "\nassistant: "}, {"max_tokens", 20}}
               .dump());
  EXPECT_EQ(whole.tokens, plain.tokens);
  const Generation stream = Stream(port(), asked, path).finish();
  EXPECT_TRUE(stream.done);
  EXPECT_EQ(stream.tokens, whole.tokens);
  EXPECT_EQ(stream.text, whole.text);

  turns.push_back({{"role", "assistant"}, {"content", "b"}});
  turns.push_back({{"role", "user"}, {"content", "c"}});
  const Generation next = post(port(), json{{"messages", turns}, {"max_tokens", 2}}.dump(), path);
  EXPECT_GE(next.usage["prompt_tokens_details"]["cached_tokens"], 200 / 16 * 16);
}

TEST_F(EngineHttp, StopsBeforeAText) {
  const Generation whole = post(port(), R"({"prompt": "hello", "max_tokens": 30})");
  // The stop text lies within one token or spans two.
  const std::string stop = whole.text.substr(50, 7);
  const json asked = {{"prompt", "hello"}, {"max_tokens", 30}, {"stop", stop}};
  for (const Generation& cut : {post(port(), asked.dump()), Stream(port(), asked).finish()}) {
    EXPECT_EQ(cut.finish_reason, "stop");
    EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_LT(cut.tokens.size(), whole.tokens.size());
  }
}

TEST_F(EngineHttp, ReleasesTokensAtTheRateOfTheSlo) {
  Stream stream(port(), {{"prompt", "hello"}, {"max_tokens", 4000}, {"kvd_tbt_s", 3600}});
  ASSERT_TRUE(stream.read_tokens(1));
  EXPECT_TRUE(poll_until([&] { return engine_->health()["tokens"] > 50; }));
  // Without a pace all tokens would come before the first comment of an idle stream.
  ASSERT_TRUE(stream.read_comments(2));
  EXPECT_EQ(stream.so_far().tokens.size(), 1U);
  stream.hang_up();
  EXPECT_TRUE(poll_until([&] { return engine_->health()["open"] == 0; }));
}

TEST_F(EngineHttp, RefusesBadRequestsInOpenAisWords) {
  const std::tuple<std::string, int, std::string> cases[] = {
      {"{", 400, "no JSON"},
      {R"({"max_tokens": 3})", 400, "prompt is missing"},
      {R"({"prompt": ""})", 400, "prompt is empty"},
      {R"({"prompt": [256]})", 400, "vocabulary of 256"},
      {R"({"prompt": "x", "max_tokens": 100000})", 400, "context of 8192"},
      {R"({"prompt": "x", "temperature": 1})", 400, "greedily"},
      {R"({"prompt": "x", "model": "gpt"})", 404, "kvd-random"}};
  for (const auto& [body, status, message] : cases) {
    const Generation answer = post(port(), body);
    EXPECT_EQ(answer.status, status) << body;
    EXPECT_THAT(answer.error.value("message", ""), HasSubstr(message)) << body;
    EXPECT_EQ(answer.error.value("type", ""), "invalid_request_error");
  }
  // A stream that cannot begin is refused by its status, not inside.
  EXPECT_EQ(Stream(port(), {{"prompt", ""}}).finish().status, 400);
  EXPECT_EQ(post(port(), "{}", "/v1/chat").status, 404);
  EXPECT_THAT(get("/v1/completions"), HasSubstr("405"));
  EXPECT_THAT(get("/v1/models", "evil.example"), HasSubstr("403"));
  EXPECT_EQ(ask(port(),
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: "
                "close\r\nContent-Length: 5000000\r\n\r\n" +
                    std::string(5000000, ' '))
                .status,
            413);
  EXPECT_EQ(post(port(), R"({"prompt": "x", "max_tokens": 1})").status, 200);
}

TEST_F(EngineHttp, RefusesAChunkOfNegativeSizeAndServesOn) {
  EXPECT_THAT(
      admin::http_exchange(
          port(), "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n"),
      HasSubstr("411 "));
  EXPECT_EQ(post(port(), R"({"prompt": "x", "max_tokens": 1})").status, 200) << engine_->log();
}

TEST_F(EngineHttp, RefusesWhatAWebPageCanMakeABrowserSend) {
  const auto asked_with = [&](const std::string& headers) {
    const std::string body = R"({"prompt": "x", "max_tokens": 1})";
    return ask(port(), "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + headers +
                           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  EXPECT_EQ(asked_with("Content-Type: text/plain\r\n").status, 415);
  EXPECT_EQ(asked_with("").status, 415);
  const std::string json_type = "Content-Type: application/json\r\n";
  const Generation foreign = asked_with(json_type + "Origin: https://evil.example\r\n");
  EXPECT_EQ(foreign.status, 403);
  EXPECT_THAT(foreign.error.value("message", ""), HasSubstr("Origin"));
  EXPECT_EQ(asked_with(json_type + "Origin: http://localhost:8480\r\n").status, 200);
}

TEST_F(EngineHttp, SilentClientsKeepNobodyOut) {
  constexpr std::size_t kClients = 400;
  std::vector<UniqueFd> silent;
  silent.reserve(kClients);
  while (silent.size() < kClients) silent.push_back(admin::connected(port()));
  EXPECT_EQ(post(port(), R"({"prompt": "x", "max_tokens": 1})").status, 200);
  const auto descriptors =
      std::filesystem::directory_iterator("/proc/" + std::to_string(engine_->pid()) + "/fd");
  EXPECT_LT(std::distance(begin(descriptors), end(descriptors)), 200);
}

TEST_F(EngineHttp, TellsItsModelAndHealth) {
  EXPECT_THAT(get("/v1/models"), HasSubstr("\"id\":\"kvd-random\""));
  EXPECT_EQ(engine_->health()["status"], "ok");
}

TEST_F(EngineHttp, AbortsTheRequestOfAClientThatHangsUp) {
  Stream stream(port(), {{"prompt", "hello"}, {"max_tokens", 8000}});
  ASSERT_TRUE(stream.read_tokens(3));
  stream.hang_up();
  EXPECT_TRUE(poll_until([&] { return requests_of_kvd()["requests_aborted"] == 1; }));
  EXPECT_TRUE(poll_until([&] { return engine_->health()["open"] == 0; }));
  EXPECT_EQ(post(port(), R"({"prompt": "x", "max_tokens": 2})").tokens.size(), 2U);
}

TEST_F(EngineHttp, RefusesMoreThanItsQueueHolds) {
  start({"--max-requests", "1"});
  Stream first(port(), {{"prompt", "hello"}, {"max_tokens", 8000}});
  ASSERT_TRUE(first.read_tokens(1));
  const Generation second = post(port(), R"({"prompt": "x"})");
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.error["code"], "rate_limit_exceeded");
}

TEST_F(EngineHttp, RefusesWhatThePoolCanNeverHold) {
  kvd_.reset();
  kvd_.emplace(folder_, KvdSettings{.hbm = "2MiB"});
  start({});
  const Generation answer = post(port(), R"({"prompt": "x", "max_tokens": 2000})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error["code"], "context_length_exceeded");
}

TEST_F(EngineHttp, SaysThatKvdIsAway) {
  start({"--kvd-away", "0.1"});
  kvd_->signal(SIGKILL);
  ASSERT_EQ(kvd_->wait(), 128 + SIGKILL);
  EXPECT_TRUE(poll_until([&] { return post(port(), R"({"prompt": "x"})").status == 503; }));
  EXPECT_THAT(get("/health"), HasSubstr("503"));
}

TEST_F(EngineHttp, StopsWithOpenRequests) {
  Stream stream(port(), {{"prompt", "hello"}, {"max_tokens", 8000}});
  ASSERT_TRUE(stream.read_tokens(1));
  engine_->signal(SIGTERM);
  const Generation cut = stream.finish();
  EXPECT_FALSE(cut.done);
  EXPECT_EQ(cut.error["code"], "unavailable");
  EXPECT_EQ(engine_->wait(), 0) << engine_->log();
}

TEST(EngineProgram, ExplainsItselfAndItsMistakes) {
  const auto status = [](const std::vector<std::string>& arguments) {
    ChildCommand command{{built_program("kvd-engine")}, {}};
    command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
    ChildProcess process(command);
    const auto code = process.wait();
    return std::pair(code, process.errors());
  };
  EXPECT_EQ(status({"--help"}).first, 0);
  EXPECT_EQ(status({}).first, 2);
  EXPECT_EQ(status({"--random", "layers=0"}).first, 2);
  EXPECT_EQ(status({"--random", "layers=1", "--endpoint", "/nowhere"}).first, 1);
  EXPECT_THAT(status({"--random", "depth=3"}).second, HasSubstr("\"depth\""));
  EXPECT_EQ(status({"--model", "/etc/passwd"}).first, 2);
}

}  // namespace
}  // namespace kvd::test
