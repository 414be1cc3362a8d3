#include "client_lib/src/memory/mapping_hold.hpp"

#include <chrono>
#include <utility>

namespace kvd::client {

MappingHold& MappingHold::of_process() {
  static auto* const hold = new MappingHold;  // never destroyed: memory is freed at exit
  return *hold;
}

bool MappingHold::held() const {
  const std::lock_guard lock(mutex_);
  return holds_ > 0;
}

MappingHold::Change MappingHold::begin_change() {
  const std::lock_guard lock(mutex_);
  if (holds_ > 0) return nullptr;
  ++changes_;
  return {this, [this](const void*) { end_change(); }};
}

Result<MappingHold::Change> MappingHold::need_change() {
  Change change = begin_change();
  if (change != nullptr) return change;
  return make_error(ErrorCode::kWouldBlock,
                    "mappings are held: ask again after kvd_release_mappings");
}

void MappingHold::end_change() {
  const std::lock_guard lock(mutex_);
  --changes_;
  changed_.notify_all();
}

void MappingHold::when_free(std::function<void()> change) {
  const Change now = begin_change();
  if (now != nullptr) {
    change();
    change = nullptr;  // what it owns goes within the change
    return;
  }
  const std::lock_guard lock(mutex_);
  put_off_.push_back(std::move(change));
}

Status MappingHold::hold(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  ++holds_;
  const std::chrono::steady_clock::time_point until(deadline);
  if (changed_.wait_until(lock, until, [this] { return changes_ == 0; })) return {};
  --holds_;
  return make_error(ErrorCode::kDeadlineExceeded,
                    "memory is still being mapped or unmapped: allow more time");
}

void MappingHold::release() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(mutex_);
    if (holds_ > 0) --holds_;
    if (holds_ == 0) due.swap(put_off_);
  }
  for (auto& change : due) when_free(std::move(change));
}

}  // namespace kvd::client
