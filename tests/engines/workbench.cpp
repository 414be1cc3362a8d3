#include "tests/engines/workbench.hpp"

#include "ipc/vocabulary/check.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::test {

std::optional<int> run_to_end(const ChildCommand& command) { return ChildProcess(command).wait(); }

Workbench::Workbench() {
  const auto made =
      run_to_end({{built_program("kvd-llama-model"), "--out", file("model.gguf")}, {}});
  KVD_CHECK(made == 0, "kvd-llama-model failed");
}

/// What the prebuilt engine keeps at its end is not ours to judge; the plugin's own buffers are
/// checked in this process (buffer_test).
constexpr const char* kNoLeakCheck = "ASAN_OPTIONS=detect_leaks=0";

ChildCommand Workbench::plain_engine(const std::string& record,
                                     const std::vector<std::string>& options) const {
  const std::string program = built_program("kvd-llama"), model = file("model.gguf");
  ChildCommand command;
  command.arguments = {program,      "--model",      model,
                       "--input",    KVD_INPUT_FILE, "--logits-out",
                       file(record), "--tokens",     std::to_string(kTokens)};
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
  return run_to_end({{built_program("kvd-llama-compare"), file(a), file(b), "--distinct",
                      std::to_string(distinct)},
                     {}});
}

}  // namespace kvd::test
