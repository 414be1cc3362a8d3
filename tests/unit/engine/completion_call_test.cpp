#include "client_lib/engine/http/completion_call.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace kvd::engine {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const ModelCard kBytesModel{"m", false};
const ModelCard kVocabularyModel{"m", true};

CompletionCall call(const std::string& body, const ModelCard& model = kBytesModel,
                    Form form = Form::kText) {
  const auto parsed = parse_completion_call(body, model, form);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<CompletionCall>(parsed);
}

ApiError refusal(const std::string& body, const ModelCard& model = kBytesModel,
                 Form form = Form::kText) {
  const auto parsed = parse_completion_call(body, model, form);
  const auto* error = std::get_if<ApiError>(&parsed);
  return error == nullptr ? ApiError{.status = 200, .message = "taken"} : *error;
}

TEST(CompletionCall, ReadsPromptsInEveryForm) {
  EXPECT_THAT(call(R"({"prompt": "ab"})").completion.prompt, ElementsAre('a', 'b'));
  EXPECT_THAT(call(R"({"prompt": ["ab"]})").completion.prompt, ElementsAre('a', 'b'));
  EXPECT_THAT(call(R"({"prompt": [7, 255]})").completion.prompt, ElementsAre(7, 255));
  EXPECT_THAT(call(R"({"prompt": [[7, 300]]})").completion.prompt, ElementsAre(7, 300));
  EXPECT_THAT(call(R"({"prompt": "\u00e4"})").completion.prompt, ElementsAre(0xC3, 0xA4));
  EXPECT_THAT(call(R"({"prompt": [1]})", kVocabularyModel).completion.prompt, ElementsAre(1));
}

TEST(CompletionCall, ReadsEveryField) {
  const auto out = call(R"({"model": "m", "prompt": "x", "max_tokens": 9, "stop": ["a", "bc"],
    "stop_token_ids": [3], "ignore_eos": true, "stream": true,
    "stream_options": {"include_usage": true}, "kvd_ttft_s": 1.5, "kvd_tbt_s": 0.05,
    "kvd_gap_s": 2, "kvd_digest": true, "n": 1, "temperature": 0, "top_p": 1, "logprobs": null, "echo": false})");
  EXPECT_EQ(out.completion.max_tokens, 9U);
  EXPECT_THAT(out.completion.stops, ElementsAre("a", "bc"));
  EXPECT_THAT(out.completion.stop_tokens, ElementsAre(3));
  EXPECT_TRUE(out.completion.ignore_end && out.completion.wants_digests);
  EXPECT_TRUE(out.stream && out.usage_in_stream);
  EXPECT_EQ(out.completion.ttft_slo, 1500ms);
  EXPECT_EQ(out.completion.tbt_slo, 50ms);
  EXPECT_EQ(out.completion.gap_slo, 2s);
}

std::string text_of(const CompletionCall& call) {
  return {call.completion.prompt.begin(), call.completion.prompt.end()};
}

TEST(ChatCall, MessagesBecomeLinesThatALongerConversationBeginsWith) {
  const auto chat = [](const std::string& body) { return call(body, kBytesModel, Form::kChat); };
  const std::string first = text_of(chat(R"({"messages": [{"role": "user", "content": "hi"}]})"));
  EXPECT_EQ(first, "user: hi\nassistant: ");
  const std::string next = text_of(chat(R"({"messages": [{"role": "user", "content": "hi"},
    {"role": "assistant", "content": "ho"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})"));
  EXPECT_EQ(next, first + "ho\nuser: ab\nassistant: ");
}

TEST(ChatCall, ReadsItsOwnFields) {
  const std::string messages = R"("messages": [{"role": "user", "content": "x"}])";
  const auto most = [&](const std::string& more) {
    return call("{" + messages + more + "}", kBytesModel, Form::kChat).completion.max_tokens;
  };
  EXPECT_EQ(most(""), 256U);
  EXPECT_EQ(most(R"(, "max_tokens": 5)"), 5U);
  EXPECT_EQ(most(R"(, "max_tokens": 5, "max_completion_tokens": 7, "logprobs": false,
                     "response_format": {"type": "text"})"),
            7U);
}

TEST(ChatCall, RefusesWhatItCannotDo) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"prompt": "x"})", "messages is missing"},
      {R"({"messages": []})", "not empty"},
      {R"({"messages": ["hi"]})", "role"},
      {R"({"messages": [{"role": "user"}]})", "content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "\"text\""},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{}]})", "tools"},
      {R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json"}})",
       "response_format"},
      {R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true})", "logprobs"}};
  for (const auto& [body, message] : cases) {
    const ApiError error = refusal(body, kBytesModel, Form::kChat);
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_THAT(error.message, HasSubstr(message)) << body;
  }
  const std::string good = R"({"messages": [{"role": "user", "content": "x"}]})";
  EXPECT_THAT(refusal(good, kVocabularyModel, Form::kChat).message, HasSubstr("/v1/completions"));
}

TEST(ApiError, IsJsonWhateverTheFieldsWereCalled) {
  const std::string text = ApiError{.message = "kvd_\xff is unknown", .param = "kvd_\xff"}.json();
  EXPECT_THAT(text, HasSubstr("kvd_\xEF\xBF\xBD is unknown"));
  EXPECT_THAT(text, Not(HasSubstr("\xff")));
}

TEST(CompletionCall, HasDefaults) {
  const auto out = call(R"({"prompt": "x", "stop": null, "user": "somebody"})");
  EXPECT_EQ(out.completion.max_tokens, 16U);
  EXPECT_THAT(out.completion.stops, IsEmpty());
  EXPECT_FALSE(out.stream || out.completion.wants_digests || out.completion.ignore_end);
  EXPECT_EQ(out.completion.tbt_slo, 0ms);
}

TEST(CompletionCall, RefusesWithTheFieldsName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": ["a", "b"]})", "prompt"},
      {R"({"prompt": [1, "a"]})", "prompt"},
      {R"({"prompt": [-1]})", "prompt"},
      {R"({"prompt": [4294967296]})", "prompt"},
      {R"({"prompt": [1.5]})", "prompt"},
      {R"({"prompt": {}})", "prompt"},
      {R"({"prompt": "x", "max_tokens": -1})", "max_tokens"},
      {R"({"prompt": "x", "max_tokens": "9"})", "max_tokens"},
      {R"({"prompt": "x", "max_tokens": 1e30})", "max_tokens"},
      {R"({"prompt": "x", "stop": ""})", "stop"},
      {R"({"prompt": "x", "stop": ["a","b","c","d","e"]})", "stop"},
      {R"({"prompt": "x", "stop": 5})", "stop"},
      {R"({"prompt": "x", "stop_token_ids": 5})", "stop_token_ids"},
      {R"({"prompt": "x", "stream": 1})", "stream"},
      {R"({"prompt": "x", "stream_options": 1})", "stream_options"},
      {R"({"prompt": "x", "n": 2})", "n"},
      {R"({"prompt": "x", "temperature": 0.7})", "temperature"},
      {R"({"prompt": "x", "logprobs": 3})", "logprobs"},
      {R"({"prompt": "x", "echo": true})", "echo"},
      {R"({"prompt": "x", "suffix": "y"})", "suffix"},
      {R"({"prompt": "x", "kvd_tbt_s": -1})", "kvd_tbt_s"},
      {R"({"prompt": "x", "kvd_ttft_s": 3601})", "kvd_ttft_s"},
      {R"({"prompt": "x", "kvd_gap_s": "1"})", "kvd_gap_s"},
      {R"({"prompt": "x", "kvd_tbt": 1})", "kvd_tbt"}};
  for (const auto& [body, field] : cases) {
    const ApiError error = refusal(body);
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_EQ(error.param, field) << body;
    EXPECT_THAT(error.json(), HasSubstr("\"type\":\"invalid_request_error\""));
  }
  EXPECT_EQ(refusal(R"({"prompt": "x", "model": "other"})").status, 404);
  EXPECT_EQ(refusal(R"({"prompt": "x"})", kVocabularyModel).param, "prompt");
  EXPECT_EQ(refusal(R"({"prompt": [1], "stop": "x"})", kVocabularyModel).param, "stop");
}

TEST(CompletionCall, SurvivesWhatIsNoJson) {
  const std::string deep(100000, '[');
  for (const std::string& body :
       {std::string(), std::string("["), std::string("\xFF\x00", 2), deep, std::string("[]")}) {
    EXPECT_EQ(refusal(body).status, 400);
  }
  const std::uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  const std::string good = R"({"prompt": [1, 2], "stop": ["a"], "kvd_tbt_s": 0.5, "n": 1})";
  for (int round = 0; round < 5000; ++round) {
    std::string body = good;
    body[random() % body.size()] = static_cast<char>(random());
    (void)parse_completion_call(body, kBytesModel, Form::kText);
    (void)parse_completion_call(body, kBytesModel, Form::kChat);
  }
  SUCCEED() << "seed " << seed;
}

}  // namespace
}  // namespace kvd::engine
