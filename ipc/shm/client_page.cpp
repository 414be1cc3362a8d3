#include "ipc/shm/client_page.hpp"

#include <new>

namespace kvd::shm {

Result<ServedClientPage> ServedClientPage::create() {
  constexpr Bytes kSize{kClientPageBytes};
  KVD_ASSIGN_OR_RETURN(UniqueFd fd, create_memfd("kvd-client-page", kSize));
  KVD_ASSIGN_OR_RETURN(SharedMapping mapping,
                       SharedMapping::map(fd.get(), kSize, Access::kReadWrite));
  KVD_TRY(close_seals(fd.get(), Writers::kAnyone));
  new (mapping.bytes().data()) ClientPage();
  return ServedClientPage(std::move(fd), std::move(mapping));
}

Result<MappedClientPage> MappedClientPage::map(int fd, Bytes size) {
  if (size.value < static_cast<std::int64_t>(kClientPageBytes)) {
    return make_error(ErrorCode::kInvalidArgument, "the client page is too small");
  }
  KVD_TRY(expect_fixed_size(fd, size));
  KVD_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::map(fd, size, Access::kReadWrite));
  MappedClientPage mapped(std::move(mapping));
  if (mapped.page().magic != kClientPageMagic || mapped.page().layout_version != kLayoutVersion) {
    return make_error(ErrorCode::kInvalidArgument, "this is no client page of a known layout");
  }
  return mapped;
}

Status MappedClientPage::init_keeper() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int failed = pthread_mutex_init(&page().keeper, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (failed == 0) return {};
  return make_error(ErrorCode::kUnsupported, "this system has no robust process-shared mutexes");
}

}  // namespace kvd::shm
