#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/lab/bench/benefit_figures.hpp"
#include "tests/lab/bench/print.hpp"

namespace kvd::bench {
namespace {

constexpr const char* kHalvesColour = "#bbbbbb";
constexpr const char* kKvdColour = "#228833";
constexpr int kTop = 96, kHeight = 220, kBottom = kTop + kHeight, kBar = 26;

void print_text(std::string& out, double x, double y, const char* more, const std::string& text) {
  print(out, "<text x='%.1f' y='%.1f' %s>", x, y, more);
  out += text + "</text>\n";
}

/// A bar from the ground line up, with its value above it.
void print_bar(std::string& out, double x, double share, const char* colour, const char* format,
               double value) {
  const double height = kHeight * std::clamp(share, 0.0, 1.0);
  print(out, "<rect x='%.1f' y='%.1f' width='%d' height='%.1f' fill='%s'/>\n", x, kBottom - height,
        kBar - 3, height, colour);
  char label[32];
  std::snprintf(label, sizeof label, format, value);
  print_text(out, x + (kBar - 3) / 2.0, kBottom - height - 5, "text-anchor='middle' font-size='10'",
             label);
}

void print_ground(std::string& out, double x, double width, const std::string& title) {
  print(out, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d' stroke='#333'/>\n", x, kBottom, x + width,
        kBottom);
  print_text(out, x, kTop - 22, "font-weight='bold'", title);
}

void print_seeds(std::string& out, const BenefitRuns& runs, double x) {
  const std::size_t seeds = runs.kvd.runs.size();
  constexpr double kPair = 2 * kBar + 14;
  print_ground(out, x, kPair * static_cast<double>(seeds), "requests within SLO, by seed");
  for (std::size_t i = 0; i < seeds; ++i) {
    const double left = x + kPair * static_cast<double>(i) + 6;
    const double requests = value_of(runs.kvd.runs[i], "requests");
    const double halves = value_of(runs.halves.runs[i], "within_slo");
    const double kvd = value_of(runs.kvd.runs[i], "within_slo");
    print_bar(out, left, halves / requests, kHalvesColour, "%.0f", halves);
    print_bar(out, left + kBar, kvd / requests, kKvdColour, "%.0f", kvd);
    print_text(out, left + kBar, kBottom + 16, "text-anchor='middle'",
               "of " + std::to_string(static_cast<int>(requests)));
  }
}

void print_pair(std::string& out, double x, const std::string& title, const char* note,
                double halves, double kvd) {
  const double most = std::max({halves, kvd, 1e-9});
  print_ground(out, x, 2.0 * kBar + 12, title);
  print_bar(out, x + 6, halves / most, kHalvesColour, "%.0f", halves);
  print_bar(out, x + 6 + kBar, kvd / most, kKvdColour, "%.0f", kvd);
  print_text(out, x, kBottom + 16, "", note);
}

void print_legend(std::string& out, double x) {
  print(out, "<rect x='%.1f' y='36' width='11' height='11' fill='%s'/>\n", x, kHalvesColour);
  print_text(out, x + 16, 46, "", "two halves of the memory");
  print(out, "<rect x='%.1f' y='36' width='11' height='11' fill='%s'/>\n", x + 180, kKvdColour);
  print_text(out, x + 196, 46, "", "one kvd with all of it");
}

}  // namespace

std::string benefit_svg(const BenefitStage& stage, const BenefitRuns& runs) {
  constexpr double kLeft = 24;
  const double seeds = kLeft + (2 * kBar + 14) * static_cast<double>(runs.kvd.runs.size()) + 36;
  constexpr double kPanel = 2 * kBar + 56;
  std::string out;
  print(out,
        "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%d' "
        "font-family='sans-serif' font-size='12'>\n"
        "<rect width='100%%' height='100%%' fill='white'/>\n",
        std::max(700.0, seeds + 3 * kPanel + kLeft), kBottom + 62);
  print_text(out, kLeft, 24, "font-size='15'",
             "Two engines with bursts in turn: the same requests, the same memory");
  print_legend(out, kLeft);
  print_seeds(out, runs, kLeft);
  const auto halves = runs.halves.means(), kvd = runs.kvd.means();
  const auto pair = [&](double x, const char* title, const char* note, const char* name,
                        double unit) {
    print_pair(out, x, title, note, unit * value_of(halves, name), unit * value_of(kvd, name));
  };
  pair(seeds, "P95 TTFT", "ms", "ttft_p95", 1e3);
  pair(seeds + kPanel, "P95 TBT", "ms", "tbt_p95", 1e3);
  pair(seeds + 2 * kPanel, "tokens", "a second", "throughput", 1);
  char load[256];
  std::snprintf(load, sizeof load,
                "SLO: TTFT %.0f ms and TBT %.0f ms. Bursts of %.3g requests/s for %.3g s at one "
                "engine, %.3g at the other. HBM (host memory) %u MiB.",
                stage.goals.ttft_s * 1e3, stage.goals.tbt_s * 1e3, stage.busy_rate, stage.phase_s,
                stage.quiet_rate, stage.hbm_mib);
  print_text(out, kLeft, kBottom + 46, "fill='#555' font-size='11'", load);
  return out + "</svg>\n";
}

}  // namespace kvd::bench
