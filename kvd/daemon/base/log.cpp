#include "kvd/daemon/base/log.hpp"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/daemon/base/line_limit.hpp"
#include "kvd/daemon/base/log_writer.hpp"

namespace kvd::daemon {

namespace {

constexpr Bytes kRoom = kMiB;

// Never destroyed: its thread may wait for a reader of the log when the process ends.
LogWriter& writer() {
  static auto* const kWriter = new LogWriter(STDERR_FILENO, kRoom);
  return *kWriter;
}

std::atomic<std::uint64_t> repeated = 0;

/// Formats a line, drops it if it repeats others too often, and hands it to the writer.
class LimitedSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const auto verdict = limit_.take(text, SteadyClock().now());
    if (!verdict.write) {
      ++repeated;
      return;
    }
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string out;
    if (verdict.left_out > 0) {
      out = "kvd: " + std::to_string(verdict.left_out) + " lines like the next were left out\n";
    }
    writer().push(out.append(line.data(), line.size()));
  }
  void flush_() override {}

  LineLimit limit_;
};

spdlog::logger& logger() {
  static auto* const kLogger = [] {
    auto* made = new spdlog::logger("kvd", std::make_shared<LimitedSink>());
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

bool flush_log(Nanoseconds timeout) { return writer().flush(timeout); }

LogLosses log_losses() { return {writer().lost(), repeated}; }

}  // namespace kvd::daemon
