#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/nearest.hpp"

/// What the programs do alike with their command lines.
namespace kvd {

/// Takes numbers from `least` to `most`. "nan", which CLI::Range takes, is none.
inline CLI::Validator within(double least, double most) {
  const CLI::Range range(least, most);
  const auto fault_of = [range](std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : range(text);
  };
  return {fault_of, range.get_description()};
}

/// Adds the app's options as they are typed.
inline void add_options(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& bare : option->get_lnames()) names.push_back("--" + bare);
  }
}

/// What an unknown word was meant to be, said to a person; "": all words are known, or like none.
inline std::string misspelt(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    std::vector<std::string> names;
    if (word.starts_with('-')) {
      const CLI::Option* known = nullptr;
      for (const CLI::App* in = at; in != nullptr; in = in->get_parent()) {
        if (known == nullptr) known = in->get_option_no_throw(name);
        add_options(*in, names);
      }
      std::string said = known == nullptr ? misspelt(name, "option", names) : "";
      if (!said.empty()) return said;
      const bool takes_next = known != nullptr && known->get_items_expected_max() > 0;
      if (takes_next && name == word) ++i;
      continue;
    }
    const CLI::App* next = nullptr;
    for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
      if (command->check_name(word)) next = command;
    }
    if (next == nullptr && !names.empty()) return misspelt(word, "command", names);
    if (next != nullptr) at = next;
  }
  return "";
}

/// Reads the command line into the variables that the app is bound to. A value is the status to end
/// with: 0 where help or the version was asked for, 2 for wrong usage, which has been reported.
inline std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;
    const std::string meant = asked ? "" : misspelt(app, argc, argv);
    if (meant.empty()) {
      app.exit(error);
    } else {
      std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), meant.c_str());
    }
    return asked ? 0 : 2;
  }
}

}  // namespace kvd
