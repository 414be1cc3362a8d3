#include <algorithm>
#include <string>
#include <string_view>

#include "tests/lab/bench/print.hpp"
#include "tests/lab/bench/serve_figures.hpp"

namespace kvd::bench {
namespace {

struct Series {
  const char* figure;
  const char* label;
  const char* colour;
};
constexpr Series kSeries[] = {{"ttft_attainment", "TTFT", "#4477aa"},
                              {"tbt_attainment", "TBT", "#228833"},
                              {"tpot_attainment", "TPOT", "#ccbb44"}};

constexpr int kLeft = 60, kTop = 60, kHeight = 260, kBar = 18, kGroup = 84;

double y_of(double share) { return kTop + kHeight * (1 - share); }

void print_axes(std::string& out, int width) {
  for (int percent = 0; percent <= 100; percent += 20) {
    const double y = y_of(percent / 100.0);
    print(out, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#ddd'/>\n", kLeft, y, width, y);
    print(out, "<text x='%d' y='%.1f' text-anchor='end'>%d %%</text>\n", kLeft - 6, y + 4, percent);
  }
}

void print_bar(std::string& out, const PolicyRuns& policy, const Series& series, int x) {
  double sum = 0, low = 1, high = 0;
  for (const auto& run : policy.runs) {
    const double value = value_of(run, series.figure);
    sum += value;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const double y = y_of(sum / static_cast<double>(policy.runs.size()));
  print(out, "<rect x='%d' y='%.1f' width='%d' height='%.1f' fill='%s'/>\n", x, y, kBar - 2,
        kTop + kHeight - y, series.colour);
  const int middle = x + kBar / 2 - 1;
  print(out, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='black'/>\n", middle, y_of(low),
        middle, y_of(high));
}

}  // namespace

std::string serve_svg(const ServeStage& stage, const Goals& goals,
                      const std::vector<PolicyRuns>& policies) {
  const int width = kLeft + kGroup * static_cast<int>(policies.size()) + 20;
  std::string out;
  print(out,
        "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
        "font-size='11'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
        width, kTop + kHeight + 90);
  print(out,
        "<text x='%d' y='20' font-size='14'>SLO attainment as delivered: TTFT %.0f ms, TBT %.1f "
        "ms, %.3g requests/s, HBM %s, link %s/s</text>\n",
        kLeft, goals.ttft_s * 1e3, goals.tbt_s * 1e3, stage.rate, stage.hbm.c_str(),
        stage.bandwidth.c_str());
  print_axes(out, width - 20);
  int x = kLeft + 10;
  for (const PolicyRuns& policy : policies) {
    for (int i = 0; i < 3; ++i) print_bar(out, policy, kSeries[i], x + i * kBar);
    print(out, "<text transform='translate(%d,%d) rotate(30)'>%s</text>\n", x, kTop + kHeight + 16,
          policy.policy.c_str());
    x += kGroup;
  }
  for (int i = 0; i < 3; ++i) {
    print(out, "<rect x='%d' y='32' width='10' height='10' fill='%s'/>\n", kLeft + i * 70,
          kSeries[i].colour);
    print(out, "<text x='%d' y='41'>%s</text>\n", kLeft + i * 70 + 14, kSeries[i].label);
  }
  return out + "</svg>\n";
}

}  // namespace kvd::bench
