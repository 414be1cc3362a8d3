/// libggml-kvd.so: makes the device KVD0 known to an unmodified llama.cpp.
///
/// The engine names this file in GGML_BACKEND_PATH; the client library finds kvd by KVD_ENDPOINT.
#include <cstdio>
#include <optional>

#include "client_lib/llama/plugin/device.hpp"
#include "client_lib/llama/plugin/engine_symbols.hpp"
#include "client_lib/llama/plugin/engine_version.hpp"
#include "client_lib/llama/plugin/region_source.hpp"
#include "client_lib/llama/plugin/requirement.hpp"
#include "client_lib/llama/plugin/stream.hpp"

// ggml's header is internal and may change with every release; these are the versions we know.
static_assert(GGML_BACKEND_API_VERSION == 2 || GGML_BACKEND_API_VERSION == 3,
              "libggml-kvd.so is written for ggml backend API versions 2 and 3");
// A test builds the plugin as if for another version.
#ifndef KVD_GGML_API_VERSION
#define KVD_GGML_API_VERSION engine.api_version()
#endif

namespace kvd::llama {
namespace {

EngineSymbols engine;
ggml_backend_dev_t device = nullptr;

const char* registration_name(ggml_backend_reg_t) { return "KVD"; }

bool device_available() {
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
    watch_engine(engine);
    if (!device_available()) return std::size_t{0};
    device = make_device(registration, engine);
    return std::size_t{1};
  }();
  return count;
}

ggml_backend_dev_t device_at(ggml_backend_reg_t registration, std::size_t index) {
  return index < device_count(registration) ? device : nullptr;
}

void* function_by_name(ggml_backend_reg_t, const char* name) { return find_stream_function(name); }

/// What the plugin shares with the engine must be known: structs by version, functions by name.
bool engine_is_known() {
  const auto refusal = engine.version == nullptr ? std::nullopt : refuse_version(engine.version());
  if (refusal) {
    refuse_engine(refusal->c_str());
  } else if (!engine.complete()) {
    refuse_engine(
        "the functions of ggml cannot be found in this engine (a program that ggml is linked into, "
        "without symbols): KVD0 is not offered. Build llama.cpp with -DBUILD_SHARED_LIBS=ON, or do "
        "not strip the program");
  }
  return !refusal && engine.complete();
}

}  // namespace
}  // namespace kvd::llama

/// The entry point ggml looks for; null: the engine goes on without this plugin. The version comes
/// first in what it returns, at a place that does not move between versions: an engine of another
/// version reads it, says so and leaves us alone.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  using namespace kvd::llama;
  static ggml_backend_reg registration{};
  engine = find_engine_symbols(__builtin_return_address(0));
  if (!engine_is_known()) return nullptr;
  registration.api_version = KVD_GGML_API_VERSION;
  registration.iface.get_name = registration_name;
  registration.iface.get_device_count = device_count;
  registration.iface.get_device = device_at;
  registration.iface.get_proc_address = function_by_name;
  return &registration;
}
