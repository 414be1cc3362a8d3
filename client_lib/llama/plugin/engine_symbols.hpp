#pragma once

#include <ggml-backend-impl.h>

namespace kvd::llama {

/// The few ggml functions the plugin calls, taken from the engine that loaded it.
///
/// Not linked, because the library's name differs between builds (libggml-base.so,
/// libggml-base.so.0, or ggml inside the program) and a second copy would be worse than none. Not
/// taken from the global scope, because engines load plugins, and often ggml itself, with
/// RTLD_LOCAL. Owner:   immutable after lookup
struct EngineSymbols {
  decltype(&ggml_backend_buffer_init) buffer_init = nullptr;

  [[nodiscard]] bool complete() const { return buffer_init != nullptr; }
};

/// Looks into the module that `caller` (a code address of the engine) belongs to and into the
/// libraries that module was linked with.
EngineSymbols find_engine_symbols(const void* caller);

}  // namespace kvd::llama
