#include "kvd/tiers/remote/ending.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kvd::remote {
namespace {

using std::chrono::nanoseconds;

TEST(Ending, WaitsForAThreadThatIsBusy) {
  Ending ending;
  std::atomic<bool> has_ended = false;
  std::thread thread([&] {
    while (!ending.asked()) std::this_thread::yield();
    has_ended = true;
    ending.done();
  });
  ending.dials(true);
  ending.dials(false);
  ending.ask();
  ending.wait(nanoseconds(0));
  EXPECT_TRUE(has_ended);
  thread.join();
}

TEST(Ending, DoesNotWaitForTheResolver) {
  Ending ending;
  ending.dials(true);
  ending.ask();
  ending.wait(nanoseconds(0));
  EXPECT_TRUE(ending.asked());
}

}  // namespace
}  // namespace kvd::remote
