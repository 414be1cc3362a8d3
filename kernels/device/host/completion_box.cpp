#include "kernels/device/host/completion_box.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "ipc/vocabulary/check.hpp"

namespace kvd::kernels {

Result<UniqueFd> CompletionBox::make_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.valid()) return event;
  return make_error(ErrorCode::kUnavailable, std::string("no descriptor for copy completions: ") +
                                                 std::strerror(errno) + "; raise LimitNOFILE");
}

void CompletionBox::push(Completion completion) {
  const std::lock_guard lock(mutex_);
  const bool was_empty = finished_.empty();
  finished_.push_back(std::move(completion));
  if (was_empty) KVD_CHECK(::eventfd_write(event_.get(), 1) == 0, "signalling a completion");
}

void CompletionBox::drain(std::vector<Completion>& completed) {
  const std::lock_guard lock(mutex_);
  if (finished_.empty()) return;
  eventfd_t ignored = 0;
  KVD_CHECK(::eventfd_read(event_.get(), &ignored) == 0, "taking back a completion signal");
  std::move(finished_.begin(), finished_.end(), std::back_inserter(completed));
  finished_.clear();
}

}  // namespace kvd::kernels
