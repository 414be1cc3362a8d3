#include <cmath>

#include "ipc/vocabulary/deposit.hpp"
#include "planner/tool/decisions.hpp"
#include "planner/tool/step_fields.hpp"

namespace kvd::planner {
namespace {

struct DepositQuestion {
  Seconds slo{1};
  std::vector<Seconds> gaps;
  bool finished = true;
};

Result<DepositQuestion> read_deposit(const Json& json) {
  Fields fields(json, "");
  DepositQuestion question;
  question.slo = Seconds(fields.positive("slo_s"));
  question.finished = fields.flag("finished", true);
  double total = question.slo.count();
  for (const auto& gap : fields.array("generated_gaps_s", true)) {
    if (!gap.is_number() || !(gap.get<double>() >= 0) || !std::isfinite(gap.get<double>())) {
      fields.fail("every generated_gaps_s must be a finite number, 0 or more");
      break;
    }
    question.gaps.emplace_back(gap.get<double>());
    total += gap.get<double>();
  }
  if (!std::isfinite(total)) fields.fail("the sum of generated_gaps_s must be finite");
  KVD_TRY(fields.status());
  return question;
}

}  // namespace

Result<OrderedJson> plan_deposit(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto question, read_deposit(snapshot));
  TokenDeposit<Seconds> deposit(question.slo, Seconds(0));
  std::vector<double> delivered_gaps;
  Seconds made{0}, delivered{0};
  const auto deliver = [&](Seconds at) {
    delivered_gaps.push_back((at - delivered).count());
    delivered = at;
  };
  for (const auto gap : question.gaps) deposit.generated(made += gap, deliver);
  const auto left = deposit.left();
  if (question.finished) deposit.finish(made, deliver);
  return OrderedJson{{"violations", deposit.violations()},
                     {"left", left},
                     {"delivered_gaps_s", std::move(delivered_gaps)}};
}

}  // namespace kvd::planner
