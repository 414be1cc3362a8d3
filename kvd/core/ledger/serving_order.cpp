#include "kvd/core/ledger/serving_order.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace kvd::core {

ServingOrder::Due::Due(const Context& context)
    : counts_(context.rotation->traits().serves_the_late),
      late_last_(counts_ && context.tuning.rotation.overload == "goodput") {}

Nanoseconds ServingOrder::Due::after(Nanoseconds goal, bool late) const {
  return counts_ ? planner::due_after(goal, late && late_last_) : Nanoseconds(0);
}

ServingOrder::Due::Time ServingOrder::Due::of(const Seen& request,
                                              const Knowledge& knowledge) const {
  const bool late = counts_ && !request.times.has_token && knowledge.hopeless(request);
  return {request.times.arrived + after(request.goal.slo.ttft, late), late};
}

bool ServingOrder::serves_last(const Request& request) const {
  return Due(context_).late_last() && knowledge_.hopeless(request);
}

std::span<Request* const> ServingOrder::in_line(DomainId domain) {
  if (step_of_ == domain) return served_;
  entries_.clear();
  served_.clear();
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end()) return {};
  const Due due(context_);
  for (Request* request : found->second.line)
    entries_.push_back({due.of(*request, knowledge_), request});
  const auto due_first = [](const Entry& a, const Entry& b) {
    return a.due.at != b.due.at ? a.due.at < b.due.at : ByArrival()(a.request, b.request);
  };
  const auto sorted = [&] { return std::is_sorted(entries_.begin(), entries_.end(), due_first); };
  // Usually there is one class, and its late requests came first.
  if (!sorted()) {
    std::stable_partition(entries_.begin(), entries_.end(),
                          [](const Entry& e) { return !e.due.late; });
    if (!sorted()) std::sort(entries_.begin(), entries_.end(), due_first);
  }
  take_turns();
  for (const Entry& entry : entries_) {
    entry.request->order.place = static_cast<std::uint32_t>(served_.size());
    served_.push_back(entry.request);
  }
  return served_;
}

// They usually come in by age.
void ServingOrder::sort(std::vector<Request*>& begun) const {
  if (!context_.rotation->traits().serves_the_late) return;
  const auto due_first = [](const Request* a, const Request* b) {
    return a->times.arrived + a->goal.slo.ttft < b->times.arrived + b->goal.slo.ttft;
  };
  if (std::is_sorted(begun.begin(), begun.end(), due_first)) return;
  std::stable_sort(begun.begin(), begun.end(), due_first);
}

Tokens ServingOrder::work_of(const Request& request) const {
  const Tokens all = request.goal.prompt + knowledge_.reserved_length(request);
  return std::max(Tokens(0), all - request.progress.tokens);
}

// What the engine has made, and what its requests inside are likely to make.
Tokens ServingOrder::had_by(const Session& session) const {
  Tokens had = session.totals.served;
  for (const Request* r : session.inside) had += work_of(*r);
  return had;
}

// A place stays with its goal and with blocks of its size. What stands before it counts as had.
void ServingOrder::take_turns() {
  const auto first = std::find_if(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.due.late; });
  const bool several = std::any_of(first, entries_.end(), [&](const Entry& entry) {
    return entry.due.late && entry.request->key.engine != first->request->key.engine;
  });
  if (!several) return;
  struct Turns {
    std::map<EngineId, Tokens> had;
    /// Includes the tokens that their engines have had by then.
    std::vector<std::pair<Tokens, Request*>> members;
    std::size_t taken = 0;
  };
  std::map<std::pair<Nanoseconds, ClassId>, Turns> classes;
  const auto turns_of = [&](const Request& r) -> Turns& {
    return classes[{r.goal.slo.ttft, r.session->class_id}];
  };
  for (auto at = first; at != entries_.end(); ++at) {
    if (!at->due.late) continue;
    Request& r = *at->request;
    Turns& turns = turns_of(r);
    const auto [engine, is_first] = turns.had.try_emplace(r.key.engine);
    if (is_first) engine->second = had_by(*r.session);
    turns.members.emplace_back(engine->second, &r);
    engine->second += work_of(r);
  }
  for (auto& [id, turns] : classes) {
    if (turns.had.size() < 2) continue;
    std::stable_sort(turns.members.begin(), turns.members.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  for (auto at = first; at != entries_.end(); ++at) {
    if (!at->due.late) continue;
    Turns& turns = turns_of(*at->request);
    at->request = turns.members[turns.taken++].second;
  }
}

}  // namespace kvd::core
