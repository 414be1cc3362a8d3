// More engines of a user at the attach socket than may be silent there at once (64).
#include <gtest/gtest.h>

#include <csignal>

#include "ipc/transport/attach.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

TEST(AttachCrowd, WhoSpokeWhileKvdStoodStillIsAnsweredHoweverMany) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.extra = "[engine]\nmax_engines = 4\n"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  constexpr std::size_t kEngines = 200;
  kvd.signal(SIGSTOP);
  std::vector<transport::AttachConnection> engines;
  engines.reserve(kEngines);
  wire::Hello hello;
  const auto frame = wire::seal(hello);
  while (engines.size() < kEngines) {
    engines.push_back(transport::connect_attach(kvd.endpoint(), kPatience).value());
    ASSERT_TRUE(engines.back().send(frame).ok());
  }
  kvd.signal(SIGCONT);
  std::size_t answered = 0;
  for (auto& engine : engines) {
    if (engine.receive(kPatience).ok()) ++answered;
  }
  EXPECT_EQ(answered, kEngines) << "welcomed, or told that there is no seat";
}

}  // namespace
}  // namespace kvd::test
