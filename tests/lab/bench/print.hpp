#pragma once

#include <cstdio>
#include <string>

namespace kvd::bench {

/// Appends what std::printf would print; text beyond 511 characters is cut off.
template <class... Parts>
void print(std::string& out, const char* format, Parts... parts) {
  char text[512];
  std::snprintf(text, sizeof text, format, parts...);
  out += text;
}

}  // namespace kvd::bench
