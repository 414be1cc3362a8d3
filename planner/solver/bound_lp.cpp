#include "planner/solver/bound_lp.hpp"

#include <glpk.h>

#include <algorithm>

namespace kvd::planner {
namespace {

struct GlpkFault {};

void raise_fault(void*) { throw GlpkFault{}; }

// GLPK keeps an environment per thread. This one is silent, turns faults into exceptions instead of
// abort(), and is freed with the thread.
class Environment {
 public:
  Environment() { prepare(); }
  ~Environment() { glp_free_env(); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  // After a fault the only legal call is glp_free_env; it frees every object of the thread.
  void restart() {
    glp_free_env();
    prepare();
    ++generation_;
  }
  [[nodiscard]] int generation() const { return generation_; }

 private:
  static void prepare() {
    glp_term_out(GLP_OFF);
    glp_error_hook(raise_fault, nullptr);
  }
  int generation_ = 0;
};

Environment& environment() {
  thread_local Environment of_this_thread;
  return of_this_thread;
}

glp_smcp dual_simplex(std::optional<Nanoseconds> longest) {
  glp_smcp parameters;
  glp_init_smcp(&parameters);
  parameters.msg_lev = GLP_MSG_OFF;
  parameters.meth = GLP_DUALP;
  if (longest) {
    const auto whole = std::chrono::ceil<std::chrono::milliseconds>(*longest).count();
    parameters.tm_lim = static_cast<int>(std::clamp<std::int64_t>(whole, 1, 1'000'000'000));
  }
  return parameters;
}

}  // namespace

struct BoundLp::Prob {
  Prob() : generation(environment().generation()), glp(glp_create_prob()) {}
  ~Prob() {
    if (alive()) glp_delete_prob(glp);
  }
  Prob(const Prob&) = delete;
  Prob& operator=(const Prob&) = delete;
  [[nodiscard]] bool alive() const { return generation == environment().generation(); }

  int generation;
  glp_prob* glp;
  // Row under construction, 1-based as GLPK counts.
  std::vector<int> columns{0};
  std::vector<double> values{0.0};

  void set_row(int row) {
    glp_set_mat_row(glp, row, static_cast<int>(columns.size()) - 1, columns.data(), values.data());
  }
  void begin_row() {
    columns.resize(1);
    values.resize(1);
  }
  void put(std::size_t column, double value) {
    if (value == 0) return;
    columns.push_back(static_cast<int>(column));
    values.push_back(value);
  }
};

BoundLp::BoundLp(double total, double capacity, double seconds, std::span<const MemoryRow> memory,
                 std::optional<Nanoseconds> longest)
    : patterns_(memory.front().weight.size()),
      memory_rows_(memory.size()),
      total_(total),
      seconds_(seconds),
      longest_(longest),
      load_(patterns_, 0.0) {
  try {
    prob_ = std::make_unique<Prob>();
    build(capacity, memory);
  } catch (const GlpkFault&) {
    environment().restart();
  }
}

BoundLp::~BoundLp() = default;

// Columns: the share of each pattern in the batch's blocks, then T in typical Ts. Rows: shares sum
// to 1, memory, cuts.
void BoundLp::build(double capacity, std::span<const MemoryRow> memory) {
  auto* glp = prob_->glp;
  glp_add_cols(glp, static_cast<int>(patterns_) + 1);
  for (std::size_t k = 1; k <= patterns_; ++k) {
    glp_set_col_bnds(glp, static_cast<int>(k), GLP_LO, 0, 0);
  }
  const int latency = static_cast<int>(patterns_) + 1;
  glp_set_col_bnds(glp, latency, GLP_LO, 0, 0);
  glp_set_obj_coef(glp, latency, 1);
  glp_add_rows(glp, 1 + static_cast<int>(memory_rows_));
  glp_set_row_bnds(glp, 1, GLP_FX, 1, 1);
  prob_->begin_row();
  for (std::size_t k = 1; k <= patterns_; ++k) prob_->put(k, 1);
  prob_->set_row(1);
  for (std::size_t m = 0; m < memory_rows_; ++m) {
    const int row = static_cast<int>(m) + 2;
    glp_set_row_bnds(glp, row, GLP_UP, 0, capacity / total_);
    prob_->begin_row();
    for (std::size_t k = 0; k < patterns_; ++k) prob_->put(k + 1, memory[m].weight[k]);
    prob_->set_row(row);
  }
}

void BoundLp::add(const PathCut& cut) {
  ++cuts_;
  if (!prob_ || !prob_->alive()) return;
  try {
    const int row = glp_add_rows(prob_->glp, 1);
    glp_set_row_bnds(prob_->glp, row, GLP_LO, cut.constant / seconds_, 0);
    prob_->begin_row();
    for (std::size_t k = 0; k < patterns_; ++k) {
      prob_->put(k + 1, -cut.slope[k] * total_ / seconds_);
    }
    prob_->put(patterns_ + 1, 1);
    prob_->set_row(row);
  } catch (const GlpkFault&) {
    environment().restart();
  }
}

bool BoundLp::solve(std::span<const double> fixed) {
  if (!prob_ || !prob_->alive()) return false;
  try {
    for (std::size_t k = 0; k < patterns_; ++k) {
      glp_set_col_bnds(prob_->glp, static_cast<int>(k) + 1, GLP_LO, fixed[k] / total_, 0);
    }
    const auto parameters = dual_simplex(longest_);
    const int outcome = glp_simplex(prob_->glp, &parameters);
    if (outcome == GLP_ETMLIM) return false;
    if (outcome != 0) {
      glp_std_basis(prob_->glp);
      if (glp_simplex(prob_->glp, &parameters) != 0) return false;
    }
    if (glp_get_status(prob_->glp) != GLP_OPT) return false;
    read_answer();
    return true;
  } catch (const GlpkFault&) {
    environment().restart();
    return false;
  }
}

void BoundLp::read_answer() {
  auto* glp = prob_->glp;
  for (std::size_t k = 0; k < patterns_; ++k) {
    load_[k] = glp_get_col_prim(glp, static_cast<int>(k) + 1) * total_;
  }
  multipliers_.memory.assign(memory_rows_, 0.0);
  for (std::size_t m = 0; m < memory_rows_; ++m) {
    const double dual = glp_get_row_dual(glp, static_cast<int>(m) + 2);
    multipliers_.memory[m] = std::max(0.0, -dual) * seconds_ / total_;
  }
  multipliers_.cut.assign(cuts_, 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < cuts_; ++i) {
    const int row = static_cast<int>(2 + memory_rows_ + i);
    sum += multipliers_.cut[i] = std::max(0.0, glp_get_row_dual(glp, row));
  }
  // Only cuts bound T, so the weights sum to 1 except for rounding.
  for (auto& weight : multipliers_.cut) weight = sum > 0 ? weight / sum : 0;
}

}  // namespace kvd::planner
