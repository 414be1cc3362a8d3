#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kvd/daemon/config/config.hpp"
#include "tests/unit/kvd/daemon/config_fixture.hpp"

namespace kvd::daemon {
namespace {
using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

TEST(Faults, DefaultsHaveNone) { EXPECT_THAT(faults(Config{}), IsEmpty()); }

TEST(ConfigCheck, BurstsMayComeInARow) {
  Config config;
  config.cuda.burst = Nanoseconds(0);
  EXPECT_THAT(faults(config), IsEmpty());
}

struct Fault {
  const char* start;
  std::function<void(Config&)> spoil;
};

const std::vector<Fault> kFaults = {
    {"pool.hbm: must be from 0 to 1 PiB", [](Config& c) { c.hbm = Bytes(-1); }},
    {"pool.dram: must be from 0 to 1 PiB", [](Config& c) { c.dram = Bytes(INT64_MAX); }},
    {"pool.reserve: must be", [](Config& c) { c.reserve = Bytes(-5); }},
    {"cuda.burst: must be from 5us to 10ms",
     [](Config& c) { c.cuda.burst = std::chrono::microseconds(4); }},
    {"cuda.burst: must be", [](Config& c) { c.cuda.burst = std::chrono::milliseconds(11); }},
    {"cuda.watchdog: must be longer than zero",
     [](Config& c) { c.cuda.watchdog = Nanoseconds(0); }},
    {"pool.slab: 3MiB is no multiple", [](Config& c) { c.slab = 3 * kMiB; }},
    {"pool.hbm: 1 MiB is less than one slab (2 MiB)", [](Config& c) { c.hbm = kMiB; }},
    {"pool.hbm: 256 MiB is less than one slab (512 MiB)", [](Config& c) { c.slab = 512 * kMiB; }},
    {"pool.dram: 32 MiB is less than one slab", [](Config& c) { c.dram = 32 * kMiB; }},
    {"pool.dram: 64 GiB makes 32768 slabs",
     [](Config& c) {
       c.slab = 2 * kMiB;
       c.dram = 64 * kGiB;
     }},
    {"pool.hbm: the domains are guaranteed 320 MiB (in whole slabs), the pool has 256 MiB",
     [](Config& c) {
       c.domains = {domain_of("a", {1}, 129 * kMiB), domain_of("b", {}, 127 * kMiB)};
     }},
    {"pool.dram: the domains are guaranteed",
     [](Config& c) {
       c.domains = {domain_of("a")};
       c.domains[0].dram_guarantee = kGiB + Bytes(1);
     }},
    {"disk.path: \"cache\" does not begin with /", [](Config& c) { c.disk.path = "cache"; }},
    {"disk.size: must be from 16 MiB to 1 PiB", [](Config& c) { c.disk.size = kMiB; }},
    {"disk.floor: must be", [](Config& c) { c.disk.floor = Bytes(-1); }},
    {"disk.daily_writes: must not be negative", [](Config& c) { c.disk.daily_writes = Bytes(-1); }},
    {"cache.retain_share: must be from 0 to 0.9", [](Config& c) { c.disk.retain.share = 0.95; }},
    {"cache.retain_most: must be more than nothing",
     [](Config& c) { c.disk.retain.most = Nanoseconds(0); }},
    {"disk.touches: must be from 1 to 100", [](Config& c) { c.disk.touches = 0; }},
    {"engine.step_timeout: ", [](Config& c) { c.step_timeout = Nanoseconds(0); }},
    {"engine.evict_after: ", [](Config& c) { c.evict_after = Nanoseconds(-1); }},
    {"engine.standstill_after: ", [](Config& c) { c.standstill_after = Nanoseconds(-1); }},
    {"engine.max_requests: ", [](Config& c) { c.max_requests = 0; }},
    {"engine.max_engines: ", [](Config& c) { c.max_engines = UINT32_MAX; }},
    {"link.bandwidth: ", [](Config& c) { c.link_bandwidth.value = -1; }},
    {"admin.address: ", [](Config& c) { c.admin_address = "0.0.0.0"; }},
    {"admin.address: ", [](Config& c) { c.admin_address = "example.org"; }},
    {"admin.address: ", [](Config& c) { c.admin_address = "localhost"; }},
    {"metrics.address: ", [](Config& c) { c.metrics_address = "::"; }},
    {"metrics.address: ", [](Config& c) { c.metrics_address = "0:0:0:0:0:0:0:1"; }},
    {"metrics.address: ", [](Config& c) { c.metrics_address = "128.0.0.1"; }},
    {"admin.port: ", [](Config& c) { c.admin_port = 0; }},
    {"metrics.port: ", [](Config& c) { c.metrics_port = c.admin_port; }},
    {"admin.user: 4294967295 is no user's", [](Config& c) { c.admin_process.user = "4294967295"; }},
    {"admin.user: ", [](Config& c) { c.admin_process.user = "99999999999"; }},
    {"paths.runtime_dir: ", [](Config& c) { c.runtime_dir = std::string(96, 'x'); }},
    {"slo.default.tbt: ", [](Config& c) { c.tuning.slo["default"].tbt = Nanoseconds(-1); }},
    {"rotation.alpha: ", [](Config& c) { c.tuning.rotation.alpha = -1; }},
    {"device: must be 1 to 64, are 0", [](Config& c) { c.devices.clear(); }},
    {"device: must be 1 to 64, are 65",
     [](Config& c) {
       c.backend = BackendChoice::kHost;
       c.devices.resize(65);
     }},
    {"device.1.gpu: \"0\" is another device's too",
     [](Config& c) {
       c.devices = {{"0"}, {"0"}};
     }},
    {"pool.hbm: 16 GiB makes 8192 slabs of 2 MiB on each device, the most is 16383",
     [](Config& c) {
       c.backend = BackendChoice::kHost;
       c.devices.resize(2);
       c.slab = 2 * kMiB;
       c.hbm = 16 * kGiB;
     }},
    {"domain: ", [](Config& c) { c.domains.clear(); }},
    {"domain.a b: ", [](Config& c) { c.domains[0].name = "a b"; }},
    {"domain.default.slo_class: ", [](Config& c) { c.domains[0].slo_class = "none"; }},
    {"domain.default.hbm_guarantee: ", [](Config& c) { c.domains[0].hbm_guarantee = Bytes(-1); }},
    {"domain.default.hbm_maximum: ",
     [](Config& c) {
       c.domains[0].per_user = false;
       c.domains[0].hbm_guarantee = 64 * kMiB;
       c.domains[0].hbm_maximum = 63 * kMiB;
     }},
    {"domain.default.per_user: ", [](Config& c) { c.domains[0].hbm_guarantee = kMiB; }},
    {"domain.default.per_group: ", [](Config& c) { c.domains[0].per_group = true; }},
    {"domain.default.per_group: users",
     [](Config& c) {
       c.domains[0].per_user = false;
       c.domains[0].per_group = true;
       c.domains[0].hbm_guarantee = kMiB;
     }},
    {"domain.uid-7: names", [](Config& c) { c.domains[0].name = "uid-7"; }},
    {"domain.gid-7: names", [](Config& c) { c.domains[0].name = "gid-7"; }},
    {"domain.b: never used",
     [](Config& c) {
       c.domains = {domain_of("a"), domain_of("b", {1})};
     }},
    {"domain.a: the name is used twice", [](Config& c) {
       c.domains = {domain_of("a", {1}), domain_of("a")};
     }}};

TEST(Faults, EachIsReportedOnceAndByKey) {
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.start);
    Config sut;
    fault.spoil(sut);
    EXPECT_THAT(faults(sut), ElementsAre(StartsWith(fault.start)));
  }
}

TEST(Faults, ThereIsNoneAtTheBoundaries) {
  Config sut;
  sut.hbm = 128 * kMiB;
  sut.dram = 64 * kMiB;
  sut.slab = 64 * kMiB;
  sut.domains = {domain_of("a", {1}, 64 * kMiB), domain_of("b", {}, 64 * kMiB)};
  sut.domains[1].hbm_maximum = 64 * kMiB;
  sut.runtime_dir = std::string(94, 'x');
  sut.admin_address = "::1";
  sut.admin_process.user = "4294967294";
  sut.metrics_address = "127.255.0.1";
  sut.step_timeout = Nanoseconds(1);
  EXPECT_THAT(faults(sut), IsEmpty());
}

TEST(Faults, AListenerThatIsOffHasNone) {
  Config sut;
  sut.admin_address = "";
  sut.metrics_port = sut.admin_port;
  EXPECT_THAT(faults(sut), IsEmpty());
  sut.admin_port = 0;
  EXPECT_THAT(faults(sut), IsEmpty());
}

TEST(SlabSize, FitsThePools) {
  struct Case {
    Bytes hbm, dram, slab;
  };
  for (const Case& c : {Case{256 * kMiB, kGiB, 64 * kMiB}, Case{kGiB, kGiB, 64 * kMiB},
                        Case{255 * kMiB, kGiB, 62 * kMiB}, Case{8 * kMiB, kMiB, 2 * kMiB},
                        Case{2 * kMiB, kMiB, 2 * kMiB}, Case{Bytes(0), Bytes(0), 2 * kMiB},
                        Case{1023 * kGiB, kGiB, 64 * kMiB}, Case{1024 * kGiB, kGiB, 128 * kMiB},
                        Case{kGiB, 4096 * kGiB, 512 * kMiB}}) {
    Config sut;
    sut.hbm = c.hbm;
    sut.dram = c.dram;
    EXPECT_EQ(sut.slab_size().value, c.slab.value) << c.hbm.value << " " << c.dram.value;
    sut.slab = 6 * kMiB;
    EXPECT_EQ(sut.slab_size(), 6 * kMiB) << "what is set counts";
  }
}

TEST(Faults, AWrongSlabHidesNoOther) {
  Config sut;
  sut.slab = 3 * kMiB;
  sut.dram = Bytes(1024);
  const std::vector<std::string> found = faults(sut);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].starts_with("pool.slab: 3MiB is no multiple")) << found[0];
  EXPECT_TRUE(found[1].starts_with("pool.dram: 1 KiB is less than one slab")) << found[1];
}

TEST(SlabSize, IsLargerOnAGpuWhereThePoolIs) {
  Config sut;
  sut.backend = BackendChoice::kCuda;
  EXPECT_EQ(sut.slab_size(), 64 * kMiB) << "a quarter of the pool";
  sut.hbm = 64 * kGiB;
  EXPECT_EQ(sut.slab_size(), 256 * kMiB);
}

TEST(SlabSize, TiersRoundDownToWholeSlabs) {
  Config sut;
  sut.hbm = 319 * kMiB;
  sut.dram = kGiB;
  sut.slab = 64 * kMiB;
  EXPECT_EQ(sut.slabs(Tier::kHbm), 4u);
  EXPECT_EQ(sut.slabs(Tier::kDram), 16u);
}

}  // namespace
}  // namespace kvd::daemon
