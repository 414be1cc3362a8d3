#include "kvd/daemon/turns.hpp"

#include <gtest/gtest.h>

namespace kvd::daemon {
namespace {

constexpr DomainId kA{1}, kB{2}, kC{3};

/// The name is the connection's number.
void put(Turns& sut, DomainId domain, char name) {
  sut.add(domain, transport::PeerId(static_cast<std::uint64_t>(name)));
}

std::string served(Turns& sut) {
  std::string order;
  while (const auto peer = sut.next()) order += static_cast<char>(peer->value);
  return order;
}

TEST(Turns, OneCommandOfADomainIsServedBeforeTheSecondOfAnother) {
  Turns sut;
  for (int i = 0; i < 5; ++i) put(sut, kA, 'a');
  put(sut, kB, 'b');
  put(sut, kC, 'c');
  EXPECT_EQ(served(sut), "abcaaaa");
  EXPECT_TRUE(sut.empty());
}

TEST(Turns, OneThatComesLaterIsNextHoweverManyWait) {
  Turns sut;
  for (int i = 0; i < 31; ++i) put(sut, kB, 'b');
  ASSERT_TRUE(sut.next().has_value());
  put(sut, kA, 'a');
  EXPECT_EQ(served(sut).front(), 'a');
}

TEST(Turns, WithinADomainTheOrderIsThatOfArrival) {
  Turns sut;
  put(sut, kA, 'x');
  put(sut, kA, 'y');
  put(sut, kA, 'z');
  EXPECT_EQ(served(sut), "xyz");
}

}  // namespace
}  // namespace kvd::daemon
