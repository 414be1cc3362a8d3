// The placement problem written down a second time, as a mixed integer programme for glp_intopt: an
// oracle for batches too large to enumerate.
#include <glpk.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "planner/solver/placement_solver.hpp"
#include "tests/unit/planner/seed.hpp"
#include "tests/unit/planner/solver/problems.hpp"

namespace kvd::planner::testing {
namespace {

// One choice y[r][k] per request, the ends E[l] of the layers, and a row for every stretch (j, l)
// of layers: E[l] >= E[j-1] + c[l] + beta * blocks released at or after j and due by l.
class Milp {
 public:
  explicit Milp(const PlacementProblem& problem) : problem_(problem), glp_(glp_create_prob()) {
    glp_term_out(GLP_OFF);
    glp_add_cols(glp_, static_cast<int>(requests() * patterns() + layers()));
    for (std::size_t r = 0; r < requests(); ++r) choose_one(r);
    for (std::size_t l = 1; l <= layers(); ++l) glp_set_col_bnds(glp_, end(l), GLP_LO, 0, 0);
    glp_set_obj_coef(glp_, end(layers()), 1);
    memory();
    for (std::size_t l = 1; l <= layers(); ++l) {
      for (std::size_t j = 1; j <= l; ++j) stretch(j, l);
    }
  }
  ~Milp() { glp_delete_prob(glp_); }
  Milp(const Milp&) = delete;
  Milp& operator=(const Milp&) = delete;

  std::optional<double> solve() {
    glp_iocp parameters;
    glp_init_iocp(&parameters);
    parameters.msg_lev = GLP_MSG_OFF;
    parameters.presolve = GLP_ON;
    if (glp_intopt(glp_, &parameters) != 0 || glp_mip_status(glp_) != GLP_OPT) return std::nullopt;
    return glp_mip_obj_val(glp_);
  }

 private:
  [[nodiscard]] std::size_t requests() const { return problem_.blocks.size(); }
  [[nodiscard]] std::size_t patterns() const { return problem_.candidates.size(); }
  [[nodiscard]] std::size_t layers() const { return problem_.model.layers(); }
  [[nodiscard]] int choice(std::size_t r, std::size_t k) const {
    return static_cast<int>(r * patterns() + k) + 1;
  }
  [[nodiscard]] int end(std::size_t l) const {
    return static_cast<int>(requests() * patterns() + l);
  }

  void add_row(int type, double bound) {
    const int row = glp_add_rows(glp_, 1);
    glp_set_row_bnds(glp_, row, type, bound, bound);
    glp_set_mat_row(glp_, row, static_cast<int>(columns_.size()) - 1, columns_.data(),
                    values_.data());
    columns_.resize(1);
    values_.resize(1);
  }
  void put(int column, double value) {
    columns_.push_back(column);
    values_.push_back(value);
  }

  void choose_one(std::size_t r) {
    for (std::size_t k = 0; k < patterns(); ++k) {
      glp_set_col_kind(glp_, choice(r, k), GLP_BV);
      put(choice(r, k), 1);
    }
    add_row(GLP_FX, 1);
  }

  void memory() {
    for (std::size_t r = 0; r < requests(); ++r) {
      for (std::size_t k = 0; k < patterns(); ++k) {
        const auto memory = placement_memory(
            layers(),
            std::vector<StreamedRequest>{{problem_.blocks[r], problem_.candidates[k].offloaded}});
        put(choice(r, k), static_cast<double>((memory.resident + memory.staging_strict).value));
      }
    }
    add_row(GLP_UP, static_cast<double>(problem_.capacity.value));
  }

  void stretch(std::size_t j, std::size_t l) {
    put(end(l), 1);
    if (j > 1) put(end(j - 1), -1);
    for (std::size_t k = 0; k < patterns(); ++k) {
      int transfers = 0;
      std::size_t release = 1;
      for (const auto due : problem_.candidates[k].offloaded) {
        if (release >= j && static_cast<std::size_t>(due) <= l) ++transfers;
        release = static_cast<std::size_t>(due) + 1;
      }
      for (std::size_t r = 0; r < requests(); ++r) {
        const double work =
            static_cast<double>(problem_.blocks[r].value) * problem_.model.per_block.count();
        if (transfers > 0) put(choice(r, k), -work * transfers);
      }
    }
    // Layer l itself runs after the one before it: the stretch (l, l) without a transfer says so.
    add_row(GLP_LO, problem_.model.compute[l - 1].count());
  }

  const PlacementProblem& problem_;
  glp_prob* glp_;
  std::vector<int> columns_{0};
  std::vector<double> values_{0.0};
};

TEST(MilpOracle, TheSearchFindsTheOptimumOfLargerBatches) {
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed());
  std::mt19937_64 random(test_seed());
  const ManualClock no_time;
  SolveLimits limits;
  limits.tolerance = 1e-7;
  int solved = 0;
  for (int round = 0; round < 25; ++round) {
    auto problem = random_problem(random, 6);
    problem.buffer = BufferRule::kStrict;
    problem.open_blocks = false;
    problem.current.clear();
    problem.model.per_transfer = Seconds(0);
    problem.model.compute.resize(std::min<std::size_t>(problem.model.layers(), 16));
    problem.candidates = candidates(static_cast<std::int32_t>(problem.model.layers()),
                                    CandidateSet::kDistances, BufferRule::kStrict);
    const auto solution = *solve_placement(problem, limits, no_time);
    const auto oracle = Milp(problem).solve();
    ASSERT_EQ(oracle.has_value(), !solution.choice.empty()) << "round " << round;
    if (!oracle) continue;
    ++solved;
    ASSERT_NEAR(solution.latency.count(), *oracle, 1e-5) << "round " << round;
    ASSERT_LE(solution.lower_bound.count(), *oracle + 1e-5);
  }
  EXPECT_GE(solved, 10);
}

}  // namespace
}  // namespace kvd::planner::testing
