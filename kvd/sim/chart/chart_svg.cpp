#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "kvd/sim/chart/axis.hpp"
#include "kvd/sim/chart/chart.hpp"

namespace kvd::sim {
namespace {

// Okabe and Ito's colours, which colour-blind readers can tell apart. Dashes and markers tell more
// series apart, also on paper.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#555555", "#8c6d00"};
constexpr std::array<const char*, 3> kDashes = {"", "7 4", "2 3"};

constexpr double kWidth = 720;
constexpr double kLeft = 76;
constexpr double kRight = 20;
constexpr double kTop = 48;
constexpr double kPlotHeight = 260;
constexpr double kFont = 13;
constexpr double kLegendRow = 20;

std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// An estimate that is good enough to leave room; fonts differ from machine to machine anyway.
double text_width(const std::string& text) {
  return 0.56 * kFont * static_cast<double>(text.size());
}

/// Draws one chart from top to bottom into `out`.
class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        x_(values_of_x(), scale(chart.log_x && chart.categories.empty())),
        y_(values_of_y(), scale(chart.log_y)) {
    lay_out_legend();
    lay_out_categories();
  }

  std::string draw() {
    open();
    grid();
    chart_.kind == ChartKind::kBars ? bars() : lines();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  static Axis::Scale scale(bool log) { return log ? Axis::Scale::kLog : Axis::Scale::kLinear; }

  std::vector<double> values_of_x() const {
    std::vector<double> values;
    for (const auto& series : chart_.series) {
      for (const auto& point : series.points) values.push_back(point.x);
    }
    return values;
  }
  std::vector<double> values_of_y() const {
    std::vector<double> values;
    for (const auto& series : chart_.series) {
      for (const auto& point : series.points) {
        values.insert(values.end(), {point.y, point.low, point.high});
      }
    }
    return values;
  }

  [[nodiscard]] double plot_width() const { return kWidth - kLeft - kRight; }
  [[nodiscard]] double bottom() const { return kTop + kPlotHeight; }
  [[nodiscard]] double slot_width() const {
    return plot_width() / static_cast<double>(chart_.categories.size());
  }
  [[nodiscard]] double at_x(double x) const {
    return chart_.categories.empty() ? kLeft + x_.position(x) * plot_width()
                                     : kLeft + (x + 0.5) * slot_width();
  }
  [[nodiscard]] double at_y(double y) const { return bottom() - y_.position(y) * kPlotHeight; }

  void lay_out_legend() {
    double left = 0;
    for (const auto& series : chart_.series) {
      const double width = 34 + text_width(series.name) + 14;
      if (left > 0 && left + width > plot_width()) left = 0, ++legend_rows_;
      legend_.push_back({left, legend_rows_});
      left += width;
    }
    ++legend_rows_;
  }

  /// Names that do not fit side by side are drawn aslant.
  void lay_out_categories() {
    for (const auto& name : chart_.categories) {
      slanted_ = slanted_ || text_width(name) > slot_width() - 6;
      longest_ = std::max(longest_, text_width(name));
    }
  }
  [[nodiscard]] double axis_room() const {
    return 44 + (slanted_ ? std::min(0.5 * longest_, 110.0) : 0);
  }
  [[nodiscard]] double height() const {
    return bottom() + axis_room() + kLegendRow * static_cast<double>(legend_rows_) + 10;
  }

  void text(double x, double y, const char* anchor, const std::string& what,
            const std::string& more = "") {
    out_ += "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" text-anchor=\"" + anchor + "\"" +
            more + ">" + escaped(what) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    out_ += "<line x1=\"" + fixed(x1) + "\" y1=\"" + fixed(y1) + "\" x2=\"" + fixed(x2) +
            "\" y2=\"" + fixed(y2) + "\" " + style + "/>\n";
  }

  void open() {
    const std::string id = escaped(chart_.id);
    out_ = R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 )" + fixed(kWidth) + " " +
           fixed(height()) + R"(" role="img" aria-labelledby=")" + id + "-title " + id +
           R"(-desc" font-family="sans-serif" font-size=")" + fixed(kFont) + "\">\n<title id=\"" +
           id + "-title\">" + escaped(chart_.title) + "</title>\n<desc id=\"" + id + "-desc\">" +
           escaped(chart_.description) + "</desc>\n";
    out_ += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    text(kLeft, 22, "start", chart_.title, " font-weight=\"bold\"");
    text(kLeft, 40, "start", chart_.y_label, " fill=\"#444444\"");
  }

  void grid() {
    for (const double tick : y_.ticks()) {
      line(kLeft, at_y(tick), kWidth - kRight, at_y(tick), "stroke=\"#dddddd\"");
      text(kLeft - 8, at_y(tick) + 4, "end", number_text(tick));
    }
    chart_.categories.empty() ? number_axis() : category_axis();
    line(kLeft, bottom(), kWidth - kRight, bottom(), "stroke=\"#333333\"");
    text(kLeft + plot_width() / 2, bottom() + axis_room() - 6, "middle", chart_.x_label,
         " fill=\"#444444\"");
  }
  void number_axis() {
    for (const double tick : x_.ticks()) {
      line(at_x(tick), bottom(), at_x(tick), bottom() + 5, "stroke=\"#333333\"");
      text(at_x(tick), bottom() + 19, "middle", number_text(tick));
    }
  }
  void category_axis() {
    for (std::size_t c = 0; c < chart_.categories.size(); ++c) {
      const double x = at_x(static_cast<double>(c));
      if (!slanted_) {
        text(x, bottom() + 19, "middle", chart_.categories[c]);
        continue;
      }
      const std::string turn =
          " transform=\"rotate(-30 " + fixed(x + 4) + " " + fixed(bottom() + 15) + ")\"";
      text(x + 4, bottom() + 15, "end", chart_.categories[c], turn);
    }
  }

  static std::string colour(std::size_t series) { return kColours[series % kColours.size()]; }

  void spread(double x, const ChartPoint& point, const std::string& stroke) {
    if (!y_.shows(point.low) || !y_.shows(point.high) || point.low == point.high) return;
    const std::string style = R"(stroke=")" + stroke + R"(" stroke-opacity="0.7")";
    line(x, at_y(point.low), x, at_y(point.high), style);
    line(x - 3, at_y(point.low), x + 3, at_y(point.low), style);
    line(x - 3, at_y(point.high), x + 3, at_y(point.high), style);
  }

  void lines() {
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      std::string path;
      bool drawing = false;
      for (const auto& point : chart_.series[s].points) {
        if (!y_.shows(point.y)) {
          drawing = false;
          continue;
        }
        path += (drawing ? "L" : "M") + fixed(at_x(point.x)) + " " + fixed(at_y(point.y)) + " ";
        drawing = true;
        spread(at_x(point.x), point, colour(s));
      }
      out_ += "<path d=\"" + path + R"(" fill="none" )" + stroke_of(s) + "/>\n";
      for (const auto& point : chart_.series[s].points) {
        if (y_.shows(point.y) && chart_.series[s].points.size() <= kMarked) {
          marker(at_x(point.x), at_y(point.y), s);
        }
      }
    }
  }
  static std::string stroke_of(std::size_t series) {
    const std::string dash = kDashes[series / kColours.size() % kDashes.size()];
    return "stroke=\"" + colour(series) + R"(" stroke-width="2")" +
           (dash.empty() ? "" : " stroke-dasharray=\"" + dash + "\"");
  }
  /// Draws a circle, square, diamond or triangle.
  void marker(double x, double y, std::size_t series) {
    const std::string fill = "fill=\"" + colour(series) + "\"/>\n";
    switch (series % 4) {
      case 0:
        out_ += "<circle cx=\"" + fixed(x) + "\" cy=\"" + fixed(y) + R"(" r="3.5" )" + fill;
        return;
      case 1:
        out_ += "<rect x=\"" + fixed(x - 3) + "\" y=\"" + fixed(y - 3) +
                R"(" width="6" height="6" )" + fill;
        return;
      case 2:
        out_ += "<path d=\"M" + fixed(x) + " " + fixed(y - 4.5) +
                "l4.5 4.5l-4.5 4.5l-4.5 -4.5z\" " + fill;
        return;
      default:
        out_ += "<path d=\"M" + fixed(x) + " " + fixed(y - 4.5) + "l4.5 8h-9z\" " + fill;
    }
  }

  void bars() {
    const double group = slot_width() * 0.8;
    const double width = group / static_cast<double>(chart_.series.size());
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      for (const auto& point : chart_.series[s].points) {
        if (!y_.shows(point.y)) continue;
        const double left = at_x(point.x) - group / 2 + width * static_cast<double>(s);
        bar(left, std::min(width * 0.92, 70.0), width, point, s);
      }
    }
  }
  void bar(double left, double width, double room, const ChartPoint& point, std::size_t series) {
    const double zero = at_y(std::max(0.0, y_.low()));
    const double top = std::min(zero, at_y(point.y));
    const double from = left + (room - width) / 2;
    out_ += "<rect x=\"" + fixed(from) + "\" y=\"" + fixed(top) + "\" width=\"" + fixed(width) +
            "\" height=\"" + fixed(std::abs(at_y(point.y) - zero)) + "\" fill=\"" + colour(series) +
            "\"/>\n";
    spread(from + width / 2, point, "#222222");
  }

  void legend() {
    if (chart_.series.size() < 2 && chart_.series.front().name.empty()) return;
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      const double x = kLeft + legend_[s].left;
      const double y =
          bottom() + axis_room() + kLegendRow * static_cast<double>(legend_[s].row) + 12;
      if (chart_.kind == ChartKind::kBars) {
        out_ += "<rect x=\"" + fixed(x) + "\" y=\"" + fixed(y - 10) +
                R"(" width="24" height="12" fill=")" + colour(s) + "\"/>\n";
      } else {
        line(x, y - 4, x + 24, y - 4, stroke_of(s));
        marker(x + 12, y - 4, s);
      }
      text(x + 30, y, "start", chart_.series[s].name);
    }
  }

  struct LegendPlace {
    double left;
    std::size_t row;
  };
  static constexpr std::size_t kMarked = 40;  // points beyond which a line needs no markers

  const Chart& chart_;
  Axis x_;
  Axis y_;
  std::vector<LegendPlace> legend_;
  std::size_t legend_rows_ = 0;
  bool slanted_ = false;
  double longest_ = 0;
  std::string out_;
};

}  // namespace

std::string svg_of(const Chart& chart) { return Drawing(chart).draw(); }

}  // namespace kvd::sim
