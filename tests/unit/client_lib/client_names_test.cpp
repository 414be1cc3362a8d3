// What an engine tells of its requests' tokens, and what reaches the daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ipc/digest/block_chain.hpp"
#include "kvd.h"
#include "kvd_client/client.hpp"
#include "tests/unit/client_lib/mini_daemon.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;
using std::chrono::seconds;
using testing::IsEmpty;
using testing::SizeIs;

constexpr seconds kLong{30};

std::vector<std::uint32_t> tokens_from(std::uint32_t first, std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class ClientNames : public testing::Test {
 protected:
  Client open(const std::string& model = "model-a") {
    kvd_client::Options options;
    options.endpoint = folder_.path("attach.sock");
    options.shape = {4, 0, 0, 2048};
    options.model = model;
    return std::move(Client::open(options)).value();
  }
  static kvd_client::Status submit(Client& client, std::uint64_t id,
                                   const std::vector<std::uint32_t>& tokens,
                                   const std::string& salt = "") {
    kvd_client::Request request{.id = id, .prompt_tokens = tokens.size(), .max_new_tokens = 99};
    request.content.tokens = tokens;
    request.content.salt = salt;
    return client.submit(request, kLong);
  }
  /// These are the digests that vLLM computes, with 16 tokens a block.
  static std::vector<Digest> digests_of(const std::vector<std::uint32_t>& tokens) {
    digest::Extras extras;
    extras.prompt = Tokens(static_cast<std::int64_t>(tokens.size()));
    std::vector<Digest> chain;
    EXPECT_TRUE(digest::BlockChain().extend(tokens, Tokens(16), extras, chain).ok());
    return chain;
  }

  TemporaryFolder folder_;
  MiniDaemon daemon_{folder_, {}};
};

TEST_F(ClientNames, TellsTheFullBlocksOfAPrompt) {
  Client client = open();
  const auto tokens = tokens_from(7, 40);
  ASSERT_TRUE(submit(client, 42, tokens).ok());
  const auto names = daemon_.seen().names;
  ASSERT_THAT(names, SizeIs(2));
  for (std::uint32_t block = 0; block < 2; ++block) {
    EXPECT_EQ(names[block].request, 42u);
    EXPECT_EQ(names[block].block, block);
    EXPECT_EQ(names[block].digest, digests_of(tokens)[block].bytes);
  }
}

TEST_F(ClientNames, TellsBlocksThatAnAnswerFills) {
  Client client = open();
  auto tokens = tokens_from(7, 40);
  ASSERT_TRUE(submit(client, 42, tokens).ok());
  const auto answer = tokens_from(900, 10);
  EXPECT_TRUE(client.append_tokens(42, std::span(answer).first(4), kLong).ok());
  EXPECT_THAT(daemon_.seen().names, SizeIs(2)) << "no block is full";
  EXPECT_TRUE(client.append_tokens(42, std::span(answer).subspan(4), kLong).ok());
  const auto names = daemon_.seen().names;
  ASSERT_THAT(names, SizeIs(3));
  EXPECT_EQ(names[2].block, 2u);
  EXPECT_EQ(client.append_tokens(43, answer, kLong).code(), ErrorCode::kNotFound);
}

TEST_F(ClientNames, OtherModelsAndSaltsHaveOtherNames) {
  Client client = open();
  Client other = open("model-b");
  const auto tokens = tokens_from(7, 16);
  ASSERT_TRUE(submit(client, 1, tokens).ok());
  ASSERT_TRUE(submit(client, 2, tokens, "alice").ok());
  ASSERT_TRUE(submit(other, 3, tokens).ok());
  const auto seen = daemon_.seen();
  ASSERT_THAT(seen.names, SizeIs(3));
  EXPECT_NE(seen.names[0].digest, seen.names[1].digest);
  EXPECT_EQ(seen.names[0].digest, seen.names[2].digest);
  EXPECT_EQ(seen.fingerprints[0], seen.fingerprints[1]);
  EXPECT_NE(seen.fingerprints[0], seen.fingerprints[2]);
}

TEST_F(ClientNames, NothingIsToldWithoutAModel) {
  Client client = open("");
  ASSERT_TRUE(submit(client, 1, tokens_from(7, 40)).ok());
  EXPECT_THAT(daemon_.seen().names, IsEmpty());
  EXPECT_EQ(client.name_blocks(1, 0, std::vector<kvd_client::Digest>(1), kLong).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(ClientNames, TokensOfPartOfAPromptAreRefused) {
  Client client = open();
  const auto tokens = tokens_from(7, 40);
  kvd_client::Request request{.id = 1, .prompt_tokens = 41, .max_new_tokens = 1};
  request.content.tokens = tokens;
  EXPECT_EQ(client.submit(request, kLong).code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(daemon_.seen().submitted, IsEmpty());
}

/// More than a command carries.
TEST_F(ClientNames, ALongPromptTakesSeveralCommands) {
  Client client = open();
  ASSERT_TRUE(submit(client, 1, tokens_from(0, std::size_t{16} * 9000)).ok());
  const auto seen = daemon_.seen();
  EXPECT_THAT(seen.names, SizeIs(9000));
  EXPECT_THAT(seen.fingerprints, SizeIs(3));
}

TEST_F(ClientNames, TheCAbiTellsTheSame) {
  const std::string endpoint = folder_.path("attach.sock");
  kvd_open_options options{};
  options.struct_size = sizeof options;
  options.endpoint = endpoint.c_str();
  options.layers = 4;
  options.bytes_per_token_per_layer = 2048;
  options.model = "model-a";
  kvd_handle* handle = nullptr;
  ASSERT_EQ(kvd_open(&options, &handle), KVD_OK) << kvd_last_error();
  const auto tokens = tokens_from(7, 16);
  kvd_request request{sizeof request, 5,       tokens.size(), 99, 0, 0,
                      tokens.data(),  nullptr, nullptr,       0};
  EXPECT_EQ(kvd_submit(handle, &request, 1'000'000'000), KVD_OK) << kvd_last_error();
  const auto answer = tokens_from(900, 16);
  EXPECT_EQ(kvd_append_tokens(handle, 5, answer.data(), answer.size(), 1'000'000'000), KVD_OK);
  EXPECT_EQ(kvd_append_tokens(handle, 5, nullptr, 1, 1'000'000'000), KVD_INVALID_ARGUMENT);
  const std::vector<std::uint8_t> digest(32, 9);
  EXPECT_EQ(kvd_name_blocks(handle, 5, 2, digest.data(), 1, 1'000'000'000), KVD_OK);
  kvd_close(handle);
  const auto names = daemon_.seen().names;
  ASSERT_THAT(names, SizeIs(3));
  EXPECT_EQ(names[0].digest, digests_of(tokens)[0].bytes);
  EXPECT_EQ(names[2].digest[0], 9);
}

}  // namespace
}  // namespace kvd::test
