// Domains against an engine that keeps what it gave back: it maps, reads and writes its old memory
// while another domain uses the same pool.
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

constexpr const char* kStranger = "65534";
constexpr int kSecret = 0x5C;

/// Two domains, and how much of a device's pool of 16 MiB each of the two takes.
struct Setting {
  const char* name;
  std::string tables;
  std::uint64_t mebibytes;
  std::uint32_t device = 0;

  friend void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }
};

std::string two_domains(const std::string& quota) {
  return "[[domain]]\nname = \"theirs\"\nuids = [" + std::string(kStranger) + "]\n" + quota +
         "[[domain]]\nname = \"ours\"\nuids = [0]\n" + quota;
}

const Setting kSettings[] = {
    {"Guaranteed", two_domains("hbm_guarantee = \"8MiB\"\n"), 8},
    {"Borrowed", two_domains(""), 16},
    {"ByUser", "", 16},
    {"OnTheSecondDevice", "[[device]]\n[[device]]\n" + two_domains(""), 16, 1},
};

class Domains : public testing::TestWithParam<std::tuple<Setting, const char*>> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
    ASSERT_TRUE(kvd_.wait_ready()) << kvd_.log();
    for (const char* socket : {"attach.sock", "command.sock"}) {
      std::filesystem::permissions(folder_.file(socket), std::filesystem::perms(0666));
    }
  }
  [[nodiscard]] kvd_client::Result<kvd_client::Client> open_ours() const {
    kvd_client::Options options;
    options.endpoint = kvd_.endpoint();
    options.engine_name = "ours";
    options.device = setting().device;
    return kvd_client::Client::open(options);
  }
  [[nodiscard]] const Setting& setting() const { return std::get<0>(GetParam()); }

  const RuntimeFolder folder_;
  const KvdProcess kvd_{folder_, {.extra = setting().tables}};
};

/// Ends a process that is not a child of this one.
struct Ended {
  ~Ended() {
    if (pid > 0) ::kill(pid, SIGKILL);
  }
  pid_t pid = 0;
};

TEST_P(Domains, AnEngineThatKeepsItsMappingSeesAndChangesNothingOfAnotherDomain) {
  ChildProcess engine({{built_program("kvd-test-engine"), "spy", kvd_.endpoint(), kStranger,
                        std::to_string(setting().mebibytes), std::get<1>(GetParam()),
                        std::to_string(setting().device)},
                       {}});
  const auto line = engine.wait_for_line("spy ");
  ASSERT_TRUE(line) << engine.errors() << kvd_.log();
  const Ended spy{std::atoi(line->c_str() + 4)};

  auto client = open_ours();
  ASSERT_TRUE(client.ok()) << client.error().message;
  // Nobody can wait for that memory until its engine is known to be dead.
  std::optional<kvd_client::Region> region;
  ASSERT_TRUE(poll_until([&] {
    const auto granted = client->allocate_region(setting().mebibytes << 20, kPatience);
    if (granted.ok()) region = *granted;
    return granted.ok();
  })) << kvd_.log();
  const std::byte* end = region->address + region->bytes;
  EXPECT_TRUE(std::all_of(region->address, region->address + region->bytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  std::memset(region->address, kSecret, region->bytes);

  ASSERT_EQ(::kill(spy.pid, SIGUSR1), 0);
  EXPECT_EQ(engine.wait_for_line("saw"), "saw nothing");
  EXPECT_TRUE(std::all_of(static_cast<const std::byte*>(region->address), end, [](std::byte b) {
    return b == std::byte{kSecret};
  })) << "it wrote into our memory";
}

INSTANTIATE_TEST_SUITE_P(Pools, Domains,
                         testing::Combine(testing::ValuesIn(kSettings),
                                          testing::Values("free", "leave", "fork")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::get<1>(test.param);
                         });

/// An engine of `kvd` whose group is not root's.
ChildCommand pattern_of_group(const KvdProcess& kvd, const std::string& group,
                              std::vector<std::string> load) {
  std::vector<std::string> arguments{
      "/usr/bin/env", "setpriv", "--regid", group, "--clear-groups", built_program("kvd-pattern")};
  for (const std::string option :
       {"--endpoint", kvd.endpoint().c_str(), "--layers", "4", "--bytes-per-token", "8192",
        "--step-ms", "2", "--deadline", "300", "--json"}) {
    arguments.push_back(option);
  }
  arguments.insert(arguments.end(), load.begin(), load.end());
  return {arguments, {}};
}

// Requests of the first domain always fill HBM. Each that ends makes room for one of the same
// domain only.
TEST(SharesOfDomains, OneThatAlwaysFillsHbmDoesNotKeepAnotherOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be of another group";
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.extra = "[rotation]\npolicy = \"fcfs\"\n"
                                         "[[domain]]\nname = \"full\"\ngids = [64001]\n"
                                         "[[domain]]\nname = \"late\"\ngids = [64002]\n"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  const ChildProcess full(pattern_of_group(
      kvd, "64001", {"--name", "full", "--requests", "1000", "--prompt", "8", "--new", "56"}));
  const auto tokens = [&] { return kvd.metric("kvd_tokens_total").value_or(0); };
  ASSERT_TRUE(poll_until([&] { return tokens() > 600; })) << full.errors() << kvd.log();
  ChildProcess late(pattern_of_group(
      kvd, "64002", {"--name", "late", "--requests", "4", "--prompt", "112", "--new", "16"}));
  EXPECT_EQ(late.wait(), 0) << late.errors() << kvd.log();
  EXPECT_FALSE(full.ended()) << full.errors();
}

}  // namespace
}  // namespace kvd::test
