#include "client_lib/llama/plugin/stream.hpp"

#include <ggml-cpu.h>

#include <cstdio>
#include <cstring>
#include <memory>

namespace kvd::llama {
namespace {

/// What the CPU backend offers by name, as it may be loaded with dlopen itself.
struct CpuFunctions {
  ggml_backend_set_n_threads_t set_n_threads = nullptr;
  ggml_backend_set_abort_callback_t set_abort_callback = nullptr;
  decltype(&ggml_backend_cpu_set_threadpool) set_threadpool = nullptr;
  decltype(&ggml_threadpool_new) threadpool_new = nullptr;
  decltype(&ggml_threadpool_free) threadpool_free = nullptr;

  explicit CpuFunctions(ggml_backend_reg_t cpu) {
    find(cpu, "ggml_backend_set_n_threads", &set_n_threads);
    find(cpu, "ggml_backend_set_abort_callback", &set_abort_callback);
    find(cpu, "ggml_backend_cpu_set_threadpool", &set_threadpool);
    find(cpu, "ggml_threadpool_new", &threadpool_new);
    find(cpu, "ggml_threadpool_free", &threadpool_free);
  }

 private:
  template <class Function>
  static void find(ggml_backend_reg_t cpu, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(cpu->iface.get_proc_address(cpu, name));
  }
};

class Stream {
 public:
  Stream(ggml_backend_t cpu) : functions_(cpu->device->reg), cpu_(cpu) {}
  ~Stream() {
    free_threads();
    cpu_->iface.free(cpu_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  ggml_status compute(ggml_cgraph* graph) { return cpu_->iface.graph_compute(cpu_, graph); }

  void set_n_threads(int count) {
    if (functions_.set_n_threads == nullptr) return;
    if (count > threads_) make_threads(count);
    functions_.set_n_threads(cpu_, count);
  }

  void set_abort_callback(ggml_abort_callback callback, void* data) {
    if (functions_.set_abort_callback != nullptr) {
      functions_.set_abort_callback(cpu_, callback, data);
    }
  }

 private:
  /// Without them the CPU backend would start threads for every graph.
  void make_threads(int count) {
    if (functions_.set_threadpool == nullptr || functions_.threadpool_new == nullptr ||
        functions_.threadpool_free == nullptr) {
      return;
    }
    free_threads();
    constexpr std::uint32_t kGgmlDefaultPolling = 50;
    const auto params = std::make_unique<ggml_threadpool_params>();
    params->n_threads = count;
    params->poll = kGgmlDefaultPolling;
    pool_ = functions_.threadpool_new(params.get());
    functions_.set_threadpool(cpu_, pool_);
    threads_ = count;
  }

  void free_threads() {
    if (pool_ == nullptr) return;
    functions_.set_threadpool(cpu_, nullptr);
    functions_.threadpool_free(pool_);
    pool_ = nullptr;
  }

  CpuFunctions functions_;
  ggml_backend_t cpu_;
  ggml_threadpool_t pool_ = nullptr;
  int threads_ = 1;
};

Stream& stream_of(ggml_backend_t backend) { return *static_cast<Stream*>(backend->context); }

const char* stream_name(ggml_backend_t) { return "KVD0"; }

void free_stream(ggml_backend_t backend) {
  delete &stream_of(backend);
  delete backend;
}

ggml_status compute_graph(ggml_backend_t backend, ggml_cgraph* graph) {
  return stream_of(backend).compute(graph);
}

void set_n_threads(ggml_backend_t backend, int count) { stream_of(backend).set_n_threads(count); }

void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void* data) {
  stream_of(backend).set_abort_callback(callback, data);
}

}  // namespace

ggml_backend_t make_stream(ggml_backend_dev_t device, const EngineSymbols& symbols) {
  static ggml_guid guid = {'k', 'v', 'd', '-', 'm', 'e', 'm', 'o', 'r', 'y', '-', '0', 0, 0, 0, 1};
  ggml_backend_dev_t cpu = symbols.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_t computing = cpu == nullptr ? nullptr : cpu->iface.init_backend(cpu, nullptr);
  if (computing == nullptr) {
    std::fprintf(stderr, "kvd: this engine has no CPU backend, and KVD0 computes on the CPU\n");
    return nullptr;
  }
  auto* backend = new ggml_backend{};
  backend->guid = &guid;
  backend->iface.get_name = stream_name;
  backend->iface.free = free_stream;
  backend->iface.graph_compute = compute_graph;
  backend->device = device;
  backend->context = new Stream(computing);
  return backend;
}

void* find_stream_function(const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) {
    return reinterpret_cast<void*>(set_n_threads);
  }
  if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0) {
    return reinterpret_cast<void*>(set_abort_callback);
  }
  return nullptr;
}

}  // namespace kvd::llama
