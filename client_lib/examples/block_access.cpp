#include "client_lib/examples/block_access.hpp"

#include <variant>

namespace kvd_pattern {
namespace {

class HostAccess final : public BlockAccess {
 public:
  kvd_client::Result<std::byte*> open(std::byte* address, std::size_t, Purpose) override {
    return address;
  }
  kvd_client::Status close(std::byte*, std::size_t) override { return std::monostate(); }
};

}  // namespace

kvd_client::Result<std::unique_ptr<BlockAccess>> access_to(const kvd_client::SessionInfo& session) {
  if (session.memory == kvd_client::MemoryKind::kCuda) return gpu_access(session);
  return std::unique_ptr<BlockAccess>(std::make_unique<HostAccess>());
}

}  // namespace kvd_pattern
