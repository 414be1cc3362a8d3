// As many engines as a daemon takes, all at once: at its start, and after each of its restarts.
// KVD_TEST_RESTARTS in the environment: how many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;

constexpr std::size_t kEngines = 64;
/// One user has half of the seats.
const KvdSettings kTwiceAsMany{.extra = "[engine]\nmax_engines = 128\n"};

class Crowd : public ::testing::Test {
 protected:
  /// Runs body(engine) for all engines at the same time.
  template <class Body>
  static void all_at_once(Body body) {
    std::barrier start(static_cast<std::ptrdiff_t>(kEngines));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kEngines; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        body(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void open_all() {
    all_at_once([&](std::size_t i) {
      kvd_client::Options options;
      options.endpoint = kvd_->endpoint();
      options.engine_name = "engine-" + std::to_string(i);
      options.attach_timeout = kPatience;
      if (i % 2 == 0) options.shape = {4, 0, 0, 1024};
      auto client = Client::open(options);
      if (client.ok()) {
        clients_[i].emplace(std::move(*client));
      } else {
        note(client.code());
      }
    });
  }

  /// Asks until the daemon answers. Failures in between are ignored unless they end the engine.
  void return_all() {
    all_at_once([&](std::size_t i) {
      const bool back = poll_until([&] {
        const ErrorCode code = clients_[i]->ping(std::chrono::seconds(5)).code();
        if (code != ErrorCode::kOk) note(code);
        return code == ErrorCode::kOk;
      });
      if (!back) note(ErrorCode::kInternal);
    });
  }

  void note(ErrorCode code) {
    const std::lock_guard lock(mutex_);
    codes_.insert(code);
  }

  [[nodiscard]] std::size_t attached() const {
    return nlohmann::json::parse(kvd_->get("/v1/status").body)["engines"];
  }

  const RuntimeFolder folder_;
  std::optional<KvdProcess> kvd_;
  std::vector<std::optional<Client>> clients_{kEngines};
  std::mutex mutex_;
  std::set<ErrorCode> codes_;  ///< of calls that failed
};

TEST_F(Crowd, SurvivesTheRestartsOfItsDaemon) {
  const char* set = std::getenv("KVD_TEST_RESTARTS");
  const int restarts = set != nullptr ? std::atoi(set) : 3;
  kvd_.emplace(folder_, kTwiceAsMany);
  ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
  open_all();
  EXPECT_THAT(codes_, testing::IsEmpty()) << kvd_->log();
  for (int i = 0; i < restarts && !HasFailure(); ++i) {
    kvd_->signal(i % 2 == 0 ? SIGKILL : SIGTERM);
    ASSERT_TRUE(kvd_->wait().has_value());
    kvd_.emplace(folder_, kTwiceAsMany);
    return_all();
    EXPECT_EQ(attached(), kEngines) << "restart " << i << "\n" << kvd_->log();
    codes_.erase(ErrorCode::kUnavailable);
    codes_.erase(ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(codes_, testing::IsEmpty()) << "restart " << i << "\n" << kvd_->log();
  }
}

}  // namespace
}  // namespace kvd::test
