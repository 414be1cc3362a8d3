#pragma once

#include <ggml-backend-impl.h>
#include <ggml.h>

namespace kvd::llama {

/// The few ggml functions the plugin calls, taken from the engine that loaded it.
///
/// Not linked, because the library's name differs between builds (libggml-base.so,
/// libggml-base.so.0, or ggml inside the program) and a second copy would be worse than none. Not
/// taken from the global scope, because engines load plugins, and often ggml itself, with
/// RTLD_LOCAL. A program that ggml is linked into exports nothing, so its own symbol table is read.
/// Owner:   immutable after lookup
struct EngineSymbols {
  decltype(&ggml_version) version = nullptr;
  decltype(&ggml_nbytes) tensor_bytes = nullptr;
  decltype(&ggml_graph_n_nodes) graph_size = nullptr;
  decltype(&ggml_graph_node) graph_node = nullptr;
  decltype(&ggml_backend_buffer_init) buffer_init = nullptr;
  decltype(&ggml_backend_dev_by_type) device_by_type = nullptr;
  const void* allocate_list = nullptr;  // only there since version 3 of the backend API

  /// The engine's version of the backend API. ggml_version() does not tell: engines of 0.25.3 have
  /// either.
  [[nodiscard]] int api_version() const { return allocate_list == nullptr ? 2 : 3; }

  [[nodiscard]] bool complete() const {
    return version != nullptr && tensor_bytes != nullptr && graph_size != nullptr &&
           graph_node != nullptr && buffer_init != nullptr && device_by_type != nullptr;
  }
};

/// Looks into the module that `caller` (a code address of the engine) belongs to, into the
/// libraries that module was linked with, and last into the module's symbol table.
EngineSymbols find_engine_symbols(const void* caller);

}  // namespace kvd::llama
