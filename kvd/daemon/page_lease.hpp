#pragma once

#include <memory>
#include <utility>

#include "ipc/shm/client_page.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::daemon {

/// A client page that the device may write fences into, as long as the lease lives: its session
/// holds it, and so does every copy under way that has a fence there.
/// Owner: control thread.
class PageLease {
 public:
  /// Errors: those of DeviceBackend::adopt_page.
  static Result<std::shared_ptr<PageLease>> make(
      const std::shared_ptr<kernels::DeviceBackend>& backend,
      std::shared_ptr<shm::ServedClientPage> page) {
    const auto bytes = page->bytes();
    KVD_TRY(backend->adopt_page(bytes.data(), Bytes(static_cast<std::int64_t>(bytes.size()))));
    return std::shared_ptr<PageLease>(new PageLease(backend, std::move(page)));
  }
  ~PageLease() {
    // A backend that is gone has let go of every page.
    if (const auto backend = backend_.lock()) backend->release_page(page_->bytes().data());
  }
  PageLease(const PageLease&) = delete;
  PageLease& operator=(const PageLease&) = delete;

  [[nodiscard]] shm::ServedClientPage& page() const { return *page_; }

 private:
  PageLease(const std::shared_ptr<kernels::DeviceBackend>& backend,
            std::shared_ptr<shm::ServedClientPage> page)
      : backend_(backend), page_(std::move(page)) {}

  std::weak_ptr<kernels::DeviceBackend> backend_;
  std::shared_ptr<shm::ServedClientPage> page_;
};

}  // namespace kvd::daemon
