#pragma once

#include "kvd/core/parts.hpp"
#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {

/// A fixture for the parts at the end of the list, which need all the others.
class AllPartsTest : public PartsTest, protected Parts {
 protected:
  explicit AllPartsTest(Config config = small_config())
      : PartsTest(std::move(config)), Parts(ground) {}

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
  /// The answer to it; none when it waits.
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

 private:
  std::uint64_t commands_sent = 0;
};

}  // namespace kvd::core
