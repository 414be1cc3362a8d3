#include "client_lib/llama/plugin/requirement.hpp"

#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "client_lib/llama/plugin/buffer.hpp"
#include "client_lib/llama/plugin/tensors.hpp"

namespace kvd::llama {
namespace {

EngineSymbols engine;
/// The CPU device's own functions, behind ours.
decltype(ggml_backend_device_i::init_backend) init_backend = nullptr;
decltype(ggml_backend_i::graph_compute) graph_compute = nullptr;

[[noreturn]] void end_process() {
  std::fflush(nullptr);
  // The engine's threads run, so no destructors: they would find them at work.
  std::_Exit(EXIT_FAILURE);
}

/// The KV cache tensor behind `tensor` where it does not lie in kvd's memory; null: none.
const ggml_tensor* foreign_cache(const ggml_tensor* tensor) {
  if (tensor == nullptr) return nullptr;
  const ggml_tensor& storage = storage_of(*tensor);
  return is_cache(storage) && !is_kvd_buffer(storage.buffer) ? &storage : nullptr;
}

void require_kvd_memory(ggml_cgraph* graph) {
  for (int i = 0; i < engine.graph_size(graph); ++i) {
    for (const ggml_tensor* source : engine.graph_node(graph, i)->src) {
      const ggml_tensor* cache = foreign_cache(source);
      if (cache == nullptr) continue;
      std::fprintf(
          stderr,
          "kvd: KVD_LLAMA_REQUIRE=1, but the KV cache of this engine (%s) lies in its own "
          "memory: ending. Run all layers on KVD0 with the KV cache offloaded (no --device "
          "none, -ngl or --no-kv-offload), or unset KVD_LLAMA_REQUIRE\n",
          cache->name);
      end_process();
    }
  }
}

ggml_status checked_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  require_kvd_memory(graph);
  return graph_compute(backend, graph);
}

ggml_backend_t checked_init(ggml_backend_dev_t device, const char* parameters) {
  ggml_backend_t backend = init_backend(device, parameters);
  if (backend == nullptr) return nullptr;
  graph_compute = backend->iface.graph_compute;
  backend->iface.graph_compute = checked_compute;
  return backend;
}

}  // namespace

bool memory_is_required() {
  const char* value = std::getenv("KVD_LLAMA_REQUIRE");
  if (value == nullptr) return false;
  constexpr const char* kNo[] = {"", "0", "false", "no", "off"};
  return std::none_of(std::begin(kNo), std::end(kNo),
                      [value](const char* no) { return ::strcasecmp(value, no) == 0; });
}

void refuse_engine(const char* why) {
  std::fprintf(stderr, "kvd: %s\n", why);
  if (!memory_is_required()) return;
  std::fprintf(stderr, "kvd: KVD_LLAMA_REQUIRE=1: ending\n");
  end_process();
}

void watch_engine(const EngineSymbols& symbols) {
  if (!memory_is_required() || init_backend != nullptr) return;
  ggml_backend_dev_t cpu = symbols.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) {
    refuse_engine("this engine has no CPU backend, which KVD0 computes on; KVD0 is not offered");
    return;
  }
  engine = symbols;
  init_backend = cpu->iface.init_backend;
  cpu->iface.init_backend = checked_init;
}

}  // namespace kvd::llama
