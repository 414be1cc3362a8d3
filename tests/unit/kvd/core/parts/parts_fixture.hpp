#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/swaps.hpp"
#include "planner/baselines/all_policies.hpp"

namespace kvd::core {

constexpr DomainId kA{1}, kB{2};
constexpr DeviceId kFirst{0}, kSecond{1};
constexpr Share kShareA{kA, kFirst}, kShareB{kB, kFirst};
constexpr ClassId kClass{1};
constexpr Bytes kSlab{1024};
constexpr Bytes kSlot{128};  ///< 8 of them a slab
constexpr ClassId kOtherClass{99};
constexpr Bytes kOtherSlot{256};
constexpr std::uint32_t kBlockTokens = 4;

/// Slabs of 1 KiB.
inline Config small_config(std::uint32_t hbm_slabs = 4, std::uint32_t dram_slabs = 8,
                           std::uint32_t devices = 1) {
  Config config;
  config.policies = &planner::all_policies();
  config.hbm.assign(devices, {.tier = Tier::kHbm, .slab_bytes = kSlab, .slabs = hbm_slabs});
  config.dram = {.tier = Tier::kDram, .slab_bytes = kSlab, .slabs = dram_slabs};
  config.tuning.rotation.b_xfer = Bytes(1 << 20);
  return config;
}

/// The ground that parts of the Controller stand on, with engines and requests made by hand. A test
/// builds the part it is about, and those that this one needs.
class PartsTest : public ::testing::Test {
 protected:
  explicit PartsTest(Config config = small_config()) : ground(std::move(config)) {
    ground.context.effects = &effects;
    EXPECT_TRUE(ground.store.tiers.add_class(kClass, kSlot).ok());
  }
  ~PartsTest() override {
    EXPECT_EQ(ground.requests.validate(), "");
    EXPECT_EQ(ground.store.tiers.validate(), "");
    EXPECT_EQ(ground.store.blocks.validate(), "");
  }

  /// An engine with slots of 128 bytes and blocks of 4 tokens; `maps`: all HBM that its domain can
  /// have, so that it is granted slots at once.
  Session& attach(DomainId domain = kA, std::uint32_t groups = 2, bool maps = true,
                  const Devices& devices = {}, std::uint32_t ranks = 1) {
    Session session;
    session.id = EngineId(++engines);
    session.info.name = "engine-" + std::to_string(engines);
    session.info.domain = domain;
    session.info.domain_name = "domain-" + std::to_string(domain.value);
    session.info.streams_layers = true;
    session.info.devices = devices;
    session.class_id = kClass;
    session.shape = {.layers = groups,
                     .layers_per_block = 1,
                     .block_tokens = kBlockTokens,
                     .bytes_per_token_per_layer = Bytes(kSlot.value / kBlockTokens),
                     .ranks = ranks};
    ground.store.tiers.engine_came(session.id);
    if (maps) map_all(session);
    return ground.requests.sessions().emplace(session.id, session).first->second;
  }

  /// A session whose slots have another size: 256 bytes, in slabs of their own.
  Session& attach_other_class(DomainId domain = kA) {
    EXPECT_TRUE(ground.store.tiers.add_class(kOtherClass, kOtherSlot).ok());
    Session& session = attach(domain);
    session.class_id = kOtherClass;
    session.shape.bytes_per_token_per_layer = Bytes(kOtherSlot.value / kBlockTokens);
    return session;
  }

  Request& submit(Session& session, std::int64_t prompt, std::int64_t max_new) {
    Request request;
    request.key = {session.id, RequestId(++requests)};
    request.goal.prompt = Tokens(prompt);
    request.goal.max_new = Tokens(max_new);
    request.table = store::BlockTable(session.groups());
    request.times.arrived = ground.context.now;
    return ground.requests.add(std::move(request));
  }

  /// A request that decodes in HBM and has this many tokens in its blocks.
  Request& running(Session& session, std::int64_t tokens, std::int64_t max_new = 8) {
    Request& request = submit(session, tokens, max_new);
    EXPECT_EQ(ground.memory.grow(request, Tokens(tokens)), ErrorCode::kOk);
    request.place = Location::kIn;
    request.phase = Phase::kDecode;
    request.progress.tokens = request.progress.planned = Tokens(tokens);
    ground.requests.requeue(request);
    ground.memory.seal_full_blocks(request);
    return request;
  }

  /// A request that is only in DRAM.
  Request& parked(Swaps& swaps, Session& session, std::int64_t tokens) {
    Request& request = running(session, tokens);
    request.leaving = true;
    swaps.start_leaving(session);
    EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
    EXPECT_EQ(request.place, Location::kParked);
    return request;
  }

  /// The engine has been sent, and maps, every slab that its domain can have.
  void map_all(const Session& session) {
    for (const DeviceId device : session.devices().all()) {
      store::Taker taker = session.taker();
      taker.device = device;
      const std::int64_t all = ground.store.hbm.of(device).available(session.info.domain) / kSlot;
      const auto count = static_cast<std::uint32_t>(all);
      pool::SlotGrant grant = ground.store.tiers.take(Tier::kHbm, taker, count);
      for (const SendSlab& sent : emitted<SendSlab>()) {
        if (sent.engine != session.id) continue;
        EXPECT_TRUE(ground.store.tiers.mappings().mapped(session.id, sent.slab));
      }
      if (grant.code == ErrorCode::kWouldBlock) {
        grant = ground.store.tiers.take(Tier::kHbm, taker, count);
      }
      ground.store.tiers.free(Tier::kHbm, grant.slots);
    }
  }

  /// The next event comes after a while.
  void pass(Nanoseconds time) {
    ground.context.now += time;
    (void)ground.memory.go_on();
  }

  /// All orders of one kind to the shell since the start.
  template <class E>
  std::vector<E> emitted() {
    ground.context.pass_on_orders();
    std::vector<E> found;
    for (const Effect& effect : effects) {
      if (const E* one = std::get_if<E>(&effect)) found.push_back(*one);
    }
    return found;
  }

  Bytes free_hbm(Share share = kShareA) {
    return ground.store.hbm.of(share.device).available(share.domain);
  }
  Bytes free_dram(DomainId domain = kA) { return ground.store.dram.available(domain); }

  Ground ground;
  std::vector<Effect> effects;

 private:
  std::uint32_t engines = 0;
  std::uint64_t requests = 0;
};

}  // namespace kvd::core
