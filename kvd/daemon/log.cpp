#include "kvd/daemon/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace kvd::daemon {

namespace {

spdlog::logger& logger() {
  static const auto kLogger = [] {
    auto made = spdlog::stderr_logger_mt("kvd");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *kLogger;
}

}  // namespace

void set_log_level(std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  const bool unknown = parsed == spdlog::level::off && level != "off";
  logger().set_level(unknown ? spdlog::level::info : parsed);
}

void log_info(const std::string& text) { logger().info("{}", text); }
void log_warning(const std::string& text) { logger().warn("{}", text); }
void log_error(const std::string& text) { logger().error("{}", text); }

}  // namespace kvd::daemon
