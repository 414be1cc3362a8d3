#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace kvd::sim {

/// A flag that leaves `value` empty unless it is given.
template <class T>
void optional(CLI::App& app, const std::string& flag, std::optional<T>& value,
              const std::string& help) {
  app.add_option_function<T>(
      flag, [&value](const T& given) { value = given; }, help);
}

}  // namespace kvd::sim
