#include "tests/lab/figures/makers.hpp"

namespace kvd::sim {
namespace {

constexpr const char* kOrbitFlow = "OrbitFlow";
constexpr const char* kLayerKv = "LayerKV";
constexpr const char* kSuperInfer = "SuperInfer";
constexpr const char* kBeyond = "Beyond the papers";
constexpr const char* kArticle = "KV-cache offloading, the article";

}  // namespace

const std::vector<FigureMaker>& figure_makers() {
  using namespace figures;
  static const std::vector<FigureMaker> kMakers = {
      {"of-fig2b", kOrbitFlow, "OrbitFlow Fig. 2b: compute and transfer of a layer", of_fig2b},
      {"of-fig2c", kOrbitFlow, "OrbitFlow Fig. 2c: where TBT crosses its SLO", of_fig2c},
      {"of-fig3", kOrbitFlow, "OrbitFlow Fig. 3: three placements", of_fig3},
      {"of-fig8a", kOrbitFlow, "OrbitFlow Fig. 8a: SLO attainment", of_fig8a},
      {"of-fig8b", kOrbitFlow, "OrbitFlow Fig. 8b: P95 TBT", of_fig8b},
      {"of-fig8c", kOrbitFlow, "OrbitFlow Fig. 8c: end-to-end latency", of_fig8c},
      {"of-fig9", kOrbitFlow, "OrbitFlow Fig. 9: tails, memory, throughput", of_fig9},
      {"of-fig10", kOrbitFlow, "OrbitFlow Fig. 10: tensor parallelism", of_fig10},
      {"of-fig11", kOrbitFlow, "OrbitFlow Fig. 11: context length", of_fig11},
      {"of-fig12", kOrbitFlow, "OrbitFlow Fig. 12: bursts and batch size", of_fig12},
      {"of-fig13", kOrbitFlow, "OrbitFlow Fig. 13: shortest remaining time first", of_fig13},
      {"of-fig14a", kOrbitFlow, "OrbitFlow Fig. 14a: one technique after the other", of_fig14a},
      {"of-fig14b", kOrbitFlow, "OrbitFlow Fig. 14b: what the deposit adds", of_fig14b},
      {"of-fig14c", kOrbitFlow, "OrbitFlow Fig. 14c: whom to pause", of_fig14c},
      {"of-table1", kOrbitFlow, "OrbitFlow Table 1: calls of the solver", of_table1},
      {"of-fig15", kOrbitFlow, "OrbitFlow Fig. 15: pruned and full search", of_fig15},
      {"lk-fig1", kLayerKv, "LayerKV Fig. 1: where TTFT comes from", lk_fig1},
      {"lk-fig4", kLayerKv, "LayerKV Fig. 4: context length", lk_fig4},
      {"lk-fig5", kLayerKv, "LayerKV Fig. 5: degree of parallelism", lk_fig5},
      {"lk-fig6", kLayerKv, "LayerKV Fig. 6: mean TTFT and throughput by load", lk_fig6},
      {"lk-fig7", kLayerKv, "LayerKV Fig. 7: P99 TTFT by load", lk_fig7},
      {"lk-fig8", kLayerKv, "LayerKV Fig. 8: SLO violations by load", lk_fig8},
      {"si-fig1", kSuperInfer, "SuperInfer Fig. 1: static offloading policies", si_fig1},
      {"si-fig2", kSuperInfer, "SuperInfer Fig. 2: swap bandwidth", si_fig2},
      {"si-fig16", kSuperInfer, "SuperInfer Fig. 16: attainment by load", si_fig16},
      {"si-fig17", kSuperInfer, "SuperInfer Fig. 17: scheduler and transfer engine", si_fig17},
      {"si-fig18", kSuperInfer, "SuperInfer Fig. 18: alpha", si_fig18},
      {"si-fig19", kSuperInfer, "SuperInfer Fig. 19: beta_F", si_fig19},
      {"si-fig20", kSuperInfer, "SuperInfer Fig. 20: beta_B", si_fig20},
      {"si-fig21", kSuperInfer, "SuperInfer Fig. 21: B_xfer", si_fig21},
      {"si-fig22", kSuperInfer, "SuperInfer Fig. 22: tensor parallelism", si_fig22},
      {"si-fig23", kSuperInfer, "SuperInfer Fig. 23: throughput", si_fig23},
      {"si-fig24", kSuperInfer, "SuperInfer Fig. 24: HBM and the queue", si_fig24},
      {"si-fig25", kSuperInfer, "SuperInfer Fig. 25: gaps under LightLLM's scheduler", si_fig25},
      {"si-table1", kSuperInfer, "SuperInfer Table 1: transfer engines", si_table1},
      {"article-verdicts", kArticle, "Where offloading helps", article_verdicts},
      {"article-crossover", kArticle, "Load or recompute", article_crossover},
      {"beyond-unified", kBeyond, "unified against each system on its own ground", beyond_unified},
      {"beyond-prefill", kBeyond, "One prefill budget for all, at four sizes", beyond_prefill},
      {"beyond-lengths", kBeyond, "Answers that were foreseen wrong", beyond_lengths},
      {"beyond-dram", kBeyond, "What if there were less DRAM", beyond_dram},
      {"beyond-link", kBeyond, "What if the link were slower", beyond_link},
      {"beyond-engines", kBeyond, "Two engines: one pool or two halves", beyond_engines},
  };
  return kMakers;
}

const char* name(Agreement agreement) {
  switch (agreement) {
    case Agreement::kSame:
      return "same";
    case Agreement::kDiffers:
      return "differs";
    case Agreement::kNotSimulated:
      return "not simulated";
  }
  return "";
}

}  // namespace kvd::sim
