#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "kvd/sim/chart/axis.hpp"
#include "tests/lab/report/page.hpp"
#include "tests/lab/report/report_folder.hpp"
#include "tests/lab/tests/browser.hpp"

namespace kvd::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Chart lines() {
  return {.id = "demo",
          .title = "Attainment <by> load",
          .description = "Two policies & their attainment.",
          .kind = ChartKind::kLines,
          .x_label = "requests a second",
          .y_label = "attainment",
          .series = {{"fcfs", {{1, 1, 0.9, 1}, {2, 0.5, 0.4, 0.6}}},
                     {"lvf", {{1, 1}, {2, std::nan("")}, {3, 0.25}}}}};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Axis, StartsAtZeroAndEndsAboveTheLargestValue) {
  const Axis axis({3, 9.7}, Axis::Scale::kLinear);
  EXPECT_THAT(axis.ticks(), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_EQ(axis.position(0), 0);
  EXPECT_EQ(axis.position(5), 0.5);
  EXPECT_EQ(axis.position(10), 1);
}

TEST(Axis, TakesValuesOfNoSizeAndNoNumbers) {
  EXPECT_EQ(Axis({}, Axis::Scale::kLinear).position(0), 0);
  EXPECT_EQ(Axis({0, 0}, Axis::Scale::kLinear).position(0), 0);
  EXPECT_LT(Axis({-3, 4}, Axis::Scale::kLinear).low(), -2.9);
  EXPECT_FALSE(Axis({1}, Axis::Scale::kLog).shows(0));
  EXPECT_FALSE(Axis({1}, Axis::Scale::kLinear).shows(std::nan("")));
  EXPECT_THAT(Axis({0.02, 30}, Axis::Scale::kLog).ticks().size(), 5U);
}

TEST(NumberText, KeepsWhatAReaderNeeds) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(0.05), "0.05");
  EXPECT_EQ(number_text(12.345678), "12.35");
  EXPECT_EQ(number_text(16384), "16,384");
  EXPECT_EQ(number_text(-1234567), "-1,234,567");
  EXPECT_EQ(number_text(999.97), "1,000");
  EXPECT_EQ(number_text(std::nan("")), "–");
}

TEST(Svg, HasTitleDescriptionLegendAndEveryPoint) {
  const std::string svg = svg_of(lines());
  EXPECT_THAT(svg, HasSubstr("<title id=\"demo-title\">Attainment &lt;by&gt; load</title>"));
  EXPECT_THAT(svg, HasSubstr("<desc id=\"demo-desc\">Two policies &amp; their"));
  EXPECT_THAT(svg, HasSubstr(">fcfs</text>"));
  EXPECT_EQ(count(svg, "<circle"), 3U) << "two points and the legend";
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Svg, BarsOfEveryCategoryAndSeries) {
  Chart chart = lines();
  chart.kind = ChartKind::kBars;
  chart.categories = {"a", "b", "a name that is far too long to stand beside another one", "d"};
  const std::string svg = svg_of(chart);
  EXPECT_EQ(count(svg, "<rect"), 1 + 4 + 2U) << "background, four values, the legend";
  EXPECT_THAT(svg, HasSubstr("rotate(-30"));
}

TEST(Table, HasARowAnXWithTheSpread) {
  const std::string table = table_of(lines());
  EXPECT_THAT(table, HasSubstr("<th scope=\"row\">2</th><td>0.5 [0.4 to 0.6]</td><td>–</td>"));
  EXPECT_THAT(table, HasSubstr("<th scope=\"row\">3</th><td>–</td><td>0.25</td>"));
}

Page page() {
  Section section{"s", "A figure", {"What it shows."}, {}, {lines()}};
  section.tables.push_back(
      {"Verdicts", {"paper", "ours", "ordering"}, {{"a < b", "2", "differs"}}});
  return {"Report", {"Made by kvd-sim."}, {{"Part", {section}}}};
}

TEST(HtmlPage, NeedsNothingElse) {
  const std::string html = html_of(page());
  EXPECT_THAT(html, HasSubstr("<!DOCTYPE html>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"differs\">differs</td>"));
  for (const char* outside : {"<script", "src=", "<link", "@import", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  EXPECT_EQ(count(html, "http://"), 1U) << "the name space of SVG only";
}

class ReportFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "kvd-report-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root = pattern;
  }
  void TearDown() override { fs::remove_all(root); }

  static std::string content(const fs::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root), {}));
  }
  fs::path root;
};

TEST_F(ReportFolder, AppearsWholeAndReplacesAnEarlierReport) {
  const fs::path folder = root / "out" / "report";
  ASSERT_TRUE(write_report(folder, {{"index.html", html_of(page())}, {"old.svg", "x"}}).ok());
  EXPECT_TRUE(fs::exists(folder / "old.svg"));
  ASSERT_TRUE(write_report(folder, {{"index.html", html_of(page()) + "new"}}).ok());
  EXPECT_THAT(content(folder / "index.html"), ::testing::EndsWith("new"));
  EXPECT_FALSE(fs::exists(folder / "old.svg")) << "a file of the earlier report";
}

TEST_F(ReportFolder, WhatIsNoReportStaysAsItIs) {
  std::ofstream(root / "thesis.txt") << "years";
  EXPECT_EQ(write_report(root, {{"index.html", "x"}}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(content(root / "thesis.txt"), "years");
  EXPECT_EQ(entries(), 1U);
  EXPECT_FALSE(write_report(root / "thesis.txt", {{"index.html", "x"}}).ok());
  EXPECT_FALSE(check_report_folder("").ok());
}

// Tests the browser's view: the page parses, and what it paints is not blank.
TEST_F(ReportFolder, OpensInABrowser) {
  const auto browser = testing::find_browser();
  if (!browser) GTEST_SKIP() << "no Chromium on PATH or in KVD_CHROMIUM";
  ASSERT_TRUE(write_report(root / "report", {{"index.html", html_of(page())}}).ok());
  const std::string url = "file://" + (root / "report" / "index.html").string();
  const fs::path picture = root / "picture.png";
  ASSERT_EQ(
      testing::run_browser(*browser, root, root / "log",
                           {"--window-size=900,1000", "--screenshot=" + picture.string(), url}),
      0);
  // A blank page of that size takes about 5 KB.
  EXPECT_GT(fs::file_size(picture), 12'000U);
  ASSERT_EQ(testing::run_browser(*browser, root, root / "dom", {"--dump-dom", url}), 0);
  const std::string dom = content(root / "dom");
  EXPECT_THAT(dom, HasSubstr("<title id=\"demo-title\">Attainment &lt;by&gt; load</title>"));
  EXPECT_EQ(count(dom, "<circle"), 3U);
}

TEST_F(ReportFolder, AFailureLeavesTheEarlierReportAndNothingElse) {
  const fs::path folder = root / "report";
  ASSERT_TRUE(write_report(folder, {{"index.html", html_of(page())}}).ok());
  EXPECT_FALSE(write_report(folder, {{"index.html", "x"}, {"no/such/folder.svg", "y"}}).ok());
  EXPECT_EQ(content(folder / "index.html"), html_of(page()));
  EXPECT_EQ(entries(), 1U) << "something half written was left";
}

}  // namespace
}  // namespace kvd::sim
