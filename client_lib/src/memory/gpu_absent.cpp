#include "client_lib/src/memory/gpu.hpp"

/// Built in place of the CUDA parts where their headers are missing.
namespace kvd::client {

bool Gpu::is_built() { return false; }

bool Gpu::is_captured(void*) { return false; }

Result<std::shared_ptr<Gpu>> Gpu::find(const std::array<std::uint8_t, 16>&) {
  return make_error(ErrorCode::kUnsupported,
                    "this kvd client library is built without CUDA: build it where the headers of "
                    "CUDA 13.0 or newer are");
}

}  // namespace kvd::client
