/// llama.cpp's own programs, of the release the plugin is pinned to, on kvd's memory: started with
/// nothing but GGML_BACKEND_PATH, and once more with the device named. Their cache is filled by
/// deploy/ci/build-llama-programs.sh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/engines/daemon_process.hpp"
#include "tests/engines/workbench.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModelContext = "32768";  // what kvd-llama-model writes into its models

std::filesystem::path cache_folder() {
  if (const char* named = std::getenv("KVD_LLAMA_PROGRAMS")) return named;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = cache != nullptr ? cache : std::string(home) + "/.cache";
  return base / "kvd" / "llama-programs" / KVD_LLAMA_RELEASE;
}

/// How the programs were linked: "static" or "dynamic", the latter with backends loaded by dlopen.
class LlamaPrograms : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP()
        << "a plugin with a sanitizer loads only into a program with it: run it in release";
#endif
    folder_ = cache_folder() / GetParam();
    if (!std::filesystem::exists(folder_ / "complete")) {
      GTEST_SKIP() << folder_.string()
                   << " is not built: sh deploy/ci/build-llama-programs.sh builds it";
    }
  }

  [[nodiscard]] ChildCommand command(const std::string& program,
                                     const std::vector<std::string>& options) const {
    ChildCommand command = bench_.kvd_engine("unused", daemon_.endpoint());
    command.arguments = {folder_ / "bin" / program, "-m", bench_.file("model.gguf")};
    command.arguments.insert(command.arguments.end(), options.begin(), options.end());
    command.environment.emplace_back("KVD_LLAMA_REQUIRE=1");  // no pass without kvd's memory
    return command;
  }

  /// Whether llama-server and llama-cli read GGML_BACKEND_PATH although no device is named:
  /// llama.cpp itself does so only where no backend is linked in.
  [[nodiscard]] static bool finds_kvd_unaided() { return std::string(GetParam()) == "dynamic"; }

  void expect_runs(const std::string& program, const std::vector<std::string>& options,
                   bool on_kvd) {
    const auto before = daemon_.counter("region_granted_bytes");
    ChildProcess sut(command(program, options));
    EXPECT_EQ(sut.wait(), 0) << sut.errors();
    EXPECT_THAT(sut.errors(), Not(HasSubstr("Flash Attention not supported")));
    if (!on_kvd) return;
    EXPECT_TRUE(poll_until([&] { return daemon_.counter("region_granted_bytes") > before; }))
        << "kvd lent nothing";
  }

  /// Waits until the server answers; its end, or no answer in time, fails the test.
  static void await_ready(ChildProcess& server, std::uint16_t port) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (http_get(port, "/health").status != 200) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << server.errors();
      ASSERT_FALSE(server.ended()) << server.errors();
      std::this_thread::yield();
    }
  }

  void expect_serves(const std::vector<std::string>& options, bool on_kvd) {
    const std::uint16_t port = free_port();
    ChildCommand start = command("llama-server", options);
    start.arguments.insert(start.arguments.end(), {"--port", std::to_string(port)});
    ChildProcess sut(start);
    ASSERT_NO_FATAL_FAILURE(await_ready(sut, port));
    const std::string question = R"({"prompt":"Hello","n_predict":8})";
    const std::string answer =
        admin::http_exchange(port,
                             "POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                             "Content-Type: application/json\r\nContent-Length: " +
                                 std::to_string(question.size()) + "\r\n\r\n" + question);
    EXPECT_THAT(answer, AllOf(HasSubstr(" 200 "), HasSubstr("\"content\""))) << sut.errors();
    EXPECT_THAT(http_get(port, "/props").body, HasSubstr("\"n_ctx\":" + std::string(kModelContext)))
        << "the context was cut";
    const std::uint64_t mapped = mapped_pool_bytes(sut.pid());
    EXPECT_EQ(mapped > 0, on_kvd) << sut.errors();
    EXPECT_TRUE(daemon_.comes_to_serve(sut.pid(), mapped));
    sut.signal(SIGTERM);
    EXPECT_EQ(sut.wait(), 0) << sut.errors();
  }

  Workbench bench_;
  DaemonProcess daemon_{24};
  std::filesystem::path folder_;
};

TEST_P(LlamaPrograms, BenchRuns) {
  const std::vector<std::string> options = {"-p", "8", "-n", "8", "-r", "1", "-t", "1"};
  expect_runs("llama-bench", options, true);
  std::vector<std::string> named = options;
  named.insert(named.end(), {"--device", "KVD0"});
  expect_runs("llama-bench", named, true);
}

TEST_P(LlamaPrograms, ServerServesWithItsDefaultFlags) { expect_serves({}, finds_kvd_unaided()); }

TEST_P(LlamaPrograms, ServerServesWithTheDeviceNamedAndAllLayers) {
  expect_serves({"--device", "KVD0", "-ngl", "99"}, true);
}

TEST_P(LlamaPrograms, CliAnswers) {
  std::vector<std::string> options = {"-p", "Hello", "-n", "8", "--single-turn"};
  expect_runs("llama-cli", options, finds_kvd_unaided());
  options.insert(options.end(), {"--device", "KVD0"});
  expect_runs("llama-cli", options, true);
}

INSTANTIATE_TEST_SUITE_P(Builds, LlamaPrograms, ::testing::Values("static", "dynamic"),
                         [](const auto& build) { return std::string(build.param); });

}  // namespace
}  // namespace kvd::test
