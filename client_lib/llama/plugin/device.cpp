#include "client_lib/llama/plugin/device.hpp"

#include <unistd.h>

#include <optional>

#include "client_lib/llama/plugin/buffer.hpp"
#include "client_lib/llama/plugin/region_source.hpp"
#include "client_lib/llama/plugin/stream.hpp"
#include "client_lib/llama/plugin/tensors.hpp"

namespace kvd::llama {
namespace {

EngineSymbols engine;
ggml_backend_buffer_type_t buffer_type = nullptr;

const char* name(ggml_backend_dev_t) { return "KVD0"; }

const char* description(ggml_backend_dev_t) { return "KV-cache memory owned by kvd"; }

/// The machine's memory, all of it free, as the CPU device says: that is where KVD0's memory lies.
/// llama.cpp fits the context into what is free, and divides layers between devices by it. The
/// pool's own free bytes would be stale when the engine asks for them.
void memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
  *total = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  *free = *total;
}

enum ggml_backend_dev_type type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  *properties = ggml_backend_dev_props{};
  properties->name = name(device);
  properties->description = description(device);
  memory(device, &properties->memory_free, &properties->memory_total);
  properties->type = type(device);
  properties->caps.mmap_support = true;  // the weights never come here: the CPU maps them as ever
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char*) {
  return RegionSource::instance().connect() ? make_stream(device, engine) : nullptr;
}

ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t) { return buffer_type; }

/// Whether the operation belongs to KVD0 by its operand's memory; none: the memory does not tell.
std::optional<bool> belongs_by_memory(const ggml_tensor& operand) {
  const ggml_tensor& storage = storage_of(operand);
  // A weight in KVD0's memory is only a question, asked before weights are loaded.
  if (is_kvd_buffer(storage.buffer)) return is_cache(storage);
  const bool weight =
      storage.buffer != nullptr && storage.buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
  if (!weight) return std::nullopt;
  const auto layer = layer_of_weight(storage);
  return layer ? holds_layer(*layer) : holds_any();
}

/// Whether an operation is KVD0's: all of a layer whose KV cache kvd holds, so that a graph is not
/// cut in two at every layer; nothing of a layer whose KV cache is elsewhere.
bool belongs_here(const ggml_tensor& operation) {
  if (const auto here = belongs_by_memory(operation)) return *here;
  for (const ggml_tensor* source : operation.src) {
    if (source == nullptr) continue;
    if (const auto here = belongs_by_memory(*source)) return *here;
  }
  return operation.op != GGML_OP_FLASH_ATTN_EXT && holds_any();
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor* operation) {
  if (!belongs_here(*operation)) return false;
  ggml_backend_dev_t cpu = engine.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  return cpu != nullptr && cpu->iface.supports_op(cpu, operation);
}

bool supports_buffer_type(ggml_backend_dev_t, ggml_backend_buffer_type_t asked) {
  ggml_backend_dev_t cpu = engine.device_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  return asked == buffer_type || (cpu != nullptr && cpu->iface.supports_buft(cpu, asked));
}

}  // namespace

ggml_backend_dev_t make_device(ggml_backend_reg_t registration, const EngineSymbols& symbols) {
  static ggml_backend_device device{};
  engine = symbols;
  device.iface.get_name = name;
  device.iface.get_description = description;
  device.iface.get_memory = memory;
  device.iface.get_type = type;
  device.iface.get_props = properties;
  device.iface.init_backend = init_backend;
  device.iface.get_buffer_type = get_buffer_type;
  device.iface.supports_op = supports_op;
  device.iface.supports_buft = supports_buffer_type;
  device.reg = registration;
  buffer_type = make_buffer_type(&device, symbols);
  return &device;
}

}  // namespace kvd::llama
