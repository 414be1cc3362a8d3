#include "client_lib/llama/plugin/engine_symbols.hpp"

#include <dlfcn.h>

namespace kvd::llama {
namespace {

/// A handle on the module that holds `address`; RTLD_NOLOAD, so nothing new is ever loaded.
void* open_module_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    if (void* module = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) return module;
  }
  return dlopen(nullptr, RTLD_LAZY);  // the engine is the program itself
}

}  // namespace

EngineSymbols find_engine_symbols(const void* caller) {
  EngineSymbols symbols;
  void* module = open_module_of(caller);
  if (module == nullptr) return symbols;
  symbols.buffer_init =
      reinterpret_cast<decltype(symbols.buffer_init)>(dlsym(module, "ggml_backend_buffer_init"));
  dlclose(module);  // the engine holds its own reference
  return symbols;
}

}  // namespace kvd::llama
