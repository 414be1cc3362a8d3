#include "kvd/ctl/settings_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/runtime_folder.hpp"

namespace kvd::ctl {
namespace {

using testing::HasSubstr;

constexpr std::string_view kValues = R"({"rotation.alpha": "2", "slo.batch.tbt": "1s",
  "slo.a b.tbt": "2s", "domain.lab.hbm_maximum": "64MiB", "pool.hbm": "1GiB"})";

std::string saved(std::string_view file, std::string_view live) {
  const auto text =
      settings_saved(file, kValues, R"({"origins": {}, "live": )" + std::string(live) + "}");
  EXPECT_TRUE(text.ok()) << text.error().to_string();
  return text.ok() ? *text : "";
}

TEST(SettingsFile, AKeyTakesThePlaceOfItsLineAndTheRestStays) {
  constexpr std::string_view kFile =
      "# mine\n[pool]\nhbm = \"1GiB\"\n\n[ rotation ]\nalpha = 1 # low\nbeta = 3\n";
  EXPECT_EQ(saved(kFile, R"({"rotation.alpha": "1"})"),
            "# mine\n[pool]\nhbm = \"1GiB\"\n\n[ rotation ]\nalpha = \"2\"\nbeta = 3\n");
  EXPECT_EQ(saved(kFile, "{}"), kFile);
}

TEST(SettingsFile, AKeyThatTheFileLacksJoinsItsTable) {
  EXPECT_EQ(saved("[rotation]\nbeta = 3\n[pool]\n", R"({"rotation.alpha": "1"})"),
            "[rotation]\nalpha = \"2\"\nbeta = 3\n[pool]\n");
  EXPECT_EQ(saved("", R"({"rotation.alpha": "1", "slo.a b.tbt": null})"),
            "[rotation]\nalpha = \"2\"\n\n[slo.\"a b\"]\ntbt = \"2s\"\n");
}

TEST(SettingsFile, ADomainIsTheOneOfItsName) {
  EXPECT_EQ(saved("[[domain]]\nname = \"web\"\nhbm_maximum = \"1MiB\"\n[[domain]]\nname = 'lab'\n"
                  "hbm_maximum = \"2MiB\"\n",
                  R"({"domain.lab.hbm_maximum": "2MiB"})"),
            "[[domain]]\nname = \"web\"\nhbm_maximum = \"1MiB\"\n[[domain]]\nname = 'lab'\n"
            "hbm_maximum = \"64MiB\"\n");
  EXPECT_EQ(saved("", R"({"domain.lab.hbm_maximum": "2MiB"})"),
            "[[domain]]\nname = \"lab\"\nhbm_maximum = \"64MiB\"\n");
}

TEST(SettingsFile, AClassThatWasRemovedGoesWithItsTable) {
  EXPECT_EQ(saved("[slo.gone]\nttft = \"1s\"\ntbt = \"1s\"\n[slo.batch]\ntbt = \"1s\"\n",
                  R"({"slo.gone.ttft": "1s", "slo.gone.tbt": "1s"})"),
            "[slo.batch]\ntbt = \"1s\"\n");
}

TEST(SettingsFile, AFormThatWouldBeSetTwiceIsRefused) {
  for (const char* file : {"rotation.alpha = 1\n", "rotation = { alpha = 1 }\n",
                           "slo.batch.tbt = '2s'\n[pool]\n", "[slo]\nbatch.tbt = '2s'\n"}) {
    const auto text = settings_saved(file, kValues,
                                     R"({"live": {"rotation.alpha": "1", "slo.batch.tbt": "2s"}})");
    ASSERT_FALSE(text.ok()) << file << *text;
    EXPECT_EQ(text.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(text.error().message, HasSubstr("kvdctl config --print"));
  }
}

TEST(SettingsFile, ALinkToItStaysOne) {
  const test::RuntimeFolder folder;
  std::ofstream(folder.file("real.toml")) << "old";
  std::filesystem::create_symlink("real.toml", folder.file("kvd.toml"));
  const auto file = linked_file(folder.file("kvd.toml"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(replace_file(*file, "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("kvd.toml")));
  std::string text;
  std::ifstream(folder.file("real.toml")) >> text;
  EXPECT_EQ(text, "new");
}

TEST(SettingsFile, ALinkToNowhereIsRefused) {
  const test::RuntimeFolder folder;
  const std::string link = folder.file("kvd.toml");
  std::filesystem::create_symlink("real.toml", link);
  EXPECT_EQ(linked_file(link).error().code, ErrorCode::kInvalidArgument);
  std::ofstream(folder.file("real.toml")) << "old";
  EXPECT_TRUE(linked_file(link).ok());
}

TEST(SettingsFile, ALinkOfAnotherUserIsRefused) {
  const test::RuntimeFolder folder;
  const std::string link = folder.file("kvd.toml");
  std::ofstream(folder.file("real.toml")) << "old";
  std::filesystem::create_symlink("real.toml", link);
  if (::geteuid() != 0) GTEST_SKIP() << "root alone makes links of others";
  ASSERT_EQ(::lchown(link.c_str(), 65534, 65534), 0);
  EXPECT_EQ(linked_file(link).error().code, ErrorCode::kPermissionDenied);
}

TEST(SettingsFile, OneThatCannotBeWrittenIsNoMissingDaemon) {
  const auto sut = replace_file("/nowhere/kvd.toml", "new");
  EXPECT_EQ(sut.error().code, ErrorCode::kPermissionDenied) << "Unavailable stands for no daemon";
}

// The kernel takes the bytes for which there is room, without an error.
TEST(SettingsFile, OneThatCanBeWrittenInPartSaysWhy) {
  const test::RuntimeFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  errno = EISDIR;  // an earlier call left it
  const auto sut = replace_file(folder.file("kvd.toml"), "more than four");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(sut.error().message, HasSubstr("No space left"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("kvd.toml.new")));
}

}  // namespace
}  // namespace kvd::ctl
