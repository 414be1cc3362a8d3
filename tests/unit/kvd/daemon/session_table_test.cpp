#include "kvd/daemon/sessions/session_table.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

namespace kvd::daemon {
namespace {

constexpr DomainId kA{1}, kB{2};

Peer peer(std::uint32_t engine, DomainId domain, pid_t pid = 7) {
  Peer made;
  made.engine = EngineId(engine);
  made.generation = Generation(100 + engine);
  made.domain = domain;
  made.process.pid = pid;
  return made;
}

Peer rank(std::uint32_t group, std::uint32_t number) {
  Peer made = peer(group + number, kA);
  made.group = EngineId(group);
  made.rank = number;
  return made;
}

std::vector<std::uint32_t> ranks_of(SessionTable& sut, std::uint32_t engine) {
  std::vector<std::uint32_t> ranks;
  sut.each_rank(EngineId(engine), [&](const Peer& peer) { ranks.push_back(peer.rank); });
  return ranks;
}

TEST(SessionTable, AnEndedSessionIsThereAndNotFound) {
  SessionTable sut;
  sut.add(peer(1, kA));
  ASSERT_NE(sut.find(EngineId(1)), nullptr);
  sut.find(EngineId(1))->ended = true;
  EXPECT_EQ(sut.find(EngineId(1)), nullptr);
  EXPECT_NE(sut.any(EngineId(1)), nullptr);
  EXPECT_EQ(sut.of_generation(Generation(101)), nullptr);
  EXPECT_TRUE(sut.has_domain(kA));
  sut.remove(EngineId(1));
  EXPECT_EQ(sut.any(EngineId(1)), nullptr);
  EXPECT_FALSE(sut.has_domain(kA));
}

TEST(SessionTable, OneThatEndedIsConnectedAsLongAsItsSocketIs) {
  SessionTable sut;
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd other(sockets[1]);
  Peer made = peer(1, kA);
  made.connection = transport::AttachConnection(UniqueFd(sockets[0]));
  made.ended = true;
  sut.add(std::move(made));
  EXPECT_NE(sut.connected(EngineId(1)), nullptr);
  sut.any(EngineId(1))->connection = {};
  EXPECT_EQ(sut.connected(EngineId(1)), nullptr);
}

TEST(SessionTable, AGenerationNamesItsSessionUntilItIsForgotten) {
  SessionTable sut;
  sut.add(peer(1, kA));
  sut.add(peer(2, kA));
  EXPECT_EQ(sut.of_generation(Generation(102)), sut.find(EngineId(2)));
  sut.forget_generation(Generation(102));
  EXPECT_EQ(sut.of_generation(Generation(102)), nullptr);
  EXPECT_NE(sut.find(EngineId(2)), nullptr);
}

TEST(SessionTable, RanksAreVisitedInOrderWithoutTheirNeighboursAndTheEnded) {
  SessionTable sut;
  sut.add(peer(1, kA));
  for (const std::uint32_t number : {2u, 0u, 1u, 3u}) sut.add(rank(2, number));
  sut.add(peer(6, kA));
  EXPECT_EQ(ranks_of(sut, 2), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(ranks_of(sut, 1).size(), 1u);
  sut.find(EngineId(3))->ended = true;
  EXPECT_EQ(ranks_of(sut, 2), (std::vector<std::uint32_t>{0, 2, 3}));
}

TEST(SessionTable, AGroupIsThereUntilItsLastRankIs) {
  SessionTable sut;
  sut.add(rank(2, 0));
  sut.add(rank(2, 1));
  sut.add(peer(4, kA));
  sut.remove(EngineId(2));
  EXPECT_TRUE(sut.has_rank_of(EngineId(2)));
  sut.remove(EngineId(3));
  EXPECT_FALSE(sut.has_rank_of(EngineId(2)));
}

TEST(SessionTable, CountsTellDomainsAndProcessesApart) {
  SessionTable sut;
  sut.add(peer(1, kA));
  sut.add(peer(2, kA));
  sut.add(peer(3, kB, 8));
  sut.find(EngineId(2))->ended = true;
  sut.find(EngineId(3))->ended = true;
  EXPECT_EQ(sut.counts().open, 1u);
  EXPECT_EQ(sut.counts().ended, 2u);
  EXPECT_EQ(sut.counts(kB).open, 0u);
  EXPECT_EQ(sut.counts(kB).ended, 1u);
  EXPECT_EQ(sut.ended_of_process(7, 0), 1u);
}

TEST(SessionTable, CountsProcessesThatAreNotSeenByTheirUser) {
  SessionTable sut;
  Peer one = peer(1, kA, 0), other = peer(2, kB, 0);
  one.process.uid = 1, other.process.uid = 2;
  one.ended = other.ended = true;
  sut.add(std::move(one));
  sut.add(std::move(other));
  EXPECT_EQ(sut.ended_of_process(0, 1), 1u);
}

}  // namespace
}  // namespace kvd::daemon
