#include "tests/engines/workbench.hpp"

#include <cstdlib>
#include <system_error>

#include "ipc/vocabulary/check.hpp"

namespace kvd::test {

std::string program(const std::string& name) { return std::string(KVD_BIN_DIR) + "/" + name; }

std::optional<int> run_to_end(const ChildCommand& command) { return ChildProcess(command).wait(); }

Workbench::Workbench() {
  std::string pattern = std::filesystem::temp_directory_path() / "kvd-engines-XXXXXX";
  KVD_CHECK(mkdtemp(pattern.data()) != nullptr, "no temporary folder");
  folder_ = pattern;
  const auto made = run_to_end({{program("kvd-llama-model"), "--out", file("model.gguf")}, {}});
  KVD_CHECK(made == 0, "kvd-llama-model failed");
}

/// What the prebuilt engine keeps at its end is not ours to judge; the plugin's own buffers are
/// checked in this process (buffer_test).
constexpr const char* kNoLeakCheck = "ASAN_OPTIONS=detect_leaks=0";

Workbench::~Workbench() {
  std::error_code ignored;  // a folder left in /tmp must not turn a passed test red
  std::filesystem::remove_all(folder_, ignored);
}

ChildCommand Workbench::plain_engine(const std::string& record,
                                     const std::vector<std::string>& options) const {
  ChildCommand command;
  command.arguments = {program("kvd-llama"),   "--model",      file("model.gguf"), "--input",
                       KVD_INPUT_FILE,         "--logits-out", file(record),       "--tokens",
                       std::to_string(kTokens)};
  command.arguments.insert(command.arguments.end(), options.begin(), options.end());
  // A name without a value is taken out of the environment.
  command.environment = {"GGML_NO_BACKTRACE=1", kNoLeakCheck, "GGML_BACKEND_PATH",
                         "KVD_LLAMA_REQUIRE"};
  return command;
}

ChildCommand Workbench::kvd_engine(const std::string& record, const std::string& endpoint,
                                   const std::vector<std::string>& options) const {
  ChildCommand command = plain_engine(record, options);
  command.environment = {"GGML_NO_BACKTRACE=1", kNoLeakCheck,
                         "GGML_BACKEND_PATH=" + std::string(KVD_PLUGIN_FILE),
                         "KVD_ENDPOINT=" + endpoint};
  return command;
}

std::optional<int> Workbench::compare(const std::string& a, const std::string& b,
                                      int distinct) const {
  return run_to_end(
      {{program("kvd-llama-compare"), file(a), file(b), "--distinct", std::to_string(distinct)},
       {}});
}

}  // namespace kvd::test
