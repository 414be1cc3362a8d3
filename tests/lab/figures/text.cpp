#include "tests/lab/figures/text.hpp"

#include <cstdio>

namespace kvd::sim::figures {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

std::string points(double difference) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f points", difference * 100);
  return text;
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const char* joint = i == 0 ? "" : i + 1 == names.size() ? " and " : ", ";
    out += joint + names[i];
  }
  return out;
}

}  // namespace kvd::sim::figures
