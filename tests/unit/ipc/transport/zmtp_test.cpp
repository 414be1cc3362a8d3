#include "ipc/transport/zmtp.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "ipc/wire/messages.hpp"

namespace kvd::transport {
namespace {

std::vector<std::byte> bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}
std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string greeting(char major = 3, const std::string& mechanism = "NULL") {
  std::string out = std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10) + major + '\1' + mechanism;
  return out + std::string(64 - out.size(), '\0');
}

std::string property(const std::string& name, const std::string& value) {
  return std::string(1, static_cast<char>(name.size())) + name + std::string(3, '\0') +
         static_cast<char>(value.size()) + value;
}

std::string command(const std::string& name, const std::string& rest) {
  const std::string body = std::string(1, static_cast<char>(name.size())) + name + rest;
  return std::string("\4") + static_cast<char>(body.size()) + body;
}

std::string ready(const std::string& type = "DEALER") {
  return command("READY", property("Socket-Type", type) + property("Identity", ""));
}

std::string message(const std::string& body, char flags = 0) {
  return flags + std::string(1, static_cast<char>(body.size())) + body;
}

/// Feeds a stream piece by piece, as a socket would bring it.
struct Fed {
  std::vector<std::string> messages;
  std::vector<std::byte> answer;
  bool broken = false;
};
Fed feed(const std::string& stream, std::size_t step) {
  ZmtpPeer sut;
  Fed fed;
  std::string waiting;
  for (std::size_t at = 0; at < stream.size() && !fed.broken; at += step) {
    waiting += stream.substr(at, step);
    while (!fed.broken) {
      const auto in = bytes(waiting);
      const auto piece = sut.next(in, fed.answer);
      fed.broken = piece.broken;
      if (piece.message) fed.messages.push_back(text(*piece.message));
      if (piece.taken == 0) break;
      waiting.erase(0, piece.taken);
    }
  }
  return fed;
}

TEST(Zmtp, AConversationIsTheSameInPiecesOfAnySize) {
  const std::string large(300, 'x');
  std::string with_length("\2\0\0\0\0\0\0\1\x2c", 9);
  with_length += large;
  const std::string stream = greeting() + ready() + message("one") + with_length +
                             command("PING", std::string("\0\1abc", 5));
  for (const std::size_t step : {1u, 2u, 7u, 63u, 65u, 1000u}) {
    const Fed fed = feed(stream, step);
    EXPECT_FALSE(fed.broken) << step;
    EXPECT_EQ(fed.messages, (std::vector<std::string>{"one", large})) << step;
  }
}

TEST(Zmtp, ItIsARouterAndAnswersPings) {
  const std::string ping = command("PING", std::string("\0\1abc", 5));
  const Fed fed = feed(greeting() + ready() + ping, 1000);
  EXPECT_EQ(text(fed.answer),
            command("READY", property("Socket-Type", "ROUTER")) + command("PONG", "abc"));
}

TEST(Zmtp, WhatItSaysFirstIsWhatItTakesFirst) {
  ZmtpPeer sut;
  std::vector<std::byte> answer;
  EXPECT_EQ(sut.next(ZmtpPeer::greeting(), answer).taken, 64u);
}

TEST(Zmtp, OlderProtocolsAndOtherMechanismsAreRefused) {
  EXPECT_TRUE(feed(std::string("\1\0", 2), 1).broken) << "ZMTP 1";
  EXPECT_TRUE(feed(greeting(1), 1).broken) << "ZMTP 2";
  EXPECT_TRUE(feed(greeting(3, "PLAIN"), 1).broken);
  EXPECT_TRUE(feed(greeting(3, "CURVE"), 1).broken);
}

TEST(Zmtp, OnlyADealerIsLetIn) {
  for (const char* type : {"REQ", "SUB", "ROUTER", ""}) {
    EXPECT_TRUE(feed(greeting() + ready(type), 1000).broken) << type;
  }
  EXPECT_TRUE(feed(greeting() + command("READY", ""), 1000).broken) << "no type";
  EXPECT_TRUE(feed(greeting() + command("ERROR", ""), 1000).broken);
  EXPECT_TRUE(feed(greeting() + message("early"), 1000).broken);
  EXPECT_TRUE(
      feed(greeting() + command("READY", std::string("\x0bSocket-Type\0\0\0\x7f", 16)), 1000)
          .broken)
      << "a property longer than its frame";
}

TEST(Zmtp, TheFirstOfSeveralPartsIsTheLastByteHeard) {
  const Fed fed = feed(greeting() + ready() + "\1", 1);
  EXPECT_TRUE(fed.broken) << "told by its flags, before its length";
}

TEST(Zmtp, ALengthOverTheLimitIsRefusedBeforeAByteOfItCame) {
  const auto head = [](std::uint64_t size, char flags = 2) {
    std::string out(1, flags);
    for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(size >> shift);
    return out;
  };
  const std::string open = greeting() + ready();
  EXPECT_FALSE(feed(open + head(wire::kMaxCommandFrame), 1000).broken);
  EXPECT_TRUE(feed(open + head(wire::kMaxCommandFrame + 1), 1000).broken);
  EXPECT_TRUE(feed(open + head(~std::uint64_t{0}), 1000).broken);
  EXPECT_TRUE(feed(open + head(4096, 6), 1000).broken) << "a command";
}

TEST(Zmtp, HeadsOfMessagesReadBack) {
  for (const std::size_t size : {0u, 1u, 255u, 256u, 65'536u, 262'144u}) {
    std::array<std::byte, ZmtpPeer::kMaxHead> head{};
    const std::size_t used = ZmtpPeer::head_of(size, head);
    const std::string sent = text(std::span(head).first(used)) + std::string(size, 'y');
    EXPECT_EQ(feed(greeting() + ready() + sent, 1 << 20).messages.at(0).size(), size);
  }
}

TEST(Zmtp, RandomBytesBreakItAndNothingElse) {
  const std::uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string good =
      greeting() + ready() + message("one") + command("PING", std::string("\0\0x", 3));
  for (int round = 0; round < 2000; ++round) {
    std::string stream = good + good.substr(64);
    for (int change = 0; change < 3; ++change) {
      stream[random() % stream.size()] = static_cast<char>(random());
    }
    const Fed fed = feed(stream, 1 + random() % 97);
    EXPECT_LE(fed.answer.size(), 256u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvd::transport
