#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvd/daemon/config/config.hpp"
#include "tests/unit/written_folder.hpp"

namespace kvd::daemon {

inline DomainConfig domain_of(const std::string& name, std::vector<uid_t> uids = {},
                              Bytes hbm_guarantee = {}) {
  DomainConfig domain;
  domain.name = name;
  domain.uids = std::move(uids);
  domain.hbm_guarantee = hbm_guarantee;
  return domain;
}

using Texts = std::vector<std::string>;

inline std::vector<const char*> pointers(const Texts& texts) {
  std::vector<const char*> result;
  for (const std::string& text : texts) result.push_back(text.c_str());
  result.push_back(nullptr);
  return result;
}

inline Result<Invocation> parse(Texts flags, const Texts& environment = {}) {
  flags.insert(flags.begin(), "kvd");
  return parse_invocation(static_cast<int>(flags.size()), pointers(flags).data(),
                          pointers(environment).data());
}

/// The error's lines; empty when there is none.
inline Texts lines_of(const Result<Invocation>& result) {
  Texts lines;
  if (result.ok()) return lines;
  std::istringstream text(result.error().message);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

class ConfigTest : public testing::Test {
 protected:
  Result<Invocation> parse_file(std::string_view toml, Texts flags = {}, const Texts& env = {}) {
    file_ = folder_.write("kvd.toml", toml);
    flags.insert(flags.begin(), "--config=" + file_);
    return parse(std::move(flags), env);
  }
  [[nodiscard]] std::string at_line(int line) const { return file_ + ":" + std::to_string(line); }

  test::WrittenFolder folder_;
  std::string file_;
};

}  // namespace kvd::daemon
