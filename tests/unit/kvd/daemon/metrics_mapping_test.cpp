#include "kvd/daemon/service/metrics_mapping.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

namespace kvd::daemon {
namespace {
using metrics::Sample;
using testing::Eq;
using testing::Optional;
using Labels = std::vector<std::string>;

const admin::DaemonInfo kInfo = {.version = "0.1.0",
                                 .boot_id = std::string(32, 'a'),
                                 .uptime = std::chrono::milliseconds(2500),
                                 .backend = "host",
                                 .page_kinds = {"thp", "4k"},
                                 .attach_endpoint = "/run/kvd/attach.sock",
                                 .command_endpoint = "ipc:///run/kvd/command.sock",
                                 .metrics_endpoint = "127.0.0.1:9470",
                                 .gpu = admin::GpuInfo{"NVIDIA H100", "c0c1c2c3", 300 * kMiB}};

core::EngineStatus engine(std::uint32_t id, const std::string& name) {
  core::EngineStatus e;
  e.id = EngineId(id);
  e.name = name;
  e.domain = "red";
  return e;
}

std::optional<double> value(const core::ControllerStatus& status, std::string_view metric,
                            const Labels& labels) {
  std::vector<Sample> samples;
  collect(status, {}, kInfo, samples);
  for (const auto& family : metrics::families(samples)) {  // aborts on a sample of no metric
    if (family.metric->name != metric) continue;
    for (const auto& series : family.series) {
      if (series.labels == labels) return series.value;
    }
  }
  return std::nullopt;
}

TEST(MetricsMapping, AnEmptyControllerIsAllZeros) {
  const core::ControllerStatus sut;
  EXPECT_THAT(value(sut, "kvd_steps_total", {}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_vlt_max_seconds", {}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_requests", {"rotary"}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_pool_page_info", {"dram", "4k"}), Optional(1.0));
  EXPECT_THAT(value(sut, "kvd_build_info", {"0.1.0", "host"}), Optional(1.0));
  EXPECT_THAT(value(sut, "kvd_uptime_seconds", {}), Optional(2.5));
  EXPECT_THAT(value(sut, "kvd_gpu_info", {"NVIDIA H100", "c0c1c2c3"}), Optional(1.0));
  EXPECT_THAT(value(sut, "kvd_gpu_context_bytes", {}), Optional(300.0 * 1024 * 1024));
}

TEST(MetricsMapping, EveryCatalogueRowIsFed) {
  core::ControllerStatus sut;
  sut.engines.push_back(engine(1, "llama"));
  sut.engines[0].service.classes.emplace_back().name = "chat";
  sut.devices.emplace_back().slabs.push_back({});
  sut.remote_servers.emplace_back().server = "cache-1:6379";
  std::vector<Sample> samples;
  collect(sut, {}, kInfo, samples);
  std::set<std::string_view> fed;
  for (const Sample& sample : samples) fed.insert(sample.metric);
  for (const auto& metric : metrics::catalogue()) {
    EXPECT_TRUE(fed.contains(metric.name)) << metric.name;
  }
}

TEST(MetricsMapping, CountersKeepTheirDirectionAndUnit) {
  core::ControllerStatus sut;
  sut.counters.copies[1] = 3;
  sut.counters.compacted.blocks = 7;
  sut.counters.compacted.bytes = 7168;
  EXPECT_THAT(value(sut, "kvd_blocks_compacted_total", {}), Optional(7.0));
  EXPECT_THAT(value(sut, "kvd_compacted_bytes_total", {}), Optional(7168.0));
  sut.counters.copy_bytes[0] = 4096;
  sut.counters.copy_busy_ns[1] = 1'500'000'000;
  sut.counters.rotations_out = 5;
  sut.counters.rotation_blocked_growth = 2;
  sut.counters.tbt.missed = 9;
  sut.devices.resize(2);
  sut.devices[1].device = DeviceId(1);
  sut.devices[1].link_rate[1] = 2e9;
  sut.devices[1].b_xfer = Bytes(77);
  sut.devices[1].hbm.capacity = kMiB;
  EXPECT_THAT(value(sut, "kvd_copies_total", {"d2h"}), Optional(3.0));
  EXPECT_THAT(value(sut, "kvd_copy_bytes_total", {"h2d"}), Optional(4096.0));
  EXPECT_THAT(value(sut, "kvd_copy_busy_seconds_total", {"d2h"}), Optional(1.5));
  EXPECT_THAT(value(sut, "kvd_rotations_total", {"out"}), Optional(5.0));
  EXPECT_THAT(value(sut, "kvd_rotations_total", {"in"}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_rotation_blocked_total", {"growth"}), Optional(2.0));
  EXPECT_THAT(value(sut, "kvd_slo_intervals_total", {"tbt", "missed"}), Optional(9.0));
  EXPECT_THAT(value(sut, "kvd_link_rate_bytes_per_second", {"d2h", "1"}), Optional(2e9));
  EXPECT_THAT(value(sut, "kvd_link_rate_bytes_per_second", {"d2h", "0"}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_rotation_budget_bytes", {"1"}), Optional(77.0));
  EXPECT_THAT(value(sut, "kvd_pool_capacity_bytes", {"hbm", "1"}), Optional(1048576.0));
}

TEST(MetricsMapping, TiersSlotsAndSlabs) {
  core::ControllerStatus sut;
  sut.tiers[1].capacity = kGiB;
  sut.tiers[1].slots_by_state[static_cast<std::size_t>(pool::SlotState::kSealed)] = 11;
  sut.slabs[1].resize(4);
  sut.slabs[1][2].use = pool::SlabUse::kRegion;
  EXPECT_THAT(value(sut, "kvd_pool_capacity_bytes", {"dram", ""}), Optional(1073741824.0));
  sut.tiers[1].free = Bytes(10);
  sut.held[1] = Bytes(20);
  sut.cached[1] = Bytes(5);
  EXPECT_THAT(value(sut, "kvd_request_bytes", {"dram"}), Optional(20.0));
  EXPECT_THAT(value(sut, "kvd_cache_bytes", {"dram"}), Optional(5.0));
  EXPECT_THAT(value(sut, "kvd_available_bytes", {"dram"}), Optional(15.0));
  EXPECT_THAT(value(sut, "kvd_available_bytes", {"hbm"}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_pool_slots", {"dram", "sealed", ""}), Optional(11.0));
  EXPECT_THAT(value(sut, "kvd_pool_slabs", {"dram", "clean", ""}), Optional(3.0));
  EXPECT_THAT(value(sut, "kvd_pool_slabs", {"dram", "region", ""}), Optional(1.0));
}

TEST(MetricsMapping, EnginesOfOneNameStayApartAndNamesArePrintable) {
  core::ControllerStatus sut;
  sut.engines = {engine(1, "llama"), engine(2, "llama"), engine(3, "a\n\xff")};
  sut.engines[1].dying = true;
  sut.engines[1].responsive = false;
  EXPECT_THAT(value(sut, "kvd_engine_up", {"llama-1", "red"}), Optional(1.0));
  EXPECT_THAT(value(sut, "kvd_engine_up", {"llama-2", "red"}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_engine_unresponsive", {"llama-2", "red"}), Optional(1.0));
  EXPECT_THAT(value(sut, "kvd_engine_up", {"a\?\?-3", "red"}), Optional(1.0));
  EXPECT_THAT(value(sut, "kvd_engines", {}), Optional(3.0));
}

TEST(MetricsMapping, EachClassOfAnEngineHasItsSeries) {
  core::ControllerStatus sut;
  sut.engines = {engine(1, "llama")};
  core::ClassService& chat = sut.engines[0].service.classes.emplace_back();
  chat.name = "chat";
  chat.ttft = {7, 3};
  chat.tbt.missed = 2;
  chat.oldest = {12.5, 2.5};
  chat.ttft_s.add(0.3);
  chat.tbt_s.add(0.03, 4);
  const Labels labels = {"llama-1", "red", "chat"};
  const auto intervals = [&](const char* goal, const char* outcome) {
    return value(sut, "kvd_engine_slo_intervals_total", {"llama-1", "red", "chat", goal, outcome});
  };
  EXPECT_THAT(intervals("ttft", "met"), Optional(7.0));
  EXPECT_THAT(intervals("ttft", "missed"), Optional(3.0));
  EXPECT_THAT(intervals("tbt", "missed"), Optional(2.0));
  EXPECT_THAT(value(sut, "kvd_engine_oldest_wait_seconds", labels), Optional(12.5));
  EXPECT_THAT(value(sut, "kvd_engine_oldest_wait_goals", labels), Optional(2.5));
  EXPECT_THAT(value(sut, "kvd_engine_ttft_seconds", labels), Optional(0.3));
  EXPECT_THAT(value(sut, "kvd_engine_tbt_seconds", labels), Optional(0.12));
  EXPECT_THAT(value(sut, "kvd_engine_wait_seconds", labels), Optional(0.0));
}

TEST(MetricsMapping, LatestRequestDecidesTheLag) {
  core::ControllerStatus sut;
  sut.requests.resize(2);
  sut.requests[0].vlt_s = -4;
  sut.requests[1].vlt_s = -1;
  sut.requests[1].state = core::RequestState::kRunning;
  EXPECT_THAT(value(sut, "kvd_vlt_max_seconds", {}), Optional(-1.0));
  EXPECT_THAT(value(sut, "kvd_requests", {"running"}), Optional(1.0));
}

TEST(MetricsMapping, WhatTheShellCountsIsVisible) {
  ShellCounters shell;
  shell.mover.layer_bytes = kMiB;
  shell.mover.layer_busy = std::chrono::milliseconds(250);
  shell.mover.layer_fetch_retries = 2;
  shell.mover.runs[1].add(kKiB * 64);
  shell.mover.runs[1].add(kKiB * 65);
  shell.mover.runs[1].add(kMiB * 100);
  shell.solver.gap = 0.004;
  shell.solver.replaced = 3;
  std::vector<Sample> samples;
  collect({}, shell, kInfo, samples);
  const auto family = [&, all = metrics::families(samples)](std::string_view name) {
    return *std::find_if(all.begin(), all.end(),
                         [&](const auto& each) { return each.metric->name == name; });
  };
  EXPECT_EQ(family("kvd_layer_fetch_bytes_total").series[0].value, 1048576);
  EXPECT_EQ(family("kvd_layer_fetch_busy_seconds_total").series[0].value, 0.25);
  EXPECT_EQ(family("kvd_layer_fetch_retries_total").series[0].value, 2);
  EXPECT_EQ(family("kvd_plan_gap_ratio").series[0].value, 0.004);
  const auto out = family("kvd_copy_run_bytes").series.front();
  EXPECT_EQ(out.labels, Labels{"d2h"});
  EXPECT_EQ(out.value, static_cast<double>((kKiB * 129 + kMiB * 100).value));
  EXPECT_EQ(out.counts.front(), 1u);
  EXPECT_EQ(out.counts[1], 1u);
  EXPECT_EQ(out.counts.back(), 1u);
}

TEST(MetricsMapping, AChangedTuningIsVisible) {
  core::ControllerStatus sut;
  sut.tuning.rotation.policy = "fcfs";
  sut.tuning.rotation.alpha = 2;
  sut.tuning.slo["batch"].tbt = std::chrono::milliseconds(500);
  EXPECT_THAT(value(sut, "kvd_policy_info", {"rotation", "fcfs"}), Optional(1.0));
  EXPECT_EQ(value(sut, "kvd_policy_info", {"rotation", "lvf"}), std::nullopt);
  EXPECT_THAT(value(sut, "kvd_policy_parameter", {"rotation", "alpha"}), Optional(2.0));
  EXPECT_THAT(value(sut, "kvd_tuning_b_xfer_bytes", {}), Optional(0.0));
  EXPECT_THAT(value(sut, "kvd_slo_goal_seconds", {"batch", "tbt"}), Optional(0.5));
  sut.tuning.rotation.b_xfer = kMiB;
  EXPECT_THAT(value(sut, "kvd_tuning_b_xfer_bytes", {}), Optional(1048576.0));
}

}  // namespace
}  // namespace kvd::daemon
