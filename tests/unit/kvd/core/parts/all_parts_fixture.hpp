#pragma once

#include "kvd/core/admission.hpp"
#include "kvd/core/claims.hpp"
#include "kvd/core/commands.hpp"
#include "kvd/core/compactor.hpp"
#include "kvd/core/dram_copies.hpp"
#include "kvd/core/layer_plans.hpp"
#include "kvd/core/needs.hpp"
#include "kvd/core/promises.hpp"
#include "kvd/core/ranks.hpp"
#include "kvd/core/regions.hpp"
#include "kvd/core/replies.hpp"
#include "kvd/core/reports.hpp"
#include "kvd/core/rotation.hpp"
#include "kvd/core/sessions.hpp"
#include "kvd/core/silence.hpp"
#include "kvd/core/standstills.hpp"
#include "kvd/core/steps.hpp"
#include "kvd/core/streams.hpp"
#include "kvd/core/supply.hpp"
#include "kvd/core/swaps.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {

/// For the parts at the end of the list, which stand on all the others.
class AllPartsTest : public PartsTest {
 protected:
  explicit AllPartsTest(Config config = small_config()) : PartsTest(std::move(config)) {}

  /// A command that comes now and may wait for a second.
  template <class Body>
  Command command(const Session& session, Body body, std::uint32_t rank = 0) {
    Command made;
    made.engine = session.id;
    made.reply_to = ReplyTo(++commands_sent);
    made.deadline = ground.context.now + std::chrono::seconds(1);
    made.body = std::move(body);
    made.rank = rank;
    return made;
  }
  /// The answer to it; none: it waits.
  std::optional<Reply> answer_to(const Command& asked) {
    for (const Reply& reply : emitted<Reply>()) {
      if (reply.reply_to == asked.reply_to) return reply;
    }
    return std::nullopt;
  }
  ErrorCode code_of(const std::optional<Reply>& reply) {
    if (!reply) return ErrorCode::kInternal;
    const Error* error = std::get_if<Error>(&reply->body);
    return error ? error->code : ErrorCode::kOk;
  }

  Compactor compactor{ground};
  DramCopies copies{ground};
  Streams streams{ground};
  Needs needs{ground};
  Supply supply{ground, needs};
  Swaps swaps{ground, copies, streams, compactor};
  Promises promises{ground, supply};
  Regions regions{ground, copies, needs, supply, promises};
  Claims claims{ground, copies, streams, needs, supply, swaps, promises, regions};
  LayerPlans plans{ground};
  Admission admission{ground, needs, supply};
  Rotation rotation{ground, copies, needs, supply, promises};
  Reports reports{ground, copies};
  Replies replies{ground, streams};
  Silence silence{ground, needs, regions};
  Standstills standstills{ground, needs, supply, silence};
  Steps steps{ground, compactor, copies,    streams,  needs,   swaps,   promises,   regions,
              claims, plans,     admission, rotation, reports, replies, standstills};
  Ranks ranks{ground, swaps, claims, steps};
  Sessions sessions{ground, streams, regions, claims};
  Commands commands{ground, needs, supply, swaps, regions, claims, plans, steps, ranks};

 private:
  std::uint64_t commands_sent = 0;
};

}  // namespace kvd::core
