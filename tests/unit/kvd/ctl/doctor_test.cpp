#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/ctl/doctor/diagnosis.hpp"
#include "kvd/ctl/doctor/nodes.hpp"
#include "kvd/ctl/doctor/tiers.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::ctl::doctor {
namespace {
using testing::HasSubstr;

/// A machine with a GPU and a running kvd on which nothing is wrong.
Facts sound() {
  Facts facts;
  facts.folder = {"/run/kvd", S_IFDIR | 0755, 0};
  facts.token = {"/run/kvd/admin.token", S_IFREG | 0600, 0};
  facts.attach = {"/run/kvd/attach.sock", SocketState::kAnswers, 12, 0};
  facts.command = {"/run/kvd/command.sock", SocketState::kAnswers, 12, 0};
  facts.process = {true, 1048576, 8388608, 1u << CAP_IPC_LOCK, true};
  facts.pages = {0, "always within_size [advise] never deny force"};
  facts.driver = {"580.65.06", true, true};
  facts.admin = {"http://127.0.0.1:8470", "0.1.0", 200, "0.1.0"};
  return facts;
}

/// The worst finding of a check.
Finding worst(const Facts& facts, const std::string& check) {
  Finding worst;
  for (const Finding& finding : diagnose(facts)) {
    if (finding.check == check && finding.severity >= worst.severity) worst = finding;
  }
  return worst;
}

TEST(Doctor, FindsNothingWhereNothingIsWrong) {
  const auto findings = diagnose(sound());
  EXPECT_TRUE(is_healthy(findings));
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.text;
    EXPECT_EQ(finding.remedy, "") << finding.text;
  }
}

TEST(Doctor, SaysWhyBlocksDoNotGoToDiskOrToAServer) {
  const auto found = findings_of_tiers(
      R"({"disk_models": [{"model": "llama", "state": "refused"},
                          {"model": "qwen", "state": "open"}]})",
      R"({"servers": [{"server": "a:1", "on": true, "why": ""},
                      {"server": "b:2", "on": false, "why": "no answer"},
                      {"server": "c:3", "on": true, "why": "maxmemory is 0"}]})");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].text, "cached blocks of llama do not go to disk; kvdctl events says why");
  EXPECT_EQ(found[1].text, "the remote server b:2 is off: no answer");
  EXPECT_EQ(found[2].text, "nothing is written to the remote server c:3: maxmemory is 0");
  for (const Finding& finding : found) {
    EXPECT_EQ(finding.severity, Severity::kWarning);
    EXPECT_FALSE(finding.remedy.empty());
  }
  EXPECT_TRUE(findings_of_tiers("<html>", "{}").empty());
  EXPECT_TRUE(findings_of_tiers(R"({"disk_models": []})", R"({"servers": []})").empty());
}

struct Case {
  const char* name;
  const char* check;
  Severity severity;
  void (*break_it)(Facts&);
};

class DoctorFault : public testing::TestWithParam<Case> {};

TEST_P(DoctorFault, IsFoundWithItsRemedyAndNothingElseIs) {
  Facts facts = sound();
  GetParam().break_it(facts);
  const auto findings = diagnose(facts);
  EXPECT_EQ(is_healthy(findings), GetParam().severity != Severity::kFault);
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kOk) continue;
    EXPECT_EQ(finding.check, GetParam().check) << finding.text;
    EXPECT_NE(finding.remedy, "") << finding.text;
  }
  EXPECT_EQ(worst(facts, GetParam().check).severity, GetParam().severity);
}

constexpr Case kCases[] = {
    {"WritableFolder", "folder", Severity::kFault,
     [](Facts& f) { f.folder.mode = S_IFDIR | 0775; }},
    {"FolderIsAFile", "folder", Severity::kFault, [](Facts& f) { f.folder.mode = S_IFREG | 0644; }},
    {"SomebodysFolder", "folder", Severity::kFault, [](Facts& f) { f.folder.uid = 1000; }},
    {"MayNotConnect", "sockets", Severity::kFault,
     [](Facts& f) { f.attach.state = f.command.state = SocketState::kForbidden; }},
    {"NoCommandSocket", "sockets", Severity::kFault,
     [](Facts& f) { f.command.state = SocketState::kMissing; }},
    {"AnotherAtTheCommandSocket", "sockets", Severity::kFault,
     [](Facts& f) {
       f.attach.state = SocketState::kMissing;
       f.admin.status = 0;
     }},
    {"NoSocket", "sockets", Severity::kFault,
     [](Facts& f) { f.attach.state = f.command.state = SocketState::kNoSocket; }},
    {"Stale", "sockets", Severity::kFault,
     [](Facts& f) { f.attach.state = f.command.state = SocketState::kStale; }},
    {"NotStarted", "sockets", Severity::kWarning,
     [](Facts& f) {
       f.attach.state = f.command.state = SocketState::kMissing;
       f.admin.status = 0;
     }},
    {"SocketRemoved", "sockets", Severity::kFault,
     [](Facts& f) {
       f.attach.state = f.command.state = SocketState::kMissing;
       f.admin.attach = f.attach.path;
     }},
    {"KvdElsewhere", "sockets", Severity::kFault,
     [](Facts& f) {
       f.attach.state = f.command.state = SocketState::kMissing;
       f.admin.attach = "/run/user/7/kvd/attach.sock";
     }},
    {"KvdThatDoesNotSayWhere", "sockets", Severity::kFault,
     [](Facts& f) { f.attach.state = f.command.state = SocketState::kMissing; }},
    {"TwoKvds", "sockets", Severity::kWarning,
     [](Facts& f) { f.admin.attach = "/run/user/7/kvd/attach.sock"; }},
    {"UnseenProcesses", "processes", Severity::kWarning, [](Facts& f) { f.admin.unseen = 2; }},
    {"OpenToken", "token", Severity::kFault, [](Facts& f) { f.token.mode = S_IFREG | 0644; }},
    {"LinkedToken", "token", Severity::kFault, [](Facts& f) { f.token.mode = S_IFLNK | 0777; }},
    {"FewFiles", "files", Severity::kWarning,
     [](Facts& f) {
       f.process.is_daemon = false;
       f.process.files = 1024;
     }},
    {"LittleLockedMemory", "memlock", Severity::kWarning,
     [](Facts& f) { f.process.capabilities = 0; }},
    {"NotRealtime", "realtime", Severity::kWarning, [](Facts& f) { f.process.realtime = false; }},
    {"SmallPages", "pages", Severity::kWarning,
     [](Facts& f) { f.pages.shmem_enabled = "always within_size advise [never] deny force"; }},
    {"HugetlbOnly", "pages", Severity::kWarning,
     [](Facts& f) {
       f.pages = {512, "[never]"};
     }},
    {"OldDriver", "driver", Severity::kFault, [](Facts& f) { f.driver.version = "520.61.05"; }},
    {"SlowDriver", "driver", Severity::kWarning, [](Facts& f) { f.driver.version = "535.1"; }},
    {"NoLibcuda", "driver", Severity::kFault, [](Facts& f) { f.driver.has_library = false; }},
    {"ClosedGpu", "driver", Severity::kFault, [](Facts& f) { f.driver.may_open_gpu = false; }},
    {"NoAdmin", "admin", Severity::kFault, [](Facts& f) { f.admin.status = 0; }},
    {"NoToken", "admin", Severity::kWarning,
     [](Facts& f) {
       f.admin.status = 401;
       f.admin.version = "";
     }},
    {"OldDaemon", "admin", Severity::kWarning, [](Facts& f) { f.admin.version = "0.0.9"; }},
};

INSTANTIATE_TEST_SUITE_P(Each, DoctorFault, testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Doctor, NeedsNoLockedMemoryWithoutAGpu) {
  Facts facts = sound();
  facts.driver = {};
  facts.process.capabilities = 0;
  EXPECT_EQ(worst(facts, "memlock").severity, Severity::kOk);
  EXPECT_EQ(worst(facts, "driver").severity, Severity::kOk);
}

TEST(Doctor, TakesAKvdThatRunsToHaveTheDescriptorsItNeeds) {
  Facts facts = sound();
  facts.process.is_daemon = true;
  facts.process.files = 1024;
  EXPECT_EQ(worst(facts, "files").severity, Severity::kOk);
}

TEST(Doctor, SaysTheSameInTextAndJson) {
  Facts facts = sound();
  facts.token.mode = S_IFREG | 0644;
  const auto findings = diagnose(facts);
  const auto json = nlohmann::json::parse(findings_json(findings));
  EXPECT_EQ(json.at("healthy"), false);
  ASSERT_EQ(json.at("findings").size(), findings.size());
  const std::string text = findings_text(findings);
  for (const auto& finding : json.at("findings")) {
    EXPECT_THAT(text, HasSubstr(finding.at("text").get<std::string>()));
    EXPECT_THAT(text, HasSubstr(finding.at("remedy").get<std::string>()));
  }
}

/// A folder that stands for / and one for kvd's sockets.
class Machine : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] Facts facts() const {
    return look({root.path(), sockets.file("attach.sock"), sockets.file("command.sock")});
  }
  UniqueFd bound(const std::string& name, int type, bool listening) {
    UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, sockets.file(name).c_str());
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_TRUE(!listening || ::listen(fd.get(), 4) == 0);
    return fd;
  }

  test::RuntimeFolder root;
  test::RuntimeFolder sockets;
};

TEST_F(Machine, ReadsWhatTheKernelSays) {
  write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              unlimited            bytes     \n"
        "Max open files            1024                 524288               files     \n");
  write("/proc/self/status", "Name:\tkvdctl\nCapEff:\t0000000000004000\n");
  write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n");
  write("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "4\n");
  write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n");
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n");
  write("/dev/nvidiactl", "");
  const Facts sut = facts();
  EXPECT_FALSE(sut.process.is_daemon);
  EXPECT_EQ(sut.process.files, 524288u);
  EXPECT_EQ(sut.process.locked, 8388608u);
  EXPECT_EQ(sut.process.capabilities, std::uint64_t{1} << CAP_IPC_LOCK);
  EXPECT_EQ(sut.pages.hugetlb_free, 6u);
  EXPECT_EQ(sut.pages.shmem_enabled, "always [advise] never");
  EXPECT_EQ(sut.driver.version, "580.65.06");
  EXPECT_TRUE(sut.driver.may_open_gpu);
}

TEST_F(Machine, SaysWhetherTheListenersFirstThreadIsRealtime) {
  const UniqueFd attach = bound("attach.sock", SOCK_SEQPACKET, true);
  std::string before = "7 (a) b) S";  // fields 1 to 3 of proc_pid_stat(5)
  for (int field = 4; field < 40; ++field) before += " 0";
  const std::string file = "/proc/" + std::to_string(::getpid()) + "/stat";
  EXPECT_EQ(facts().process.realtime, std::nullopt);
  write(file, before + " 0 0 0 0\n");  // priority and policy come first
  EXPECT_EQ(facts().process.realtime, false);
  write(file, before + " 1 2 0 0\n");
  EXPECT_EQ(facts().process.realtime, true);
}

TEST_F(Machine, WithoutAnythingHasNoDriverAndNoSockets) {
  const Facts sut = facts();
  EXPECT_EQ(sut.driver.version, "");
  EXPECT_EQ(sut.process.files, std::nullopt);
  EXPECT_EQ(sut.attach.state, SocketState::kMissing);
  EXPECT_TRUE(sut.folder.mode.has_value());
}

TEST_F(Machine, TellsALivingSocketFromOneLeftBehindAndAFile) {
  const UniqueFd living = bound("attach.sock", SOCK_SEQPACKET, true);
  const UniqueFd left = bound("command.sock", SOCK_STREAM, false);
  EXPECT_EQ(facts().attach.state, SocketState::kAnswers);
  EXPECT_EQ(facts().attach.pid, ::getpid());
  EXPECT_EQ(facts().command.state, SocketState::kStale);
  std::filesystem::remove(sockets.file("command.sock"));
  std::ofstream(sockets.file("command.sock")) << "text";
  EXPECT_EQ(facts().command.state, SocketState::kNoSocket);
}

/// A document of /v1/cache with one cache open.
std::string open_cache(const std::string& changed, const nlohmann::json& value) {
  nlohmann::json cache = {{"engine", 1},         {"name", "vllm"},       {"domain", "default"},
                          {"model", "tiny"},     {"block_bytes", 65536}, {"block_tokens", 32},
                          {"fingerprint", "f1"}, {"remote_name", "n1"}};
  if (!changed.empty()) cache[changed] = value;
  if (changed == "block_tokens" || changed == "fingerprint" || changed == "domain") {
    cache["remote_name"] = "n2";
  }
  return nlohmann::json{{"open", {cache}}}.dump();
}

TEST(CompareNodes, SaysWhatKeepsOneNodeFromTheOthersBlocks) {
  const std::string here = open_cache("", nullptr);
  const auto one = [&](const std::string& there) {
    const auto findings = compare_nodes(here, there);
    EXPECT_TRUE(findings.ok());
    return findings->front();
  };
  EXPECT_EQ(one(here).severity, Severity::kOk);
  const std::tuple<const char*, nlohmann::json, const char*> kRows[] = {
      {"remote_name", nullptr, "that one has no remote servers"},
      {"block_tokens", 16, "32 tokens, 65536 bytes here, and 16 tokens"},
      {"fingerprint", "f2", "f1 here, and f2 there"},
      {"domain", "other", R"(in "other" there)"},
      {"remote_name", "n2", "the secrets differ"},
      {"model", "big", R"("tiny" is open here alone; on the other node: "big")"}};
  for (const auto& [key, value, text] : kRows) {
    SCOPED_TRACE(key);
    const Finding finding = one(open_cache(key, value));
    EXPECT_EQ(finding.severity, Severity::kWarning);
    EXPECT_THAT(finding.text, HasSubstr(text));
    EXPECT_NE(finding.remedy, "");
  }
  EXPECT_EQ(compare_nodes(here, open_cache("model", "big"))->size(), 2u);
  EXPECT_THAT(one(R"({"open": []})").text, HasSubstr("here alone"));
  EXPECT_THAT(compare_nodes(R"({"open": []})", R"({"open": []})")->front().text,
              HasSubstr("no engine"));
  for (const char* wrong : {"", "[]", "{}", R"({"open": [{}]})"}) {
    EXPECT_EQ(compare_nodes(here, wrong).error().code, ErrorCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace kvd::ctl::doctor
