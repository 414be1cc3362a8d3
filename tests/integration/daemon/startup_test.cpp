// What kvd refuses to start with: a clear sentence, an exit status, no trace left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/daemon_process.hpp"

namespace kvd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string written(const RuntimeFolder& folder, const std::string& toml) {
  std::ofstream(folder.file("test.toml")) << toml;
  return folder.file("test.toml");
}

TEST(Startup, CheckConfigNamesEveryFaultAtOnce) {
  const RuntimeFolder folder;
  const auto run = run_kvd({"--check-config", "--config",
                            written(folder,
                                    "[pool]\nhbn = \"1GiB\"\nslab = \"3MiB\"\n"
                                    "[rotation]\npolicy = \"nonesuch\"\n[admin]\nport = 0\n"
                                    "[engine]\nstep_timeout = \"soon\"\n")});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("pool.hbn"), HasSubstr("pool.slab"), HasSubstr("nonesuch"),
                    HasSubstr("admin.port"), HasSubstr("engine.step_timeout")));
}

TEST(Startup, CheckConfigAcceptsWhatTheTestsRunWith) {
  const RuntimeFolder folder;
  const auto run =
      run_kvd({"--check-config", "--config", written(folder, toml_of(folder, {}, 8470, 9470))});
  EXPECT_EQ(run.status, 0) << run.output;
}

TEST(Startup, AnUnknownKeyIsRefused) {
  const auto run = run_kvd({"--pool.hbn", "1GiB"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("pool.hbn"));
}

TEST(Startup, ATakenPortIsNamed) {
  const RuntimeFolder folder, other_folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto admin_taken =
      run_kvd({"--config", written(other_folder, toml_of(other_folder, {}, kvd.admin_port(), 1))});
  EXPECT_EQ(admin_taken.status, 1);
  const auto metrics_taken = run_kvd(
      {"--config", written(other_folder, toml_of(other_folder, {}, 1, kvd.metrics_port()))});
  EXPECT_EQ(metrics_taken.status, 1);
  EXPECT_THAT(metrics_taken.output, HasSubstr(std::to_string(kvd.metrics_port())));
  EXPECT_FALSE(std::filesystem::exists(other_folder.file("attach.sock")));
}

TEST(Startup, APoolBeyondMemoryIsRefusedWithTheNumberAndTheRemedy) {
  const RuntimeFolder folder;
  const auto run = run_kvd(
      {"--config", written(folder, toml_of(folder, {.hbm = "8TiB", .dram = "1GiB", .slab = "1GiB"},
                                           8470, 9470))});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr("8 TiB"), HasSubstr("lower pool.hbm")));
}

TEST(Startup, AMissingRuntimeFolderIsNamed) {
  const RuntimeFolder folder;
  const auto run = run_kvd({"--paths.runtime_dir", folder.file("no/such/folder"), "--pool.hbm",
                            "16MiB", "--pool.dram", "16MiB", "--pool.reserve", "0"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.output, AllOf(HasSubstr("no/such/folder"), HasSubstr("paths.runtime_dir")));
}

TEST(Startup, ALivingDaemonsSocketIsNotTaken) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const auto second = run_kvd({"--config", written(folder, toml_of(folder, {}, 1, 2))});
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.output, HasSubstr("attach.sock"));
  EXPECT_EQ(kvd.get("/readyz").status, 200);
}

}  // namespace
}  // namespace kvd::test
