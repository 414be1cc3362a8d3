#include "kvd/daemon/turns.hpp"

#include <gtest/gtest.h>

namespace kvd::daemon {
namespace {

constexpr DomainId kA{1}, kB{2}, kC{3};

/// A frame of one byte, so that the order can be seen.
void put(Turns& sut, DomainId domain, std::uint32_t session, char name) {
  const std::byte byte{static_cast<unsigned char>(name)};
  ASSERT_TRUE(sut.add(domain, EngineId(session),
                      {transport::PeerId(session), std::span(&byte, 1), 1000, 7}));
}

std::string served(Turns& sut) {
  std::string order;
  while (const auto held = sut.next()) order += static_cast<char>(held->frame.at(0));
  return order;
}

TEST(Turns, OneCommandOfADomainIsServedBeforeTheSecondOfAnother) {
  Turns sut;
  for (std::uint32_t session = 1; session <= 5; ++session) put(sut, kA, session, 'a');
  put(sut, kB, 6, 'b');
  put(sut, kC, 7, 'c');
  EXPECT_EQ(served(sut), "abcaaaa");
  EXPECT_TRUE(sut.empty());
}

TEST(Turns, OneThatComesLaterIsNextHoweverManyWait) {
  Turns sut;
  for (std::uint32_t session = 1; session <= 31; ++session) put(sut, kB, session, 'b');
  ASSERT_TRUE(sut.next().has_value());
  put(sut, kA, 40, 'a');
  EXPECT_EQ(sut.next()->peer, transport::PeerId(40));
}

TEST(Turns, WithinADomainTheOrderIsThatOfArrival) {
  Turns sut;
  put(sut, kA, 2, 'x');
  put(sut, kA, 1, 'y');
  put(sut, kA, 2, 'z');
  EXPECT_EQ(served(sut), "xyz");
}

TEST(Turns, ASessionThatFloodsIsFoundOutAndTheOthersAreNot) {
  Turns sut;
  for (std::size_t i = 0; i < Turns::kMostOfASession; ++i) put(sut, kA, 1, 'a');
  EXPECT_FALSE(sut.add(kA, EngineId(1), {}));
  put(sut, kA, 2, 'b');
  ASSERT_TRUE(sut.next().has_value());
  put(sut, kA, 1, 'c');
}

}  // namespace
}  // namespace kvd::daemon
