#include "kvd/core/moves/skips.hpp"

namespace kvd::core {

void Skips::go_on(Session& session) {
  if (!context_.load->overlaps() || !session.info.skips_ahead) return;
  requests_.each_inside_of(session.id, [&](Request& request) {
    request.content.awaits_skip = false;
    request.content.awaits_tail = TimePoint(0);
    if (session.streaming || !may_skip(request)) return;
    prefixes_.bring_behind(request);
    if (!prefixes_.knows_behind(request)) {
      request.content.awaits_tail = prefixes_.worth_waiting(request).value_or(TimePoint(0));
      return;
    }
    const bool runs = request.progress.last_iteration > session.iterations.finished;
    request.content.awaits_skip = runs;
    if (!runs) skip(session, request);
  });
}

void Skips::on_read() {
  if (!context_.load->overlaps()) return;
  for (auto& [id, session] : requests_.sessions()) {
    const bool idle = session.iterations.finished == session.iterations.granted;
    if (idle && !session.life.dying) go_on(session);
  }
}

// The request is whole in HBM, and nothing is being decided about it.
bool Skips::may_skip(const Request& request) {
  const Moves& moves = request.moves;
  return request.prefills() && request.progress.planned < request.goal.prompt &&
         request.progress.last_iteration > 0 && request.verdict == Verdict::kNone &&
         !request.leaving && !request.promised && !request.layerwise && !moves.rotation &&
         !moves.in && !moves.fetch && request.layers.away.empty() && request.complete();
}

void Skips::skip(Session& session, Request& request) {
  const std::int64_t named = std::int64_t{request.content.named} * session.shape.block_tokens;
  if (request.progress.tokens != Tokens(named)) return;
  // Its blocks for tokens to come hold nothing, and other blocks take their places now.
  memory_.release_unwritten(session, request);
  const std::uint32_t own = request.content.named;
  const Found found = prefixes_.find_behind(request);
  if (found == Found::kNothing) return;
  if (found == Found::kInDram && swaps_.swap_in(request) != ErrorCode::kOk) {
    return prefixes_.stay_behind(request);
  }
  prefixes_.count(request, own);
  context_.counters.prefixes.overlapped +=
      std::uint64_t{request.content.named - own} * session.shape.block_tokens;
  if (found == Found::kInHbm) request.content.behind.reset();
  requests_.progressed(session.id, session.info.domain);
}

}  // namespace kvd::core
