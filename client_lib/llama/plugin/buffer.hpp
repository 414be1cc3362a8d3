#pragma once

#include <ggml-backend-impl.h>

#include "client_lib/llama/plugin/engine_symbols.hpp"

namespace kvd::llama {

/// The buffer type "KVD0": plain host memory to ggml, a kvd region underneath, one region a buffer.
/// The CPU backend computes on it in place.
/// Owner:   made once, immutable afterwards; `symbols` must be complete
ggml_backend_buffer_type_t make_buffer_type(ggml_backend_dev_t device,
                                            const EngineSymbols& symbols);

}  // namespace kvd::llama
