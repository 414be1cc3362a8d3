#include "kvd/core/ledger/serving_order.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace kvd::core {

namespace {

bool puts_the_late_last(const Context& context) {
  return context.rotation->traits().serves_the_late &&
         context.tuning.rotation.overload == "goodput";
}

}  // namespace

ServingOrder::Entry ServingOrder::entry_of(Request& request) const {
  const bool late = context_.rotation->traits().serves_the_late && knowledge_.hopeless(request);
  return {request.times.arrived + due_after(context_, request.goal.slo.ttft, late), late, &request};
}

Nanoseconds ServingOrder::due_after(const Context& context, Nanoseconds goal, bool late) {
  if (!context.rotation->traits().serves_the_late) return Nanoseconds(0);
  return planner::due_after(goal, late && puts_the_late_last(context));
}

bool ServingOrder::serves_last(const Request& request) const {
  return puts_the_late_last(context_) && knowledge_.hopeless(request);
}

std::span<Request* const> ServingOrder::in_line(DomainId domain) {
  entries_.clear();
  served_.clear();
  const auto found = requests_.domains().find(domain);
  if (found == requests_.domains().end()) return {};
  for (Request* request : found->second.line) entries_.push_back(entry_of(*request));
  // Mostly there is one class, and those that are late came first.
  std::stable_partition(entries_.begin(), entries_.end(), [](const Entry& e) { return !e.late; });
  const auto due_first = [](const Entry& a, const Entry& b) {
    return a.due != b.due ? a.due < b.due : ByArrival()(a.request, b.request);
  };
  if (!std::is_sorted(entries_.begin(), entries_.end(), due_first)) {
    std::sort(entries_.begin(), entries_.end(), due_first);
  }
  take_turns();
  for (const Entry& entry : entries_) {
    entry.request->order.place = static_cast<std::uint32_t>(served_.size());
    served_.push_back(entry.request);
  }
  return served_;
}

// They come in by age mostly.
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

// What it has made, and what those of its requests that are inside are likely to make.
Tokens ServingOrder::had_by(const Session& session) const {
  Tokens had = session.totals.served;
  for (const Request* r : session.inside) had += work_of(*r);
  return had;
}

// A place stays with its goal and with blocks of its size. What stands before counts as had.
void ServingOrder::take_turns() {
  const auto first =
      std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.late; });
  const bool several = std::any_of(first, entries_.end(), [&](const Entry& entry) {
    return entry.late && entry.request->key.engine != first->request->key.engine;
  });
  if (!several) return;
  struct Turns {
    std::map<EngineId, Tokens> had;
    std::vector<std::pair<Tokens, Request*>> members;  ///< by what their engines have had by then
    std::size_t taken = 0;
  };
  std::map<std::pair<Nanoseconds, ClassId>, Turns> classes;
  const auto turns_of = [&](const Request& r) -> Turns& {
    return classes[{r.goal.slo.ttft, r.session->class_id}];
  };
  for (auto at = first; at != entries_.end(); ++at) {
    if (!at->late) continue;
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
    if (!at->late) continue;
    Turns& turns = turns_of(*at->request);
    at->request = turns.members[turns.taken++].second;
  }
}

}  // namespace kvd::core
