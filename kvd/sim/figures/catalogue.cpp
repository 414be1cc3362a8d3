#include "kvd/sim/figures/makers.hpp"

namespace kvd::sim {
namespace {

constexpr const char* kOrbitFlow = "OrbitFlow";
constexpr const char* kSuperInfer = "SuperInfer";
constexpr const char* kArticle = "KV-cache offloading, the article";

}  // namespace

const std::vector<FigureMaker>& figure_makers() {
  using namespace figures;
  static const std::vector<FigureMaker> kMakers = {
      {"of-fig2b", kOrbitFlow, "OrbitFlow Fig. 2b: compute and transfer of a layer", of_fig2b},
      {"of-fig2c", kOrbitFlow, "OrbitFlow Fig. 2c: where TBT crosses its SLO", of_fig2c},
      {"of-fig3", kOrbitFlow, "OrbitFlow Fig. 3: three placements", of_fig3},
      {"of-fig15", kOrbitFlow, "OrbitFlow Fig. 15: pruned and full search", of_fig15},
      {"si-table1", kSuperInfer, "SuperInfer Table 1: transfer engines", si_table1},
      {"article-verdicts", kArticle, "Where offloading helps", article_verdicts},
      {"article-crossover", kArticle, "Load or recompute", article_crossover},
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
