// What the program does about the disk: when it ends, and when the disk or its limits are not as
// they should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

struct Disk {
  std::string path;
  std::string size = "32MiB";
};

KvdSettings with(const Disk& disk) {
  KvdSettings settings;
  settings.extra = "[disk]\npath = '" + disk.path + "'\nsize = '" + disk.size +
                   "'\nfloor = '1MiB'\ntouches = 1\n[load]\npolicy = 'always'\n";
  return settings;
}

/// Stores blocks of a model under names of its own.
class Model {
 public:
  static constexpr std::uint64_t kBlock = 256 << 10;
  static constexpr std::uint32_t kBlocks = 8;

  Model(const KvdProcess& kvd, const std::string& name) : client_(attached(kvd, name)) {
    region_ = client_.allocate_region(kBlocks * kBlock, kPatience).value();
    cache_ =
        client_.caches()
            .open({name, 16, kBlock, region_.id, region_.bytes / kBlock, {{0, kBlock, kBlock}}},
                  kPatience)
            .value();
  }
  void store() {
    const std::vector<std::uint32_t> blocks{0, 1, 2, 3, 4, 5, 6, 7};
    ASSERT_TRUE(client_.caches().store(cache_, digests(), blocks, false, kPatience, ticket_).ok());
    ASSERT_TRUE(client_.caches().wait({&ticket_, 1}, kPatience).ok());
  }
  [[nodiscard]] std::uint64_t leading() {
    return client_.caches().lookup(cache_, digests(), kPatience).value();
  }

 private:
  static kvd_client::Client attached(const KvdProcess& kvd, const std::string& name) {
    kvd_client::Options options;
    options.endpoint = kvd.endpoint();
    options.engine_name = name;
    return std::move(kvd_client::Client::open(options)).value();
  }
  static std::vector<kvd_client::Digest> digests() {
    std::vector<kvd_client::Digest> made(kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i) std::memcpy(made[i].data(), &i, sizeof i);
    return made;
  }

  kvd_client::Client client_;
  kvd_client::Region region_;
  std::uint64_t cache_ = 0, ticket_ = 0;
};

json cache_of(const KvdProcess& kvd) { return json::parse(kvd.get("/v1/cache").body); }

/// Whether this many blocks of all models come to the disk. A disk that stands still for two
/// seconds loses what is on its way, so the model's blocks are stored until it has them.
[[nodiscard]] bool stores(Model& model, const KvdProcess& kvd, std::uint64_t blocks) {
  return poll_until([&] {
    model.store();
    return cache_of(kvd)["disk"]["stores"] >= blocks;
  });
}

/// The files with this name in all folders.
std::vector<fs::path> files(const std::string& disk, const std::string& name) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(disk)) {
    if (entry.path().filename() == name) found.push_back(entry.path());
  }
  return found;
}

/// The bytes of all segments. Some may be removed meanwhile.
std::uint64_t taken(const std::string& disk) {
  std::uint64_t sum = 0;
  std::error_code gone;
  for (fs::recursive_directory_iterator at(disk, gone), end; at != end; at.increment(gone)) {
    const bool segment = at->path().filename().string().starts_with("segment-");
    const std::uint64_t size = segment ? fs::file_size(at->path(), gone) : 0;
    if (!gone) sum += size;
  }
  return sum;
}

void stop(KvdProcess& kvd) {
  kvd.signal(SIGTERM);
  EXPECT_EQ(kvd.wait(), 0) << kvd.log();
}

TEST(DiskProgram, ACleanStopWritesTheCheckpointAndTheNextStartUsesIt) {
  const RuntimeFolder folder, disk;
  {
    KvdProcess kvd(folder, with({disk.path()}));
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    Model model(kvd, "llama");
    ASSERT_TRUE(stores(model, kvd, 8)) << kvd.log();
    const pid_t admin = child_of(kvd.pid());
    ASSERT_GT(admin, 0);
    stop(kvd);
    EXPECT_NE(::kill(admin, 0), 0) << "kvd-admin has ended, too";
    EXPECT_FALSE(fs::exists(kvd.endpoint()));
    EXPECT_FALSE(fs::exists(folder.file("command.sock")));
  }
  EXPECT_EQ(files(disk.path(), "checkpoint").size(), 1u);
  const KvdProcess kvd(folder, with({disk.path()}));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Model model(kvd, "llama");
  EXPECT_TRUE(poll_until([&] { return model.leading() == 8; })) << kvd.log();
  const auto told = [&] {
    return kvd.log().find("8 blocks by the checkpoint of a clean stop") != std::string::npos;
  };
  EXPECT_TRUE(poll_until(told)) << kvd.log();
}

// Its writes are under way, or have not begun.
TEST(DiskProgram, AStopInTheMidstOfWritesKeepsItsTime) {
  const RuntimeFolder folder, disk;
  KvdProcess kvd(folder, with({disk.path()}));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  std::vector<std::unique_ptr<Model>> models;
  for (int i = 0; i < 8; ++i) {
    models.push_back(std::make_unique<Model>(kvd, "model-" + std::to_string(i)));
    models.back()->store();
  }
  const auto start = std::chrono::steady_clock::now();
  stop(kvd);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(DiskProgram, MoreThanFourModelsShareTheDisk) {
  const RuntimeFolder folder, disk;
  KvdProcess kvd(folder, with({disk.path(), "16MiB"}));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  for (int i = 1; i <= 20; ++i) {
    Model model(kvd, "model-" + std::to_string(i));
    ASSERT_TRUE(poll_until([&] {
      model.store();
      const json cache = cache_of(kvd);
      for (const json& one : cache["disk_models"]) {
        const bool its = one["model"] == "model-" + std::to_string(i);
        if (its && one["cached_bytes"] > 0 && one["state"] == "open") return true;
      }
      return false;
    })) << "model "
        << i << ": " << kvd.get("/v1/cache").body << kvd.log();
    EXPECT_LE(taken(disk.path()), 16u << 20);
  }
  EXPECT_THAT(kvd.metrics(), HasSubstr("kvd_disk_models{state=\"open\"}"));
  ASSERT_FALSE(files(disk.path(), "model").empty());
  std::string name;
  std::getline(std::ifstream(files(disk.path(), "model").front()), name);
  EXPECT_THAT(name, testing::StartsWith("model-"));
  stop(kvd);
}

TEST(DiskProgram, FoldersOfEarlierLivesGiveWay) {
  const RuntimeFolder folder, disk;
  for (int life = 0; life < 6; ++life) {
    KvdProcess kvd(folder, with({disk.path(), "16MiB"}));
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    for (int i = 0; i < 4; ++i) {
      Model model(kvd, "life-" + std::to_string(life) + "-model-" + std::to_string(i));
      ASSERT_TRUE(stores(model, kvd, 8 * static_cast<std::uint64_t>(i + 1))) << kvd.log();
    }
    stop(kvd);
    EXPECT_LE(taken(disk.path()), 16u << 20) << "life " << life;
  }
}

TEST(DiskProgram, AnotherDiskSizeNeedsNobody) {
  const RuntimeFolder folder, disk;
  std::uint64_t before = 0;
  for (const char* size : {"64MiB", "32MiB", "2GiB", "16MiB"}) {
    KvdProcess kvd(folder, with({disk.path(), size}));
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    Model model(kvd, "llama");
    ASSERT_TRUE(poll_until([&] { return model.leading() == before; })) << size << kvd.log();
    ASSERT_TRUE(stores(model, kvd, before > 0 ? 0 : 8)) << size << kvd.log();
    EXPECT_THAT(kvd.log(), Not(HasSubstr("warning")));
    stop(kvd);
    before = 8;
  }
}

TEST(DiskProgram, ADiskThatIsNotThereYetIsUsedOnceItIs) {
  const RuntimeFolder folder, disk;
  const std::string mount = disk.path() + "/mount";
  const KvdProcess kvd(folder, with({mount + "/kvd"}));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EXPECT_THAT(kvd.log(), HasSubstr("no cached block goes to disk"));
  Model model(kvd, "llama");
  model.store();
  fs::create_directory(mount);
  EXPECT_TRUE(stores(model, kvd, 8)) << kvd.log();
  EXPECT_THAT(kvd.log(), HasSubstr("can be used now"));
}

TEST(DiskProgram, ADiskThatAnotherHasIsTriedAgain) {
  const RuntimeFolder folder, other_folder, disk;
  KvdProcess kvd(folder, with({disk.path()}));
  const KvdProcess other(other_folder, with({disk.path()}));
  ASSERT_TRUE(kvd.wait_ready() && other.wait_ready());
  Model first(kvd, "llama"), second(other, "llama");
  ASSERT_TRUE(stores(first, kvd, 8));
  second.store();
  ASSERT_TRUE(poll_until([&] {
    const json models = cache_of(other)["disk_models"];
    return std::any_of(models.begin(), models.end(),
                       [](const json& m) { return m["state"] == "refused"; });
  })) << other.get("/v1/cache").body;
  const auto said = [&] {
    return other.log().find("in use by another process") != std::string::npos;
  };
  EXPECT_TRUE(poll_until(said)) << other.log();  // the log is written by another thread
  stop(kvd);
  EXPECT_TRUE(poll_until([&] { return cache_of(other)["cached_bytes"]["disk"] > 0; }))
      << other.log();
}

KvdSettings limited(std::uint64_t bytes, KvdSettings settings = {}) {
  settings.under = {"/usr/bin/prlimit", "--fsize=" + std::to_string(bytes)};
  return settings;
}

TEST(FileSizeLimit, BelowASlabIsRefusedWithTheRemedy) {
  const RuntimeFolder folder;
  KvdProcess kvd(folder, limited(1 << 20));
  EXPECT_EQ(kvd.wait(), 1);
  EXPECT_THAT(kvd.log(), AllOf(HasSubstr("LimitFSIZE"), HasSubstr("no slab of 2097152 bytes")));
}

TEST(FileSizeLimit, BelowASegmentCostsTheDiskAlone) {
  const RuntimeFolder folder, disk;
  // A file of 32 MiB is the 64th part.
  KvdProcess kvd(folder, limited(16 << 20, with({disk.path(), "2GiB"})));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Model model(kvd, "llama");
  model.store();
  ASSERT_TRUE(poll_until([&] { return kvd.log().find("LimitFSIZE") != std::string::npos; }))
      << kvd.log();
  model.store();
  EXPECT_EQ(kvd.get("/healthz").status, 200);
  stop(kvd);
}

TEST(DiskProgram, WhatIsNoPlainFileOrNotItsOwnIsRefusedAtOnce) {
  const RuntimeFolder folder, disk;
  const std::string path = disk.file("cache");
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  const std::string config = folder.file("kvd.toml");
  std::ofstream(config) << toml_of(folder, with({path}), free_port(), free_port());
  const auto refusal = [&] {
    const auto run = run_kvd({"--config", config});
    EXPECT_NE(run.status, 0);
    return run.output;
  };
  ASSERT_EQ(::mkfifo((path + "/secret").c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("is not kvd's"));
  ASSERT_EQ(::chmod(path.c_str(), 0777), 0);
  EXPECT_THAT(refusal(), HasSubstr("chmod 700"));
}

}  // namespace
}  // namespace kvd::test
