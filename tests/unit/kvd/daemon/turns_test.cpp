#include "kvd/daemon/workers/turns.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <chrono>

namespace kvd::daemon {
namespace {

constexpr DomainId kA{1}, kB{2}, kC{3};

/// The name is the connection's number.
void put(Turns& sut, DomainId domain, char name) {
  sut.add(domain, transport::PeerId(static_cast<std::uint64_t>(name)));
}

/// A command named in capitals takes 10 ms, another one 1 ms.
std::string served(Turns& sut, std::size_t most = SIZE_MAX) {
  std::string order;
  while (order.size() < most) {
    const auto peer = sut.next();
    if (!peer) break;
    order += static_cast<char>(peer->value);
    sut.took(std::chrono::milliseconds(std::isupper(order.back()) ? 10 : 1));
  }
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

TEST(Turns, WhoseCommandsTakeLongWaitsForWhoseDoNot) {
  Turns sut;
  for (int i = 0; i < 3; ++i) put(sut, kA, 'A');
  for (int i = 0; i < 3; ++i) put(sut, kC, 'C');
  for (int i = 0; i < 12; ++i) put(sut, kB, 'b');
  EXPECT_EQ(served(sut), "AbCbbbbbbbbbCAbbCA");
}

TEST(Turns, WhoWasSilentIsNextButHasSavedUpNothing) {
  Turns sut;
  for (int i = 0; i < 300; ++i) put(sut, kA, 'a');
  EXPECT_EQ(served(sut, 200), std::string(200, 'a'));
  for (int i = 0; i < 4; ++i) put(sut, kB, 'b');
  EXPECT_EQ(served(sut, 6), "bababa");
}

TEST(Turns, CommandsThatWaitElsewhereCountToo) {
  Turns sut;
  sut.took(kA, std::chrono::milliseconds(5));
  EXPECT_GT(sut.taken(kA), sut.taken(kB));
  put(sut, kA, 'a');
  put(sut, kB, 'b');
  put(sut, kB, 'b');
  EXPECT_EQ(served(sut), "bba");
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
