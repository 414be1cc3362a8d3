#include <cmath>
#include <cstdio>

#include "tests/gpu/report.hpp"

namespace kvd::gpu {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

template <class Items, class Write>
std::string list(const Items& items, char open, char close, Write write) {
  std::string text(1, open);
  bool first = true;
  for (const auto& item : items) {
    text += (first ? "" : ",") + write(item);
    first = false;
  }
  return text + close;
}

std::string pair(const std::pair<std::string, std::string>& fact) {
  return quoted(fact.first) + ":" + quoted(fact.second);
}

std::string json(const Figure& f) {
  return "\n     {\"name\":" + quoted(f.name) + ",\"value\":" + number(f.value) +
         ",\"unit\":" + quoted(f.unit) + ",\"criterion\":" + quoted(f.criterion) +
         ",\"verdict\":" + quoted(name(f.verdict)) + "}";
}

std::string json(const Outcome& o) {
  return "\n  {\"id\":" + quoted(o.id) + ",\"title\":" + quoted(o.title) +
         ",\"status\":" + quoted(name(o.state)) + ",\"reason\":" + quoted(o.reason) +
         ",\n   \"criterion\":" + quoted(o.criterion) + ",\"seconds\":" + number(o.seconds) +
         ",\n   \"notes\":" + list(o.notes, '[', ']', quoted) +
         ",\n   \"figures\":" + list(o.figures, '[', ']', [](const Figure& f) { return json(f); }) +
         "}";
}

std::string driver_line(const Report& report) {
  return report.fake
             ? "**FAKE DRIVER.** This run shows that the experiments work and what they find "
               "of function; no figure of speed in it means anything."
             : "Real driver.";
}

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return text;
}

std::string section(const Outcome& o) {
  std::string text = "\n## " + o.id + " " + o.title + ": " + name(o.state) +
                     "\n\nCriterion: " + o.criterion + "\n";
  if (!o.reason.empty()) text += "\nReason: " + o.reason + "\n";
  for (const std::string& note : o.notes) text += "\n- " + note;
  if (!o.notes.empty()) text += "\n";
  if (o.figures.empty()) return text;
  text += "\n| figure | value | unit | criterion | |\n|---|---|---|---|---|\n";
  for (const Figure& f : o.figures) {
    text += "| " + cell(f.name) + " | " + number(f.value) + " | " + f.unit + " | " + f.criterion +
            " | " + name(f.verdict) + " |\n";
  }
  return text;
}

}  // namespace

std::string to_json(const Report& report) {
  return "{\"driver\":" + quoted(report.fake ? "fake driver" : "real driver") +
         ",\"kvd\":" + quoted(report.version) +
         ",\"passed\":" + (report.passed() ? "true" : "false") +
         ",\"complete\":" + (report.complete ? "true" : "false") +
         ",\"seconds\":" + number(report.seconds) +
         ",\n \"device\":" + list(report.device, '{', '}', pair) + ",\n \"experiments\":" +
         list(report.outcomes, '[', ']', [](const Outcome& o) { return json(o); }) + "}\n";
}

std::string to_markdown(const Report& report) {
  std::string text =
      "# GPU report of kvd " + report.version + "\n\n" + driver_line(report) + "\n\n" +
      (report.complete ? "" : "**The run did not come to its end.** ") +
      (report.passed() ? "No criterion was missed." : "**Some criteria were missed.**") + " " +
      number(report.seconds) + " s.\n\n| | |\n|---|---|\n";
  for (const auto& [what, value] : report.device)
    text += "| " + what + " | " + cell(value) + " |\n";
  text += "\n| experiment | | status | s | reason |\n|---|---|---|---|---|\n";
  for (const Outcome& o : report.outcomes) {
    text += "| " + o.id + " | " + o.title + " | " + name(o.state) + " | " + number(o.seconds) +
            " | " + cell(o.reason) + " |\n";
  }
  for (const Outcome& o : report.outcomes) text += section(o);
  return text;
}

}  // namespace kvd::gpu
