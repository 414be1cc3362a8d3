#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ipc/shm/client_page.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kernels/device/copy_queues.hpp"

namespace kvd::daemon {

/// A client page that the devices may write fences into, as long as the lease lives: its session
/// holds it, and so does every copy under way that has a fence there.
/// Owner: control thread.
class PageLease {
 public:
  /// All devices that may write into it. The lease does not keep them alive.
  using Writers = std::vector<std::weak_ptr<kernels::CopyQueues>>;

  /// Errors: those of CopyQueues::adopt_page.
  static Result<std::shared_ptr<PageLease>> make(const Writers& writers,
                                                 std::shared_ptr<shm::ServedClientPage> page) {
    const auto bytes = page->bytes();
    const std::shared_ptr<PageLease> lease(new PageLease(std::move(page)));
    for (const auto& writer : writers) {
      const auto backend = writer.lock();
      if (!backend) continue;
      KVD_TRY(backend->adopt_page(bytes.data(), Bytes(static_cast<std::int64_t>(bytes.size()))));
      lease->writers_.push_back(writer);
    }
    return lease;
  }
  ~PageLease() {
    for (const auto& writer : writers_) {
      // A backend that is gone has let go of every page.
      if (const auto backend = writer.lock()) backend->release_page(page_->bytes().data(), page_);
    }
  }
  PageLease(const PageLease&) = delete;
  PageLease& operator=(const PageLease&) = delete;

  [[nodiscard]] shm::ServedClientPage& page() const { return *page_; }

 private:
  explicit PageLease(std::shared_ptr<shm::ServedClientPage> page) : page_(std::move(page)) {}

  Writers writers_;
  std::shared_ptr<shm::ServedClientPage> page_;
};

}  // namespace kvd::daemon
