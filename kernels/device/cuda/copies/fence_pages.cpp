#include "kernels/device/cuda/copies/fence_pages.hpp"

#include <pthread.h>

#include <string>
#include <utility>

namespace kvd::kernels::cuda {
namespace {

constexpr Bytes kPage = kKiB * 4;

bool whole_pages(std::uintptr_t address, Bytes size) {
  return address % kPage.size() == 0 && size > Bytes(0) && size.value % kPage.value == 0;
}

}  // namespace

FencePages::FencePages(const PrimaryContext& context, const Health& health)
    : context_(context), health_(health), thread_([this] { let_go(); }) {}

FencePages::~FencePages() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

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
                 std::make_unique<Page>(Page{{}, std::move(registration), std::move(queued)}));
  return {};
}

void FencePages::release(std::uintptr_t address, std::shared_ptr<const void> mapping) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = pages_.find(address);
    if (found == pages_.end()) return;
    std::unique_ptr<Page> page = std::move(found->second);
    pages_.erase(found);
    page->mapping = std::move(mapping);
    if (page->writes > 0 || health_.lost()) {
      kept_.push_back(std::move(page));
    } else {
      released_.push_back(std::move(page));
    }
  }
  wake_.notify_all();
}

bool FencePages::any() const {
  const std::lock_guard lock(mutex_);
  return !pages_.empty();
}

void FencePages::let_go() {
  ::pthread_setname_np(::pthread_self(), "kvd-cuda-pages");
  const ScopedCurrent current(context_);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !released_.empty(); });
    if (released_.empty()) return;
    std::unique_ptr<Page> page = std::move(released_.front());
    released_.pop_front();
    lock.unlock();
    page.reset();
    lock.lock();
  }
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
