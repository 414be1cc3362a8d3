#include "client_lib/llama/plugin/buffer.hpp"

#include <cstring>
#include <memory>

#include "client_lib/llama/plugin/region_source.hpp"

namespace kvd::llama {
namespace {

EngineSymbols engine;

kvd_region& region_of(ggml_backend_buffer_t buffer) {
  return *static_cast<kvd_region*>(buffer->context);
}

char* data_of(const ggml_tensor* tensor) { return static_cast<char*>(tensor->data); }

void free_buffer(ggml_backend_buffer_t buffer) {
  const std::unique_ptr<kvd_region> region(&region_of(buffer));
  RegionSource::instance().free(*region);
}

void* get_base(ggml_backend_buffer_t buffer) { return region_of(buffer).address; }

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
  functions.memset_tensor = memset_tensor;
  functions.set_tensor = set_tensor;
  functions.get_tensor = get_tensor;
  functions.clear = clear;
  return functions;
}

const char* type_name(ggml_backend_buffer_type_t) { return "KVD0"; }

/// NULL is ggml's word for "no memory": the engine then fails that context and goes on.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  auto region = std::make_unique<kvd_region>();
  if (!RegionSource::instance().allocate(size, region.get())) return nullptr;
  return engine.buffer_init(type, buffer_interface(), region.release(), size);
}

std::size_t get_alignment(ggml_backend_buffer_type_t) { return RegionSource::alignment(); }

bool is_host(ggml_backend_buffer_type_t) { return true; }

}  // namespace

ggml_backend_buffer_type_t make_buffer_type(ggml_backend_dev_t device,
                                            const EngineSymbols& symbols) {
  static ggml_backend_buffer_type type{};
  engine = symbols;
  type.iface.get_name = type_name;
  type.iface.alloc_buffer = alloc_buffer;
  type.iface.get_alignment = get_alignment;
  type.iface.is_host = is_host;
  type.device = device;
  return &type;
}

}  // namespace kvd::llama
