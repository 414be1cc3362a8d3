#include "kernels/device/slab_source.hpp"

#include <utility>

namespace kvd::kernels {
namespace {

Error unfit(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace

Status SlabSource::check_size(Tier tier, Bytes size) const {
  const Bytes grain = granularity(tier);
  if (size > Bytes(0) && size.value % grain.value == 0) return {};
  return unfit("slab size " + std::to_string(size.value) + " is not a positive multiple of " +
               std::to_string(grain.value) + " bytes, the granularity of tier " + name(tier));
}

Result<Slab> SlabSource::create_slab(Tier tier, Bytes size) {
  KVD_TRY(check_size(tier, size));
  return book_.made(do_create_slab(tier, size));
}

Result<Slab> SlabSource::reopen_slab(Tier tier, Bytes size, UniqueFd memory, bool zeroed) {
  return book_.made(do_reopen_slab(tier, size, std::move(memory), zeroed));
}

Result<Slab> SlabSource::do_reopen_slab(Tier, Bytes, UniqueFd, bool) {
  return make_error(ErrorCode::kUnsupported, "memory of another process cannot be taken over");
}

Result<Slab> SlabSource::copy_slab(Bytes size, const UniqueFd& memory,
                                   std::span<const SlabExtent> extents) {
  KVD_TRY(check_size(Tier::kHbm, size));
  for (const SlabExtent& extent : extents) {
    if (extent.from >= Bytes(0) && extent.length > Bytes(0) && extent.from <= size &&
        extent.length <= size - extent.from) {
      continue;
    }
    return unfit("no stretch of a slab of " + std::to_string(size.value) +
                 " bytes: " + std::to_string(extent.length.value) + " bytes from " +
                 std::to_string(extent.from.value) + " on");
  }
  return book_.made(do_copy_slab(size, memory, extents));
}

Status SlabSource::read_slab(std::uintptr_t address, Bytes length, const Look& look) {
  if (length <= Bytes(0)) return unfit("a read of no bytes");
  KVD_ASSIGN_OR_RETURN(const SlabHandle handle, book_.hold(address, length));
  Status read = do_read_slab(address, length, look);
  book_.let_go(handle);
  return read;
}

Status SlabSource::do_read_slab(std::uintptr_t address, Bytes length, const Look& look) {
  look({reinterpret_cast<const std::byte*>(address), length.size()});
  return {};
}

// The book forgets a slab before it goes, so that no batch submitted meanwhile can name it.
Status SlabSource::destroy_slab(SlabHandle handle) {
  KVD_TRY(book_.forget(handle));
  return SlabBook::is_adopted(handle) ? Status() : do_destroy_slab(handle);
}

Status SlabSource::discard_slab(SlabHandle handle) {
  KVD_TRY(book_.forget(handle));
  return do_discard_slab(handle);
}

Result<SlabHandle> SlabSource::adopt_slab(const Slab& slab) {
  if (slab.tier != Tier::kDram) return unfit("a slab of HBM belongs to one device");
  if (slab.pages == PageKind::kDevice) {
    return make_error(ErrorCode::kUnsupported,
                      "DRAM that a GPU's driver made is reached by that GPU alone: with several "
                      "devices DRAM has to be memfd");
  }
  KVD_TRY(do_adopt_slab(slab));
  return book_.adopt(slab);
}

Result<UniqueFd> SlabSource::export_slab(SlabHandle handle) {
  KVD_TRY(book_.check_live(handle));
  return do_export_slab(handle);
}

}  // namespace kvd::kernels
