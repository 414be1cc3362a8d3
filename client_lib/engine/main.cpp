/// kvd-engine: see --help. Prints one line "ready: …" on stdout once it serves.
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "client_lib/engine/http/http_server.hpp"
#include "client_lib/engine/model/mapped_file.hpp"
#include "client_lib/engine/model/transformer.hpp"
#include "client_lib/engine/model/weights.hpp"
#include "client_lib/engine/options.hpp"
#include "client_lib/engine/serve/kvd_memory.hpp"
#include "client_lib/engine/serve/own_memory.hpp"
#include "client_lib/engine/serve/scheduler.hpp"
#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/hex.hpp"
#include "ipc/vocabulary/standard_streams.hpp"

namespace kvd::engine {
namespace {

constexpr std::uint32_t kOwnBlockTokens = 16;

int fail(const Error& error) {
  std::fprintf(stderr, "kvd-engine: %s\n", error.message.c_str());
  return error.code == ErrorCode::kInvalidArgument ? 2 : 1;
}

Result<Weights> load(const Options& options) {
  if (!options.model_file.empty()) return load_weights(options.model_file);
  KVD_ASSIGN_OR_RETURN(const RandomModel shape, parse_random_model(options.random_model));
  return random_weights(shape);
}

/// Identifies the model by its weights' bytes, which takes a second for each gigabyte. The number
/// in `engine` changes whenever this engine makes other KV of the same weights and tokens, or lays
/// it out otherwise.
Result<std::string> identity_of(const Options& options) {
  const std::string engine = "kvd-engine 1 ";
  if (options.model_file.empty()) return engine + "random " + options.random_model;
  KVD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(options.model_file));
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(file.bytes().data());
  const Digest digest = digest::Sha256()(digest::ByteView(bytes, file.bytes().size()));
  return engine + "gguf " + hex(digest.bytes);
}

Result<std::unique_ptr<KvMemory>> take_memory(const Options& options,
                                              const Hyperparameters& model) {
  std::unique_ptr<KvMemory> memory;
  if (options.no_kvd) {
    const std::uint32_t layers = std::max(options.memory.layers_per_block, 1U);
    const std::uint32_t tokens =
        options.memory.block_tokens == 0 ? kOwnBlockTokens : options.memory.block_tokens;
    memory = std::make_unique<OwnMemory>(model.layout(layers, tokens), model.layers, options.chunk);
  } else {
    KvdMemory::Options how = options.memory;
    KVD_ASSIGN_OR_RETURN(how.identity, identity_of(options));
    KVD_ASSIGN_OR_RETURN(KvdMemory attached, KvdMemory::attach(how, model));
    memory = std::make_unique<KvdMemory>(std::move(attached));
  }
  return memory;
}

/// SIGTERM and SIGINT, from before there is anything to wait for: a model that loads for minutes, a
/// kvd that does not answer. The first signal stops the scheduler, where there is one, and a second
/// one ends the process at once. It has a thread until the process ends, so it is never destroyed.
class Signals {
 public:
  /// Blocks them in this thread and all it starts.
  Signals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals_, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::thread([this] { run(); }).detach();
  }
  void serving(Scheduler& scheduler) { scheduler_ = &scheduler; }

 private:
  void run() {
    for (bool stopping = false;;) {
      int signal = 0;
      if (::sigwait(&signals_, &signal) != 0) continue;
      Scheduler* scheduler = scheduler_;
      if (scheduler == nullptr) ::_exit(0);
      if (std::exchange(stopping, true)) ::_exit(128 + signal);
      scheduler->stop();
    }
  }

  sigset_t signals_{};
  std::atomic<Scheduler*> scheduler_ = nullptr;
};

int serve(const Options& options, Signals& signals) {
  auto weights = load(options);
  if (!weights.ok()) return fail(weights.error());
  if (!options.model_name.empty()) weights->name = options.model_name;
  auto memory = take_memory(options, weights->model);
  if (!memory.ok()) return fail(memory.error());

  const SteadyClock clock;
  kernels::Workers workers(options.threads);
  const std::uint32_t layers_per_block = (*memory)->layers_per_block();
  kernels::CpuPagedAttention attention(
      {weights->model.layout(layers_per_block, (*memory)->block_tokens()), weights->model.heads},
      workers);
  Transformer model(*weights, layers_per_block, attention, workers);
  Delivery delivery(clock);
  delivery.start();
  Scheduler scheduler(*weights, model, **memory, delivery, clock, options.scheduler);
  auto server =
      HttpServer::start(options.port, {weights->name, weights->has_vocabulary}, scheduler);
  if (!server.ok()) return fail(server.error());
  signals.serving(scheduler);
  std::printf("ready: http://127.0.0.1:%u model %s\n", options.port, weights->name.c_str());
  std::fflush(stdout);

  scheduler.run();
  server->reset();
  memory->reset();  // says goodbye to kvd
  // The signal thread still refers to the scheduler; the process ends with it in place.
  std::fflush(nullptr);
  ::_exit(0);
}

int main(int argc, char** argv) {
  open_standard_descriptors();
  static Signals& signals = *new Signals();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error, not the end
  int status = 0;
  const auto options = parse_options(argc, argv, status);
  if (!options) return status_after_output("kvd-engine", status);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return serve(*options, signals);
  } catch (const std::bad_alloc&) {
    return fail(
        make_error(ErrorCode::kOutOfMemory,
                   "the model does not fit into this machine's memory: take a smaller one"));
  }
}

}  // namespace
}  // namespace kvd::engine

int main(int argc, char** argv) { return kvd::engine::main(argc, argv); }
