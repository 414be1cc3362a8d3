#include <algorithm>
#include <array>
#include <cmath>

#include "tests/lab/figures/makers.hpp"
#include "tests/lab/figures/text.hpp"

namespace kvd::sim::figures {
namespace {

/// A row of SuperInfer's Table 1: 8 GiB of Qwen2.5-32B's KV each way.
struct Row {
  const char* engine;
  double d2h, h2d;  ///< "GB/s"
  double reported_ms;
  bool duplex;
  double reported_ratio;  ///< relative to ideal, in the text
};
constexpr std::array<Row, 5> kRows = {Row{"naive", 10.75, 9.86, 1556.15, false, 37.4},
                                      Row{"merged segments", 80.05, 133.51, 159.87, false, 3.6},
                                      Row{"merged, one launch", 238.95, 269.69, 63.14, false, 1.4},
                                      Row{"DuplexKV", 180.99, 179.37, 46.80, true, 1.1},
                                      Row{"ideal", 192.00, 192.00, 41.66, true, 1.0}};
constexpr double kGibEachWay = 8;

double computed_ms(const Row& row) {
  const double out = kGibEachWay / row.d2h;
  const double in = kGibEachWay / row.h2d;
  return (row.duplex ? std::max(out, in) : out + in) * 1e3;
}

}  // namespace

Result<Figure> si_table1(Lab&) {
  Figure figure;
  figure.notes = {
      "Arithmetic on the published rates, which are GiB/s as their own times show; the ratios "
      "of real copies need a GPU (tests/gpu)."};
  TextTable table{"8 GiB each way",
                  {"engine", "rates give, ms", "reported, ms", "times ideal", "in the text"},
                  {}};
  const double ideal = kRows.back().reported_ms;
  figure.data["rows"] = nlohmann::ordered_json::array();
  ChartSeries series{"reported", {}};
  for (std::size_t r = 0; r < kRows.size(); ++r) {
    const Row& row = kRows[r];
    const double computed = computed_ms(row);
    const double ratio = row.reported_ms / ideal;
    table.rows.push_back({row.engine, number_text(computed), number_text(row.reported_ms),
                          number_text(ratio), number_text(row.reported_ratio)});
    figure.data["rows"].push_back({{"engine", row.engine},
                                   {"computed_ms", computed},
                                   {"reported_ms", row.reported_ms},
                                   {"times_ideal", ratio}});
    series.points.push_back({static_cast<double>(r), row.reported_ms});
    const bool same = std::abs(ratio / row.reported_ratio - 1) < 0.04;
    figure.findings.push_back(
        {std::string(row.engine) + ": " + number_text(row.reported_ratio) + " times ideal",
         number_text(ratio) + " times", agreement(same),
         same ? ""
              : "the text does not follow from the table: " + number_text(row.reported_ms) + " / " +
                    number_text(ideal) + " ms"});
  }
  figure.tables = {std::move(table)};
  figure.charts = {
      {.id = "si-table1",
       .title = "Time to move 8 GiB each way",
       .description = "Reported times by transfer engine, from 1,556 ms to the ideal 42 ms.",
       .kind = ChartKind::kBars,
       .x_label = "transfer engine",
       .y_label = "milliseconds",
       .log_y = true,
       .categories = {},
       .series = {std::move(series)}}};
  for (const Row& row : kRows) figure.charts[0].categories.emplace_back(row.engine);
  return figure;
}

}  // namespace kvd::sim::figures
