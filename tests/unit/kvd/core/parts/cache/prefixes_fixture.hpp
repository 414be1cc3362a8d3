#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {

inline constexpr Fingerprint kModel{Digest{{1}}};

/// Requests whose engine tells what their blocks hold.
class PrefixesFixture : public AllPartsTest {
 protected:
  explicit PrefixesFixture(Config config = small_config()) : AllPartsTest(std::move(config)) {}
  ~PrefixesFixture() override { EXPECT_EQ(ground.store.cache.validate(), ""); }

  Digest digest(std::uint8_t text, std::uint32_t block) {
    return Digest{{text, static_cast<std::uint8_t>(block)}};
  }
  void tell(Request& request, std::uint8_t text, const Fingerprint& model = kModel) {
    const auto blocks = static_cast<std::uint32_t>(request.goal.prompt.value / kBlockTokens);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      ASSERT_TRUE(sut.tell(request, model, block, digest(text, block)));
    }
  }
  Request& asked(Session& session, std::int64_t prompt, std::uint8_t text,
                 const Fingerprint& model = kModel) {
    Request& request = submit(session, prompt, 8);
    tell(request, text, model);
    return request;
  }
  /// A request that decodes, with all of its prompt in HBM.
  Request& computed(Session& session, std::int64_t prompt, std::uint8_t text,
                    const Fingerprint& model = kModel) {
    Request& request = asked(session, prompt, text, model);
    EXPECT_EQ(ground.memory.grow(request, Tokens(prompt)), ErrorCode::kOk);
    begin(request);
    request.phase = Phase::kDecode;
    request.progress.tokens = request.progress.planned = Tokens(prompt);
    ground.memory.seal_full_blocks(request);
    return request;
  }
  void begin(Request& request) {
    request.place = Location::kIn;
    request.progress.last_iteration = 1;
    Session& session = ground.requests.session_of(request);
    session.iterations.granted = session.iterations.finished = 1;
    ground.store.tiers.iteration_finished(session.id, 1);
    ground.requests.requeue(request);
  }
  /// Out to DRAM, its copy done.
  void park(Request& request) {
    request.leaving = true;
    swaps.start_leaving(ground.requests.session_of(request));
    if (!request.moves.rotation) return;
    EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  }
  /// A request computed it, rotated out and ended.
  void leave_in_dram(Session& session, std::int64_t prompt, std::uint8_t text) {
    Request& request = computed(session, prompt, text);
    park(request);
    ground.memory.end(request);
  }
  std::vector<SlotId> in_hbm(const Request& request) {
    std::vector<SlotId> slots;
    ground.store.blocks.each_slot(request.table, Tier::kHbm,
                                  [&](SlotId slot) { slots.push_back(slot); });
    return slots;
  }

  Prefixes& sut = ground.prefixes;
};

}  // namespace kvd::core
