#include "kvd/daemon/config/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "kvd/daemon/config/config_keys.hpp"
#include "kvd/daemon/config/needs.hpp"
#include "tests/unit/kvd/daemon/config_fixture.hpp"

namespace kvd::daemon {
namespace {
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using testing::UnorderedElementsAre;
using Action = Invocation::Action;

/// A value for each key that is not its default, and that is valid beside all the others.
const std::map<std::string, std::string> kOtherValues = {{"backend", "host"},
                                                         {"paths.runtime_dir", "/run/else where"},
                                                         {"paths.token_file", "/run/token"},
                                                         {"pool.hbm", "320MiB"},
                                                         {"pool.dram", "3GiB"},
                                                         {"pool.slab", "4MiB"},
                                                         {"pool.reserve", "1GiB"},
                                                         {"cuda.device", "1"},
                                                         {"cuda.dram", "auto"},
                                                         {"cuda.burst", "30us"},
                                                         {"cuda.watchdog", "9s"},
                                                         {"link.bandwidth", "10GiB/s"},
                                                         {"restart.keep", "never"},
                                                         {"cache.eviction", "lru"},
                                                         {"cache.retain_share", "0.25"},
                                                         {"cache.retain_most", "2m"},
                                                         {"disk.path", "/var/cache/kvd"},
                                                         {"remote.servers", "a:1, unix:/b"},
                                                         {"remote.secret_file", "/etc/kvd/s"},
                                                         {"remote.password_file", "/etc/kvd/p"},
                                                         {"remote.ttl", "2h"},
                                                         {"remote.write", "all"},
                                                         {"remote.budget", "7MiB"},
                                                         {"drain.to_remote", "30s"},
                                                         {"disk.size", "2GiB"},
                                                         {"disk.floor", "1GiB"},
                                                         {"disk.daily_writes", "100GiB"},
                                                         {"disk.touches", "3"},
                                                         {"engine.step_timeout", "7s"},
                                                         {"engine.evict_after", "2m"},
                                                         {"engine.standstill_after", "30s"},
                                                         {"engine.max_requests", "17"},
                                                         {"engine.max_engines", "3"},
                                                         {"engine.realtime", "never"},
                                                         {"admin.address", "127.0.0.2"},
                                                         {"admin.port", "18470"},
                                                         {"admin.read", "token"},
                                                         {"admin.program", "/opt/kvd-admin"},
                                                         {"admin.user", "kvd-admin"},
                                                         {"metrics.address", "::1"},
                                                         {"metrics.port", "19470"},
                                                         {"log.level", "debug"},
                                                         {"rotation.policy", "fcfs"},
                                                         {"rotation.alpha", "2.5"},
                                                         {"rotation.beta_b", "-0.25"},
                                                         {"rotation.beta_f", "0.1"},
                                                         {"rotation.b_xfer", "8MiB"},
                                                         {"rotation.eager", "false"},
                                                         {"rotation.overload", "ttft"},
                                                         {"rotation.pacing", "client"},
                                                         {"placement.policy", "none"},
                                                         {"admission.policy", "none"},
                                                         {"load.policy", "always"},
                                                         {"slo.default.ttft", "3s"},
                                                         {"slo.default.tbt", "50ms"},
                                                         {"slo.default.tpot", "75ms"},
                                                         {"slo.default.gap", "2s"}};

std::string assigned(const std::string& name, const std::string& value) {
  return name + "=" + value;
}

Texts all_flags() {
  Texts flags;
  for (const auto& [path, value] : kOtherValues) flags.push_back("--" + assigned(path, value));
  return flags;
}

TEST_F(ConfigTest, NothingGivenIsTheDefaults) {
  const auto sut = parse({});
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(sut->action, Action::kRun);
  EXPECT_EQ(sut->file, "");
  EXPECT_EQ(to_toml(sut->config), to_toml(Config{}));
}

TEST_F(ConfigTest, TheTestsKnowEveryKey) {
  for (const auto& key : config_keys()) {
    EXPECT_TRUE(kOtherValues.contains(key.path)) << key.path << " needs a row in kOtherValues";
    EXPECT_NE(key.when, "") << key.path;
  }
}

TEST_F(ConfigTest, EveryKeyIsReadAloneFromFlagVariableAndFile) {
  for (const auto& [path, value] : kOtherValues) {
    SCOPED_TRACE(path);
    const auto* key = find_key(config_keys(), path);
    ASSERT_NE(key, nullptr);
    ASSERT_NE(key->get(Config{}), value) << "the default proves nothing";
    Texts needed;
    if (path == "remote.servers") needed = {"KVD_REMOTE_SECRET_FILE=/etc/kvd/s"};
    Texts variables = needed;
    variables.push_back(assigned(variable_of(path), value));
    const Result<Invocation> all[] = {parse({"--" + assigned(path, value)}, needed),
                                      parse({"--" + path, value}, needed), parse({}, variables),
                                      parse_file(assigned(path, "'" + value + "'\n"), {}, needed)};
    for (const auto& sut : all) {
      ASSERT_TRUE(sut.ok()) << sut.error().message;
      EXPECT_EQ(key->get(sut->config), value);
    }
  }
}

TEST_F(ConfigTest, EveryKeyReadsBackFromToToml) {
  const auto first = parse(all_flags());
  ASSERT_TRUE(first.ok()) << first.error().message;
  const auto second = parse_file(to_toml(first->config));
  ASSERT_TRUE(second.ok()) << second.error().message << "\n" << to_toml(first->config);
  EXPECT_EQ(to_toml(second->config), to_toml(first->config));
  for (const auto& [path, value] : kOtherValues) {
    EXPECT_EQ(find_key(config_keys(), path)->get(second->config), value) << path;
  }
}

TEST_F(ConfigTest, ClassesAndDomainsReadBackFromToToml) {
  Config config;
  config.tuning.slo["batch"] = {std::chrono::hours(1), std::chrono::seconds(2),
                                std::chrono::milliseconds(1500)};
  config.domains = {{.name = "a",
                     .uids = {1000, 1001},
                     .gids = {5},
                     .hbm_guarantee = 64 * kMiB,
                     .hbm_maximum = 128 * kMiB,
                     .dram_guarantee = 65 * kMiB,
                     .dram_maximum = kGiB,
                     .slo_class = "batch"},
                    domain_of("b")};
  const auto sut = parse_file(to_toml(config));
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(to_toml(sut->config), to_toml(config));
  ASSERT_EQ(sut->config.domains.size(), 2u);
  EXPECT_THAT(sut->config.domains[0].uids, ElementsAre(1000, 1001));
  EXPECT_EQ(sut->config.domains[0].hbm_maximum, 128 * kMiB);
  EXPECT_EQ(sut->config.tuning.slo.at("batch").tbt, std::chrono::seconds(2));
}

TEST_F(ConfigTest, FlagOutweighsVariableOutweighsFile) {
  const std::string toml = "[pool]\nhbm = \"128MiB\"\ndram = \"2GiB\"\nreserve = \"1GiB\"\n";
  const auto sut = parse_file(toml, {"--pool.hbm", "512MiB"},
                              {"KVD_POOL_HBM=1GiB", "KVD_POOL_DRAM=3GiB", "PATH=/bin"});
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(sut->config.hbm, 512 * kMiB);
  EXPECT_EQ(sut->config.dram, 3 * kGiB);
  EXPECT_EQ(sut->config.reserve, kGiB);
}

TEST_F(ConfigTest, TheFileIsNamedByFlagOrVariable) {
  const std::string a = folder_.write("a.toml", "log.level = 'warn'\n");
  const std::string b = folder_.write("b.toml", "log.level = 'error'\n");
  const auto by_variable = parse({}, {"KVD_CONFIG=" + a});
  ASSERT_TRUE(by_variable.ok());
  EXPECT_EQ(by_variable->file, a);
  EXPECT_EQ(by_variable->config.log_level, "warn");
  const auto by_flag = parse({"--config", b}, {"KVD_CONFIG=" + a});
  ASSERT_TRUE(by_flag.ok());
  EXPECT_EQ(by_flag->file, b);
  EXPECT_EQ(by_flag->config.log_level, "error");
}

TEST_F(ConfigTest, FilesTakeNumbersAsWellAsText) {
  const auto sut = parse_file(
      "[pool]\nhbm = 134217728\n[rotation]\nalpha = 4\nbeta_f = 0.25\n"
      "[engine]\nevict_after = 0\n[link]\nbandwidth = 1000000\n");
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(sut->config.hbm, 128 * kMiB);
  EXPECT_EQ(sut->config.tuning.rotation.alpha, 4);
  EXPECT_EQ(sut->config.tuning.rotation.beta_f, 0.25);
  EXPECT_EQ(sut->config.evict_after, Nanoseconds(0));
  EXPECT_EQ(sut->config.link_bandwidth, BytesPerSecond{1e6});
}

TEST_F(ConfigTest, TheExampleFileIsTheDefaultsInFull) {
  const std::string example = std::string(KVD_SOURCE_DIR) + "/deploy/config/kvd.toml";
  const auto sut = parse({"--config", example});
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(to_toml(sut->config), to_toml(Config{}));
  std::ifstream stream(example);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  std::istringstream defaults(to_toml(Config{}));
  for (std::string line; std::getline(defaults, line);) {
    // Class names are quoted by the printer only.
    std::erase(line, line.starts_with("[slo.") ? '"' : '\0');
    EXPECT_THAT(text, HasSubstr("\n" + line + "\n")) << "missing in the example";
  }
}

TEST_F(ConfigTest, DevicesAreTablesInTheFileAndOneWithoutAny) {
  EXPECT_EQ(Config{}.devices.size(), 1u);
  const auto sut = parse_file(
      "[cuda]\ndevice = '3'\n[pool]\nhbm = '128MiB'\n[[device]]\n[[device]]\ngpu = '1'\n");
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  ASSERT_EQ(sut->config.devices.size(), 2u);
  EXPECT_EQ(gpu_of(sut->config, 0), "3") << "that of [cuda]";
  EXPECT_EQ(gpu_of(sut->config, 1), "1");
  EXPECT_EQ(sut->config.slabs(Tier::kHbm), 4u) << "each has pool.hbm";
  EXPECT_EQ(sut->config.all_slabs(Tier::kHbm), 8u);
  EXPECT_EQ(sut->config.all_slabs(Tier::kDram), sut->config.slabs(Tier::kDram));
  EXPECT_THAT(effective_values(sut->config), Contains(Pair("device.1.gpu", "1")));
  EXPECT_THAT(to_toml(sut->config), HasSubstr("\n[[device]]\ngpu = \"1\"\n"));
}

TEST_F(ConfigTest, WhatADeviceHasNotIsRefusedByItsNumber) {
  const auto sut = parse_file("[[device]]\n[[device]]\nhbm = '1MiB'\n[device_]\n");
  ASSERT_FALSE(sut.ok());
  EXPECT_THAT(sut.error().message, HasSubstr("device.1.hbm"));
  EXPECT_FALSE(parse_file("device = 2\n").ok()) << "no table";
}

TEST_F(ConfigTest, UnknownNamesAreRefusedWithTheNearestKey) {
  const auto sut = parse_file(
      "[pool]\nhbn = 1\n[poool]\ndram = 1\n[slo.default]\ntbt_s = 0.1\n[nothing]\n"
      "[[domain]]\nname = 'a'\nuid = [1]\n",
      {"--pool.slap=2MiB", "--port", "-x", "what"}, {"KVD_POOL_DRAMM=1", "KVDX=1"});
  EXPECT_THAT(
      lines_of(sut),
      UnorderedElementsAre(
          AllOf(StartsWith(at_line(2) + ": pool.hbn: "), EndsWith(" pool.hbm")),
          AllOf(StartsWith(at_line(4) + ": poool.dram: "), EndsWith(" pool.dram")),
          AllOf(StartsWith(at_line(6) + ": slo.default.tbt_s: "), EndsWith(" slo.default.tbt")),
          StartsWith(at_line(7) + ": nothing: unknown"),
          AllOf(StartsWith(at_line(10) + ": domain.a.uid: "), EndsWith(" domain.a.uids")),
          AllOf(StartsWith("command line: --pool.slap: "), EndsWith(" --pool.slab")),
          AllOf(StartsWith("command line: --port: "), EndsWith(" --admin.port")),
          StartsWith("command line: -x: unknown"), StartsWith("command line: what: "),
          AllOf(StartsWith("environment: KVD_POOL_DRAMM: "), EndsWith(" KVD_POOL_DRAM"))));
}

TEST_F(ConfigTest, VariablesOfOtherProgramsAreLeftAlone) {
  const auto sut =
      parse({}, {"KVD_ENDPOINT=/x", "KVD_TRACES=/t", "KVD_REQUIRE=llama", "KVD_SEED=1",
                 "KVD_ADMIN_URL=http://127.0.0.1:1", "KVD_TEST_SEED=2", "KVD_LLAMA_REQUIRE=1",
                 "KVD_CLIENT_LIBRARY=/l.so", "KVD_VLLM=1", "KVD_VLLM_REQUIRED=1",
                 "KVD_PORT=tcp://10.0.0.1:1", "KVD_SERVICE_HOST=10.0.0.1",
                 "KVD_PORT_1_TCP_ADDR=10.0.0.1", "KVD_HISTORIES=9", "KVD_FIRST_SEED=3"});
  EXPECT_THAT(lines_of(sut), IsEmpty());
}

TEST_F(ConfigTest, AllFaultsAreListedAtOnceWithTheirOrigin) {
  const auto sut = parse_file(
      "backend = 'gpu'\n"
      "[pool]\nhbm = '-1GiB'\nslab = '3MiB'\ndram = nan\n"
      "[rotation]\nalpha = -1\npolicy = 'magic'\n"
      "[slo.fast]\ntbt = '0s'\n"
      "[admin]\naddress = '0.0.0.0'\n"
      "[[domain]]\nname = 'a'\nslo_class = 'slow'\nuids = 5\n",
      {"--engine.max_engines=0", "--engine.step_timeout"}, {"KVD_LOG_LEVEL=loud"});
  EXPECT_THAT(
      lines_of(sut),
      UnorderedElementsAre(StartsWith(at_line(1) + ": backend: \"gpu\""),
                           AllOf(StartsWith(at_line(3) + ": pool.hbm: "), HasSubstr("negative")),
                           StartsWith(at_line(4) + ": pool.slab: 3MiB is no multiple of 2 MiB"),
                           StartsWith(at_line(5) + ": pool.dram: "),
                           StartsWith(at_line(7) + ": rotation.alpha: "),
                           StartsWith(at_line(8) + ": rotation.policy: "),
                           StartsWith(at_line(10) + ": slo.fast.tbt: "),
                           StartsWith(at_line(12) + ": admin.address: "),
                           StartsWith(at_line(15) + ": domain.a.slo_class: "),
                           StartsWith(at_line(16) + ": domain.a.uids: "),
                           StartsWith("command line: engine.max_engines: "),
                           StartsWith("command line: --engine.step_timeout: needs a value"),
                           StartsWith("command line: engine.step_timeout: "),
                           StartsWith("KVD_LOG_LEVEL: log.level: ")));
}

// Each part is a frame of the parser's stack, whatever its quotes have in them.
TEST_F(ConfigTest, NamesOfManyPartsAreFaults) {
  for (const std::string first : {"a", "\"#\"", "\"=\"", "'['"}) {
    std::string name = first;
    for (int i = 0; i < 100'000; ++i) name += "." + first;
    EXPECT_THAT(lines_of(parse_file(name + " = 1\n")), Contains(HasSubstr("128 dots"))) << first;
  }
  EXPECT_TRUE(parse_file("# " + std::string(500, '.') + "\n[pool]\n").ok());
}

TEST_F(ConfigTest, BrokenFilesAreFaultsBesideTheOthers) {
  const auto broken = parse_file("[pool]\nhbm = \n", {"--log.level=loud"});
  EXPECT_THAT(lines_of(broken),
              ElementsAre(StartsWith(at_line(2) + ": not TOML: "), HasSubstr("log.level")));
  EXPECT_THAT(lines_of(parse({"--config", folder_.path() + "/none.toml"})),
              ElementsAre(HasSubstr("No such file or directory")));
  EXPECT_THAT(lines_of(parse({"--config", folder_.path()})),
              ElementsAre(HasSubstr("cannot be read")));
  EXPECT_TRUE(parse_file("").ok()) << "an empty file is the defaults";
}

TEST_F(ConfigTest, ValuesOfTheWrongShapeAreFaults) {
  EXPECT_THAT(lines_of(parse_file("pool = 3\nslo = 4\ndomain = 5\n[log]\nlevel = 2020-01-01\n"
                                  "[admin.port]\nx = 1\n")),
              UnorderedElementsAre(HasSubstr(":1: pool: "), HasSubstr(":2: slo: "),
                                   HasSubstr(":3: domain: "), HasSubstr(":5: log.level: "),
                                   HasSubstr(":6: admin.port: ")));
  EXPECT_THAT(lines_of(parse_file("slo.fast = 3\n[[domain]]\nuids = ['root']\n")),
              UnorderedElementsAre(HasSubstr(":1: slo.fast: "), HasSubstr(":2: domain.1: needs a"),
                                   HasSubstr(":3: domain.1.uids: ")));
  EXPECT_THAT(lines_of(parse_file("remote.servers = ['a:1', 'b:2']\n")),
              ElementsAre(HasSubstr("remote.servers: is a list")));
}

TEST_F(ConfigTest, RemoteServersNeedASecret) {
  EXPECT_THAT(lines_of(parse_file("remote.servers = 'a:1'\n")),
              ElementsAre(AllOf(HasSubstr("remote.secret_file: "), HasSubstr("openssl rand"))));
  EXPECT_TRUE(parse_file("remote.servers = ' ,'\n").ok()) << "there is none";
}

TEST_F(ConfigTest, AClassTakesTheUsualGoalsForThoseNotGiven) {
  const auto sut = parse_file("[slo.batch]\nttft = '1m'\n", {"--slo.default.tbt=50ms"});
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(sut->config.tuning.slo.at("batch").ttft, std::chrono::minutes(1));
  EXPECT_EQ(sut->config.tuning.slo.at("batch").tbt, core::Slo{}.tbt);
  EXPECT_EQ(sut->config.tuning.slo.at("default").tbt, std::chrono::milliseconds(50));
}

TEST_F(ConfigTest, ActionsAreTold) {
  EXPECT_EQ(parse({"--check-config"})->action, Action::kCheck);
  const auto print = parse({"--print-config", "--pool.hbm=64MiB", "--paths.runtime_dir=/r"});
  ASSERT_EQ(print->action, Action::kPrint);
  EXPECT_THAT(print->text,
              AllOf(HasSubstr("hbm = \"64MiB\""), HasSubstr("token_file = \"/r/admin.token\"")));
  EXPECT_TRUE(parse_file(print->text).ok());
  EXPECT_FALSE(parse({"--check-config", "--pool.hbm=1"}).ok());
  EXPECT_THAT(lines_of(parse({"--check-config=yes"})), ElementsAre(HasSubstr("takes no value")));
}

TEST_F(ConfigTest, TheUnitAllowsThePoolsAndMore) {
  const auto of = [&](const std::string& backend) {
    const auto unit = parse({"--print-unit", "--pool.hbm=8GiB", "--pool.dram=32GiB",
                             "--pool.slab=64MiB", "--backend", backend});
    EXPECT_EQ(unit->action, Action::kPrintUnit);
    return unit->text;
  };
  Config config;
  config.hbm = 8 * kGiB;
  config.dram = 32 * kGiB;
  config.slab = 64 * kMiB;
  const auto line = [&](BackendChoice backend) {
    config.backend = backend;
    return "[Service]\nMemoryMax=" + std::to_string(memory_at_most(config).value) + "\n";
  };
  EXPECT_THAT(of("host"), HasSubstr(line(BackendChoice::kHost)));
  EXPECT_THAT(of("cuda"), HasSubstr(line(BackendChoice::kCuda)));
  EXPECT_THAT(of("auto"), HasSubstr(line(BackendChoice::kAuto)));
  EXPECT_THAT(of("host"), HasSubstr("[Unit]")) << "and restarts without end";
  EXPECT_THAT(of("host"), HasSubstr("StartLimitIntervalSec=0\n"));
}

TEST_F(ConfigTest, TheUnitAllowsFoldersThatAreNotItsOwn) {
  const auto of = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "--print-unit");
    return parse(std::move(flags))->text;
  };
  EXPECT_THAT(of({}), Not(HasSubstr("ReadWritePaths")));
  EXPECT_THAT(of({"--disk.path=/var/cache/kvd", "--paths.token_file=/run/kvd/a/token"}),
              Not(HasSubstr("ReadWritePaths")));
  EXPECT_THAT(of({"--disk.path=/var/cache/kvd2", "--paths.runtime_dir=/srv/a"}),
              HasSubstr("ReadWritePaths=\"/srv/a\"\nReadWritePaths=\"/var/cache/kvd2\"\n"));
  EXPECT_THAT(of({"--disk.path=/a \"b\" 5%"}), HasSubstr("ReadWritePaths=\"/a \\\"b\\\" 5%%\"\n"));
}

TEST_F(ConfigTest, HelpAndVersionAnswerWhateverElseIsWrong) {
  const auto help = parse({"--pool.hbm=nonsense", "--help", "--print-config"}, {"KVD_X=1"});
  ASSERT_TRUE(help.ok());
  EXPECT_EQ(help->action, Action::kHelp);
  for (const auto& key : config_keys()) EXPECT_THAT(help->text, HasSubstr("--" + key.path + " "));
  const auto version = parse({"--version"}, {"KVD_X=1"});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(version->text, testing::MatchesRegex("kvd [0-9.]+\n"));
}

TEST_F(ConfigTest, NegativeNumbersAreValues) {
  const auto sut = parse({"--rotation.beta_b", "-0.5"});
  ASSERT_TRUE(sut.ok()) << sut.error().message;
  EXPECT_EQ(sut->config.tuning.rotation.beta_b, -0.5);
}

TEST_F(ConfigTest, EffectiveValuesHoldEveryKeyClassAndDomain) {
  Config config;
  config.tuning.slo["batch"] = {};
  const auto values = effective_values(config);
  const std::size_t default_goals = slo_keys().size();
  EXPECT_EQ(values.size(),
            config_keys().size() + default_goals + domain_keys().size() - 1 + device_keys().size());
  EXPECT_THAT(values, Contains(Pair("pool.hbm", "256MiB")));
  EXPECT_THAT(values, Contains(Pair("pool.slab", "64MiB"))) << "not \"auto\": what is in effect";
  EXPECT_THAT(values, Contains(Pair("slo.batch.tbt", "100ms")));
  EXPECT_THAT(values, Contains(Pair("domain.default.hbm_maximum", "unlimited")));
}

TEST_F(ConfigTest, PathsAreFilledInOnlyWhereEmpty) {
  Config config;
  config.command_socket = "/c.sock";
  const std::vector<std::string> variables = {"XDG_RUNTIME_DIR=/run/user/7"};
  const auto environment = pointers(variables);
  resolve_paths(config, environment.data());
  const std::string expected = ::geteuid() == 0 ? "/run/kvd" : "/run/user/7/kvd";
  EXPECT_EQ(config.runtime_dir, expected);
  EXPECT_EQ(config.attach_socket, expected + "/attach.sock");
  EXPECT_EQ(config.command_socket, "/c.sock");
  EXPECT_EQ(config.token_file, expected + "/admin.token");
}

TEST_F(ConfigTest, PathsAreAbsoluteAndARelativeRuntimeFolderOfTheUserIsNone) {
  Config config;
  const std::vector<std::string> variables = {"XDG_RUNTIME_DIR=relative"};
  const auto environment = pointers(variables);
  resolve_paths(config, environment.data());
  EXPECT_EQ(config.runtime_dir, "/run/kvd");
  Config given;
  given.runtime_dir = "here", given.token_file = "token";
  resolve_paths(given, environment.data());
  const std::string folder = std::filesystem::current_path();
  EXPECT_EQ(given.attach_socket, folder + "/here/attach.sock");
  EXPECT_EQ(given.token_file, folder + "/token");
}

}  // namespace
}  // namespace kvd::daemon
