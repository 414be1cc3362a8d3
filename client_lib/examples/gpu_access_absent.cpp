#include "client_lib/examples/block_access.hpp"

/// Used where kvd-pattern is built without the headers of CUDA.
namespace kvd_pattern {

std::uint32_t usable_memory() { return kvd_client::kHostMemory; }

kvd_client::Result<std::unique_ptr<BlockAccess>> gpu_access(const kvd_client::SessionInfo&) {
  return kvd_client::Error{kvd_client::ErrorCode::kUnsupported,
                           "this program is built without CUDA"};
}

}  // namespace kvd_pattern
