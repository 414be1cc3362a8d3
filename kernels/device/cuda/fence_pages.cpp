#include "kernels/device/cuda/fence_pages.hpp"

#include <string>
#include <utility>

namespace kvd::kernels::cuda {
namespace {

constexpr Bytes kPage = kKiB * 4;

bool whole_pages(std::uintptr_t address, Bytes size) {
  return address % kPage.size() == 0 && size > Bytes(0) && size.value % kPage.value == 0;
}

}  // namespace

Status FencePages::adopt(const Driver& driver, std::uintptr_t address, Bytes size) {
  if (!whole_pages(address, size)) {
    return make_error(ErrorCode::kInvalidArgument, "a fence page of " + std::to_string(size.value) +
                                                       " bytes is not made of whole pages");
  }
  const std::lock_guard lock(mutex_);
  const auto after = pages_.lower_bound(address + size.size());
  if (after != pages_.begin()) {
    const HostRegistration& before = std::prev(after)->second->registration;
    if (before.address() + before.size().size() > address) {
      return make_error(ErrorCode::kInvalidArgument, "a fence page is adopted already");
    }
  }
  KVD_ASSIGN_OR_RETURN(HostRegistration registration,
                       HostRegistration::make(driver, address, size));
  std::vector<std::uint64_t> queued(size.size() / sizeof(std::uint64_t));
  pages_.emplace(address,
                 std::make_unique<Page>(Page{std::move(registration), std::move(queued), 0}));
  return {};
}

void FencePages::release(std::uintptr_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(address);
  if (found == pages_.end()) return;
  if (found->second->writes > 0 || health_.lost()) kept_.push_back(std::move(found->second));
  pages_.erase(found);
}

FencePages::Target FencePages::target(const std::atomic<std::uint64_t>* word) {
  Target target;
  const auto address = reinterpret_cast<std::uintptr_t>(word);
  const std::lock_guard lock(mutex_);
  const auto next = pages_.upper_bound(address);
  if (word == nullptr || next == pages_.begin()) return target;
  Page& page = *std::prev(next)->second;
  const std::size_t offset = address - page.registration.address();
  if (offset + sizeof(std::uint64_t) > page.registration.size().size()) return target;
  ++page.writes;
  target.page_ = &page;
  target.word_ = offset / sizeof(std::uint64_t);
  target.address_ = page.registration.device_address() + offset;
  return target;
}

bool FencePages::raise(const Target& target, std::uint64_t value) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& queued = target.page_->queued[target.word_];
  if (value <= queued) return false;
  queued = value;
  return true;
}

void FencePages::done(const Target& target) {
  if (!target) return;
  const std::lock_guard lock(mutex_);
  --target.page_->writes;
}

}  // namespace kvd::kernels::cuda
