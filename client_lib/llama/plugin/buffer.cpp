#include "client_lib/llama/plugin/buffer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "client_lib/llama/plugin/region_source.hpp"
#include "client_lib/llama/plugin/tensors.hpp"

namespace kvd::llama {
namespace {

EngineSymbols engine;
ggml_backend_buffer_type_t buffer_type = nullptr;

/// Layers with a KV cache in kvd's memory, each counted once a buffer. Read for every operation of
/// a graph, so without a lock.
struct Held {
  static constexpr std::size_t kMostLayers = 4096;
  std::array<std::atomic<std::uint32_t>, kMostLayers> layers{};
  std::atomic<std::uint32_t> buffers{0};
};
Held held;

/// One KV cache.
struct Cache {
  Memory memory;
  std::vector<unsigned> layers;

  Cache(const Memory& taken, std::vector<unsigned> of) : memory(taken), layers(std::move(of)) {
    for (const unsigned layer : layers) held.layers[layer].fetch_add(1);
    held.buffers.fetch_add(1);
  }
  ~Cache() {
    for (const unsigned layer : layers) held.layers[layer].fetch_sub(1);
    held.buffers.fetch_sub(1);
    RegionSource::instance().free(memory);
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
};

/// The tensors whose sizes this thread asked for since the last buffer: what the next one is for.
struct Announced {
  bool cache = false;
  std::vector<unsigned> layers;
};
thread_local Announced announced;

Cache& cache_of(ggml_backend_buffer_t buffer) { return *static_cast<Cache*>(buffer->context); }

char* data_of(const ggml_tensor* tensor) { return static_cast<char*>(tensor->data); }

void free_buffer(ggml_backend_buffer_t buffer) {
  const std::unique_ptr<Cache> cache(&cache_of(buffer));
}

void* get_base(ggml_backend_buffer_t buffer) { return cache_of(buffer).memory.address; }

/// ggml asks for a size once more when it places a tensor: that announces nothing.
ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor*) {
  announced = {};
  return GGML_STATUS_SUCCESS;
}

void memset_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, std::uint8_t value,
                   std::size_t offset, std::size_t size) {
  std::memset(data_of(tensor) + offset, value, size);
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, std::size_t offset,
                std::size_t size) {
  std::memcpy(data_of(tensor) + offset, data, size);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, std::size_t offset,
                std::size_t size) {
  std::memcpy(data, data_of(tensor) + offset, size);
}

void clear(ggml_backend_buffer_t buffer, std::uint8_t value) {
  std::memset(get_base(buffer), value, buffer->size);
}

ggml_backend_buffer_i buffer_interface() {
  ggml_backend_buffer_i functions{};
  functions.free_buffer = free_buffer;
  functions.get_base = get_base;
  functions.init_tensor = init_tensor;
  functions.memset_tensor = memset_tensor;
  functions.set_tensor = set_tensor;
  functions.get_tensor = get_tensor;
  functions.clear = clear;
  return functions;
}

const char* type_name(ggml_backend_buffer_type_t) { return "KVD0"; }

std::size_t get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor* tensor) {
  if (!is_cache(*tensor)) {
    announced = {};
  } else {
    announced.cache = true;
    const auto layer = layer_of_cache(*tensor);
    const bool known =
        layer && std::ranges::find(announced.layers, *layer) != announced.layers.end();
    if (layer && *layer < Held::kMostLayers && !known) announced.layers.push_back(*layer);
  }
  return engine.tensor_bytes(tensor);
}

ggml_backend_buffer_t alloc_cpu_buffer(std::size_t size) {
  ggml_backend_dev_t cpu = engine.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (cpu == nullptr) return nullptr;
  ggml_backend_buffer_type_t type = cpu->iface.get_buffer_type(cpu);
  return type->iface.alloc_buffer(type, size);
}

/// NULL is ggml's word for "no memory": the engine then fails that context and goes on.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  Announced purpose = std::exchange(announced, {});
  if (!purpose.cache) return alloc_cpu_buffer(size);
  Memory memory;
  if (!RegionSource::instance().allocate(size, &memory)) return nullptr;
  auto cache = std::make_unique<Cache>(memory, std::move(purpose.layers));
  return engine.buffer_init(type, buffer_interface(), cache.release(), size);
}

std::size_t get_alignment(ggml_backend_buffer_type_t) { return RegionSource::alignment(); }

bool is_host(ggml_backend_buffer_type_t) { return true; }

/// The functions of a buffer type in version 2 of the backend API.
struct FunctionsOf2 {
  decltype(ggml_backend_buffer_type_i::get_name) get_name;
  decltype(ggml_backend_buffer_type_i::alloc_buffer) alloc_buffer;
  decltype(ggml_backend_buffer_type_i::get_alignment) get_alignment;
  decltype(ggml_backend_buffer_type_i::get_max_size) get_max_size;
  decltype(ggml_backend_buffer_type_i::get_alloc_size) get_alloc_size;
  decltype(ggml_backend_buffer_type_i::is_host) is_host;
};

/// In version 3, which has two for lists of tensors: a null leaves the list to the others.
struct FunctionsOf3 {
  decltype(ggml_backend_buffer_type_i::get_name) get_name;
  decltype(ggml_backend_buffer_type_i::alloc_buffer) alloc_buffer;
  void* alloc_buffer_n;
  decltype(ggml_backend_buffer_type_i::get_alignment) get_alignment;
  decltype(ggml_backend_buffer_type_i::get_max_size) get_max_size;
  decltype(ggml_backend_buffer_type_i::get_alloc_size) get_alloc_size;
  void* get_alloc_size_n;
  decltype(ggml_backend_buffer_type_i::is_host) is_host;
};

/// Laid out as ggml_backend_buffer_type. Both layouts are written here, because the headers have
/// one alone and the plugin serves engines with either.
template <class Functions>
struct BufferType {
  Functions functions;
  ggml_backend_dev_t device;
  void* context;
};
using BufferTypeOfHeaders =
    BufferType<std::conditional_t<GGML_BACKEND_API_VERSION == 2, FunctionsOf2, FunctionsOf3>>;
static_assert(sizeof(BufferTypeOfHeaders) == sizeof(ggml_backend_buffer_type) &&
                  offsetof(BufferTypeOfHeaders, functions.get_alloc_size) ==
                      offsetof(ggml_backend_buffer_type, iface.get_alloc_size) &&
                  offsetof(BufferTypeOfHeaders, functions.is_host) ==
                      offsetof(ggml_backend_buffer_type, iface.is_host) &&
                  offsetof(BufferTypeOfHeaders, device) ==
                      offsetof(ggml_backend_buffer_type, device),
              "these headers lay a buffer type out as no ggml that this plugin knows");
// The CPU's buffer type is asked through the headers, whichever version the engine has.
static_assert(offsetof(FunctionsOf2, alloc_buffer) == offsetof(FunctionsOf3, alloc_buffer));

template <class Functions>
ggml_backend_buffer_type_t make_type(ggml_backend_dev_t device) {
  static BufferType<Functions> made{};
  made.functions.get_name = type_name;
  made.functions.alloc_buffer = alloc_buffer;
  made.functions.get_alignment = get_alignment;
  made.functions.get_alloc_size = get_alloc_size;
  made.functions.is_host = is_host;
  made.device = device;
  return reinterpret_cast<ggml_backend_buffer_type_t>(&made);
}

}  // namespace

ggml_backend_buffer_type_t make_buffer_type(ggml_backend_dev_t device,
                                            const EngineSymbols& symbols) {
  engine = symbols;
  buffer_type = symbols.api_version() == 2 ? make_type<FunctionsOf2>(device)
                                           : make_type<FunctionsOf3>(device);
  return buffer_type;
}

bool is_kvd_buffer(const ggml_backend_buffer* buffer) {
  return buffer != nullptr && buffer->buft == buffer_type;
}

bool holds_layer(unsigned layer) {
  return layer < Held::kMostLayers && held.layers[layer].load(std::memory_order_relaxed) > 0;
}

bool holds_any() { return held.buffers.load(std::memory_order_relaxed) > 0; }

}  // namespace kvd::llama
