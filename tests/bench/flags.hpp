#pragma once

#include <charconv>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kvd::bench {

/// What each flag with a value sets; false where the text is no such value.
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

/// Takes the flag at arguments[i] and its value; false after a mistake, which has been explained.
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
