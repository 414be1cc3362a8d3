#include "kvd/core/door/tuning.hpp"

#include "ipc/vocabulary/slo_class.hpp"

namespace kvd::core {

SloClasses::const_iterator class_of(const SloClasses& classes, std::uint32_t number,
                                    const std::string& usual) {
  if (number == 0) return classes.find(usual);
  const auto named = std::find_if(classes.begin(), classes.end(), [&](const auto& entry) {
    return slo_class_number(entry.first) == number;
  });
  return named == classes.end() ? classes.find(usual) : named;
}

}  // namespace kvd::core
