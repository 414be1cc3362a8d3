/// The plugin without a daemon: what an engine sees when kvd is away, or when the versions differ.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/engines/workbench.hpp"

namespace kvd::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kNowhere = "/nonexistent/attach.sock";

class Plugin : public ::testing::Test {
 protected:
  /// Runs an engine that must not depend on kvd and holds its result against a plain run.
  void expect_runs_plainly(const ChildCommand& command, const std::string& message) {
    ChildProcess sut(command);
    const auto devices = sut.wait_for_line("devices");
    ASSERT_TRUE(devices.has_value());
    EXPECT_THAT(*devices, Not(HasSubstr("KVD0")));
    EXPECT_EQ(sut.wait(), 0);
    EXPECT_THAT(sut.errors(), HasSubstr(message));
    ASSERT_EQ(run_to_end(bench_.plain_engine("plain")), 0);
    EXPECT_EQ(bench_.compare("plain", "sut"), 0);
  }

  Workbench bench_;
};

TEST_F(Plugin, LeavesTheEngineItsOwnMemoryWithoutADaemon) {
  expect_runs_plainly(bench_.kvd_engine("sut", kNowhere), "kvd: cannot attach to the daemon");
}

TEST_F(Plugin, FailsTheContextWithoutADaemonWhereMemoryIsRequired) {
  ChildCommand command = bench_.kvd_engine("sut", kNowhere);
  command.environment.emplace_back("KVD_LLAMA_REQUIRE=yes");
  ChildProcess sut(command);
  EXPECT_EQ(sut.wait(), 1);
  EXPECT_THAT(sut.errors(), HasSubstr("failed to initialize KVD0 backend"));
}

TEST_F(Plugin, LeavesTheEngineItsOwnMemoryWhereNoneIsRequired) {
  ChildCommand command = bench_.kvd_engine("sut", kNowhere);
  command.environment.emplace_back("KVD_LLAMA_REQUIRE=No");
  expect_runs_plainly(command, "kvd: cannot attach to the daemon");
}

TEST_F(Plugin, OfAnotherApiVersionIsRefusedWithAMessage) {
  ChildCommand command = bench_.kvd_engine("sut", kNowhere);
  command.environment.push_back("GGML_BACKEND_PATH=" + std::string(KVD_OTHER_PLUGIN_FILE));
  expect_runs_plainly(command, "incompatible API version (backend: 4, current: 2)");
}

TEST_F(Plugin, OfAnotherApiVersionOpensNoSession) {
  ChildCommand command = bench_.kvd_engine("sut", kNowhere);
  command.environment.push_back("GGML_BACKEND_PATH=" + std::string(KVD_OTHER_PLUGIN_FILE));
  ChildProcess sut(command);
  EXPECT_EQ(sut.wait(), 0);
  EXPECT_THAT(sut.errors(), Not(HasSubstr("cannot attach")));
}

/// The engine's own libggml-base.so, of a version whose structs are not the ones the plugin knows.
class OtherGgml : public ::testing::Test {
 protected:
  void* load_plugin() { return load_(KVD_PLUGIN_FILE); }

  void* library_ = dlopen(KVD_FAKE_GGML_FILE, RTLD_NOW | RTLD_LOCAL);
  void* (*load_)(const char*) = reinterpret_cast<void* (*)(const char*)>(dlsym(library_,
                                                                               "fake_ggml_load"));
};

TEST_F(OtherGgml, IsRefusedWithAMessageAndLeftAlone) {
  unsetenv("KVD_LLAMA_REQUIRE");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(load_plugin(), nullptr);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("kvd: this engine has ggml 0.9.7, and libggml-kvd.so is for 0.18.0 to 0.27.0"));
}

TEST_F(OtherGgml, EndsWhereMemoryIsRequired) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("KVD_LLAMA_REQUIRE", "1", 1);
        load_plugin();
      },
      ::testing::ExitedWithCode(EXIT_FAILURE), "KVD_LLAMA_REQUIRE=1: ending");
}

}  // namespace
}  // namespace kvd::test
