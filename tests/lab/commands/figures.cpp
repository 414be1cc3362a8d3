#include <algorithm>
#include <ostream>

#include "kvd/sim/run/exit_status.hpp"
#include "tests/lab/commands/commands.hpp"
#include "tests/lab/figures/figure.hpp"
#include "tests/lab/figures/lab.hpp"
#include "tests/lab/report/report_folder.hpp"

namespace kvd::sim {
namespace {

int fail(std::ostream& err, const std::string& message, int status = kFailed) {
  err << "kvd-lab: " << message << "\n";
  return status;
}

void list_figures(std::ostream& out) {
  for (const FigureMaker& maker : figure_makers()) {
    out << maker.id << std::string(22 - std::string_view(maker.id).size(), ' ') << maker.title
        << "\n";
  }
  out << "`kvd-lab reproduce FIGURE` makes one, `kvd-lab reproduce all` every one.\n";
}

/// The makers that were asked for, in the catalogue's order.
Result<std::vector<FigureMaker>> chosen(const std::vector<std::string>& ids) {
  const auto& all = figure_makers();
  if (ids.empty() || ids == std::vector<std::string>{"all"}) return all;
  std::vector<FigureMaker> makers;
  for (const std::string& id : ids) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const FigureMaker& maker) { return id == maker.id; });
    if (found == all.end()) {
      return make_error(ErrorCode::kNotFound,
                        "there is no figure \"" + id + "\"; `kvd-lab reproduce` lists them");
    }
    makers.push_back(*found);
  }
  return makers;
}

/// What the requests of a figure announce.
const char* announcement(const Figure& figure) {
  return figure.beyond ? "Requests announce their longest answers as clients do (--max-tokens mix)."
                       : "Requests announce exactly the answers that they will make, as load "
                         "generators do that replay lengths.";
}

Result<Figure> made(const FigureMaker& maker, Lab& lab) {
  const double refused = lab.refused();
  const std::size_t trials = lab.trials();
  auto figure = maker.make(lab);
  if (!figure.ok()) {
    return make_error(figure.error().code, std::string(maker.id) + ": " + figure.error().message);
  }
  figure->id = maker.id;
  figure->title = maker.title;
  if (lab.trials() > trials) figure->notes.emplace_back(announcement(*figure));
  if (lab.refused() > refused) {
    figure->notes.emplace_back(
        "Requests larger than memory were refused in some runs and count as missed everywhere.");
  }
  return figure;
}

Status check_seeds(int seeds) {
  if (seeds >= 1 && seeds <= 1000) return {};
  return make_error(ErrorCode::kInvalidArgument, "--seeds must be 1 to 1000");
}

TextTable findings_table(const Figure& figure) {
  TextTable table{"", {"the paper", "kvd-sim", "ordering", "why"}, {}};
  if (figure.beyond) table.head = {"question", "kvd-sim", "answer", "why"};
  for (const Finding& finding : figure.findings) {
    const bool yes = finding.agreement == Agreement::kSame;
    const char* verdict = figure.beyond ? (yes ? "yes" : "no") : name(finding.agreement);
    table.rows.push_back({finding.paper, finding.ours, verdict, finding.why});
  }
  const auto explained = [](const auto& row) { return !row[3].empty(); };
  if (std::none_of(table.rows.begin(), table.rows.end(), explained)) {
    table.head.pop_back();
    for (auto& row : table.rows) row.pop_back();
  }
  return table;
}

void print_table(const TextTable& table, std::ostream& out) {
  std::vector<std::vector<std::string>> rows = {table.head};
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  std::vector<std::size_t> widths(table.head.size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  if (!table.caption.empty()) out << table.caption << "\n";
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += "  " + row[c] + std::string(widths[c] - row[c].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
  out << "\n";
}

void print_figure(const Figure& figure, std::ostream& out) {
  out << figure.id << ": " << figure.title << "\n";
  for (const std::string& note : figure.notes) out << "  " << note << "\n";
  out << "\n";
  print_table(findings_table(figure), out);
  for (const TextTable& table : figure.tables) print_table(table, out);
}

Section section_of(const Figure& figure) {
  Section section{figure.id, figure.title, figure.notes, {findings_table(figure)}, figure.charts};
  section.tables.insert(section.tables.end(), figure.tables.begin(), figure.tables.end());
  return section;
}

std::string plural(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::vector<std::string> summary_of(const std::vector<Figure>& figures, int seeds) {
  std::size_t counts[3] = {0, 0, 0};
  for (const Figure& figure : figures) {
    if (figure.beyond) continue;
    for (const Finding& finding : figure.findings) ++counts[static_cast<int>(finding.agreement)];
  }
  return {
      "Figures of the papers that kvd builds on, made again by kvd-sim: the daemon's own "
      "Controller, "
      "policies and pool under a virtual clock. Simulated points are means over " +
          plural(static_cast<std::size_t>(seeds), "seed") + "; bars and whiskers show the spread.",
      "Of the papers' statements, " + std::to_string(counts[0]) + " come out the same here, " +
          std::to_string(counts[1]) + " differ, and " + std::to_string(counts[2]) +
          " cannot be simulated. The same means that the direction or order that a statement gives "
          "comes out in the means over the seeds, not its size; where more is asked, the figure's "
          "notes say how much. No constant is chosen for one policy or one figure; figures of a "
          "machine that nobody published are marked as ours in `kvd-sim profiles`."};
}

/// `figures` are in the order of the makers that they come from.
Page page_of(const std::vector<FigureMaker>& makers, const std::vector<Figure>& figures,
             int seeds) {
  Page page{"kvd-sim: the papers' figures", summary_of(figures, seeds), {}};
  for (std::size_t f = 0; f < figures.size(); ++f) {
    if (page.parts.empty() || page.parts.back().title != makers[f].part) {
      page.parts.push_back({makers[f].part, {}});
    }
    page.parts.back().sections.push_back(section_of(figures[f]));
  }
  return page;
}

Result<std::vector<Figure>> make_all(const std::vector<FigureMaker>& makers, Lab& lab) {
  std::vector<Figure> figures;
  for (const FigureMaker& maker : makers) {
    KVD_ASSIGN_OR_RETURN(Figure figure, made(maker, lab));
    figures.push_back(std::move(figure));
    lab.tell("figures", figures.size(), makers.size());
  }
  return figures;
}

std::vector<ReportFile> files_of(const Page& page) {
  std::vector<ReportFile> files = {{"index.html", html_of(page)}};
  for (const Part& part : page.parts) {
    for (const Section& section : part.sections) {
      for (const Chart& chart : section.charts) files.push_back({chart.id + ".svg", svg_of(chart)});
    }
  }
  return files;
}

Status report(const ReportOptions& options, std::ostream& out, std::ostream& err) {
  KVD_TRY(check_seeds(options.seeds));
  KVD_TRY(check_report_folder(options.folder));
  KVD_ASSIGN_OR_RETURN(const auto makers, chosen(options.figures));
  Lab lab(options.seeds, options.first_seed, options.progress ? &err : nullptr);
  KVD_ASSIGN_OR_RETURN(const auto figures, make_all(makers, lab));
  const auto files = files_of(page_of(makers, figures, options.seeds));
  KVD_TRY(write_report(options.folder, files));
  out << (options.folder / "index.html").string() << ": " << plural(figures.size(), "figure")
      << ", " << plural(files.size() - 1, "SVG file") << "\n";
  return {};
}

int status_of(const Error& error) {
  const bool usage =
      error.code == ErrorCode::kNotFound || error.code == ErrorCode::kInvalidArgument;
  return usage ? kUsage : kFailed;
}

}  // namespace

int reproduce_command(const ReproduceOptions& options, std::ostream& out, std::ostream& err) {
  if (options.figure.empty()) {
    list_figures(out);
    return kDone;
  }
  const auto makers = chosen({options.figure});
  if (!makers.ok()) return fail(err, makers.error().message, kUsage);
  if (const Status status = check_seeds(options.seeds); !status.ok()) {
    return fail(err, status.error().message, kUsage);
  }
  Lab lab(options.seeds, options.first_seed, options.progress ? &err : nullptr);
  for (const FigureMaker& maker : *makers) {
    const auto figure = made(maker, lab);
    if (!figure.ok()) return fail(err, figure.error().message);
    if (options.json) {
      out << figure->data.dump() << std::endl;
    } else {
      print_figure(*figure, out);
    }
  }
  return kDone;
}

int report_command(const ReportOptions& options, std::ostream& out, std::ostream& err) {
  const Status status = report(options, out, err);
  return status.ok() ? kDone : fail(err, status.error().message, status_of(status.error()));
}

}  // namespace kvd::sim
