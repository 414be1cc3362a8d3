#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace kvd::bench {

/// What each flag does with its value; false where the text is no such value.
using Flags = std::map<std::string, std::function<bool(const std::string&)>>;

template <class Number>
auto into(Number& target, Number least) {
  return [&target, least](const std::string& text) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), target);
    return error == std::errc() && stop == text.data() + text.size() && target >= least;
  };
}
inline auto into(std::string& target) {
  return [&target](const std::string& text) { return target = text, !text.empty(); };
}

/// Splits a list at its commas.
inline auto into(std::vector<std::string>& target) {
  return [&target](const std::string& text) {
    target.clear();
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');) target.push_back(part);
    return !target.empty();
  };
}
template <class Number>
auto into(std::vector<Number>& target, Number least) {
  return [&target, least](const std::string& text) {
    std::vector<std::string> parts;
    if (!into(parts)(text)) return false;
    target.clear();
    return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return into(target.emplace_back(), least)(part);
    });
  };
}

/// Takes the flag at arguments[i] and its value; false after a mistake, which has been reported.
inline bool take_flag(const Flags& flags, const std::vector<std::string>& arguments, std::size_t i,
                      const char* benchmark, const char* help) {
  const auto flag = flags.find(arguments[i]);
  if (flag != flags.end() && i + 1 < arguments.size() && flag->second(arguments[i + 1])) {
    return true;
  }
  std::fprintf(stderr, "kvd-bench %s: %s is no option, or lacks its value\n%s", benchmark,
               arguments[i].c_str(), help);
  return false;
}

}  // namespace kvd::bench
