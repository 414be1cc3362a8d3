/// libggml-kvd.so: a ggml device that owns memory and computes nothing.
///
/// llama.cpp puts the KV cache of a layer into the buffer type of the layer's device. This device
/// says it is a GPU, so layers are assigned to it; it supports no operation, so their weights and
/// all computing stay with the CPU backend, which works on KVD0's memory in place. What is left in
/// it is the KV cache, in memory that belongs to kvd.
/// The engine names this file in GGML_BACKEND_PATH; the client library finds kvd by KVD_ENDPOINT.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "client_lib/llama/plugin/buffer.hpp"
#include "client_lib/llama/plugin/engine_symbols.hpp"
#include "client_lib/llama/plugin/region_source.hpp"

// ggml's header is internal and may change with every release; this is the version we know.
static_assert(GGML_BACKEND_API_VERSION == 2,
              "libggml-kvd.so is written for ggml backend API version 2; pin the engine to it");
// A test builds the plugin as if for another version.
#ifndef KVD_GGML_API_VERSION
#define KVD_GGML_API_VERSION GGML_BACKEND_API_VERSION
#endif

namespace kvd::llama {
namespace {

EngineSymbols engine;
ggml_backend_device device{};
ggml_backend_buffer_type_t buffer_type = nullptr;

// --- the stream object: ggml wants one per context, though no graph ever runs on it ---

const char* device_name(ggml_backend_dev_t) { return "KVD0"; }

const char* backend_name(ggml_backend_t) { return "KVD0"; }

void free_backend(ggml_backend_t backend) { delete backend; }

ggml_status refuse_graph(ggml_backend_t, ggml_cgraph*) {
  std::fprintf(stderr, "kvd: KVD0 lends memory and computes nothing\n");
  return GGML_STATUS_FAILED;
}

ggml_backend_t init_backend(ggml_backend_dev_t owner, const char*) {
  static ggml_guid guid = {'k', 'v', 'd', '-', 'm', 'e', 'm', 'o', 'r', 'y', '-', '0', 0, 0, 0, 1};
  if (!RegionSource::instance().connect()) return nullptr;
  auto* backend = new ggml_backend{};
  backend->guid = &guid;
  backend->iface.get_name = backend_name;
  backend->iface.free = free_backend;
  backend->iface.graph_compute = refuse_graph;
  backend->device = owner;
  return backend;
}

// --- the device ---

const char* device_description(ggml_backend_dev_t) { return "KV-cache memory owned by kvd"; }

/// 0 of 0 is ggml's "nothing to report": the engine then reckons with the machine's memory, where
/// the host pool lies. The pool is shared, so a number read here would be stale when it is used.
void device_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
  *free = 0;
  *total = 0;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void device_properties(ggml_backend_dev_t owner, ggml_backend_dev_props* properties) {
  *properties = ggml_backend_dev_props{};
  properties->name = device_name(owner);
  properties->description = device_description(owner);
  properties->type = device_type(owner);
  properties->caps.mmap_support = true;  // the weights never come here: the CPU maps them as ever
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) { return buffer_type; }

bool supports_op(ggml_backend_dev_t, const ggml_tensor*) { return false; }

bool supports_buffer_type(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return type == buffer_type;
}

void fill_device(ggml_backend_reg_t registration) {
  device.iface.get_name = device_name;
  device.iface.get_description = device_description;
  device.iface.get_memory = device_memory;
  device.iface.get_type = device_type;
  device.iface.get_props = device_properties;
  device.iface.init_backend = init_backend;
  device.iface.get_buffer_type = device_buffer_type;
  device.iface.supports_op = supports_op;
  device.iface.supports_buft = supports_buffer_type;
  device.reg = registration;
  buffer_type = make_buffer_type(&device, engine);
}

// --- the registration ---

const char* registration_name(ggml_backend_reg_t) { return "KVD"; }

bool memory_is_required() {
  const char* value = std::getenv("KVD_LLAMA_REQUIRE");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

bool device_available() {
  if (!engine.complete()) {
    std::fprintf(stderr, "kvd: this engine has no ggml_backend_buffer_init; KVD0 is not offered\n");
    return false;
  }
  if (RegionSource::instance().connect()) return true;
  if (memory_is_required()) return true;  // then every context fails, which is what was asked for
  std::fprintf(stderr,
               "kvd: going on without it, the KV cache stays in this process's own memory "
               "(KVD_LLAMA_REQUIRE=1 makes this an error)\n");
  return false;
}

/// The engine asks for the number of devices only after it has accepted the api_version, and asks
/// more than once: an engine that refuses us costs no session, and one answer holds for the
/// process.
std::size_t device_count(ggml_backend_reg_t registration) {
  static const std::size_t count = [registration] {
    if (!device_available()) return std::size_t{0};
    fill_device(registration);
    return std::size_t{1};
  }();
  return count;
}

ggml_backend_dev_t device_at(ggml_backend_reg_t registration, std::size_t index) {
  return index < device_count(registration) ? &device : nullptr;
}

}  // namespace
}  // namespace kvd::llama

/// The entry point ggml looks for. The version comes first in what it returns, at a place that does
/// not move between versions: an engine of another version reads it, says so and leaves us alone.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  using namespace kvd::llama;
  static ggml_backend_reg registration{};
  engine = find_engine_symbols(__builtin_return_address(0));
  registration.api_version = KVD_GGML_API_VERSION;
  registration.iface.get_name = registration_name;
  registration.iface.get_device_count = device_count;
  registration.iface.get_device = device_at;
  return &registration;
}
