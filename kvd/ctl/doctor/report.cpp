#include <nlohmann/json.hpp>

#include "kvd/ctl/doctor/diagnosis.hpp"

namespace kvd::ctl::doctor {
namespace {

const char* name_of(Severity severity) {
  constexpr const char* kNames[] = {"ok", "warning", "fault"};
  return kNames[static_cast<std::size_t>(severity)];
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + "  ";
}

}  // namespace

std::string findings_text(const std::vector<Finding>& findings) {
  constexpr std::size_t kSeverity = 7, kCheck = 7;
  std::string text;
  for (const Finding& finding : findings) {
    text += padded(name_of(finding.severity), kSeverity) + padded(finding.check, kCheck) +
            finding.text + "\n";
    if (finding.remedy.empty()) continue;
    text += padded("", kSeverity) + padded("", kCheck) + "remedy: " + finding.remedy + "\n";
  }
  return text;
}

std::string findings_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"severity", name_of(finding.severity)},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  const nlohmann::ordered_json document = {{"healthy", is_healthy(findings)}, {"findings", list}};
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace kvd::ctl::doctor
