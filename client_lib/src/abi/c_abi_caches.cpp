#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "client_lib/src/abi/c_handle.hpp"
#include "ipc/wire/messages.hpp"

namespace kc = kvd_client;
using namespace kvd::client::c;  // NOLINT(google-build-using-namespace): this file is C outside

namespace {

// Checked before the array is read: a wild count must not be followed.
constexpr std::uint64_t kMostPieces = kvd::wire::kMaxRequestsPerStep;
constexpr std::uint64_t kMostCopied = kvd::wire::kMaxRequestsPerStep;
constexpr std::uint64_t kMostDigests = std::uint64_t{1} << 20;
constexpr const char* kTooManyBlocks = "more than 4096 blocks: split them over several calls";
constexpr const char* kTooManyDigests = "more than 2^20 digests: split them over several calls";

std::vector<kc::Digest> copies_of(const uint8_t* digests, std::uint64_t count) {
  std::vector<kc::Digest> copies(count);
  if (count != 0) std::memcpy(copies.data(), digests, count * sizeof(kc::Digest));
  return copies;
}

/// Null: the arguments can be used.
const char* fault_of(const kvd_handle* handle, const uint8_t* digests, std::uint64_t count,
                     std::uint64_t most) {
  if (handle == nullptr) return kNoHandle;
  if (digests == nullptr && count != 0) return "digests is NULL";
  if (count > most) return most == kMostCopied ? kTooManyBlocks : kTooManyDigests;
  return nullptr;
}

kvd_status copied(const kc::Status& status, std::uint64_t ticket, std::uint64_t* out) {
  *out = ticket;
  return done(status);
}

}  // namespace

kvd_status kvd_cache_open(kvd_handle* handle, const kvd_cache_options* options, uint64_t timeout_ns,
                          uint64_t* cache) {
  kvd_cache_options in{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (!read_struct(options, in)) return invalid(kNoStruct);
  if (cache == nullptr) return invalid("cache is NULL");
  if (in.piece_count > kMostPieces) return invalid("more than 4096 pieces of a block");
  if (in.pieces == nullptr && in.piece_count != 0) return invalid("pieces is NULL");
  if ((in.flags & ~KVD_CACHE_AWAIT_REMOTE) != 0) return invalid("unknown flags of a cache");
  kc::CacheOptions wanted;
  if (in.model != nullptr) wanted.model = in.model;
  wanted.block_tokens = in.block_tokens;
  wanted.await_remote = (in.flags & KVD_CACHE_AWAIT_REMOTE) != 0;
  wanted.block_bytes = in.block_bytes;
  wanted.region_id = in.region_id;
  wanted.blocks = in.blocks;
  for (const kvd_block_piece& piece : std::span(in.pieces, in.piece_count)) {
    wanted.pieces.push_back({piece.offset, piece.stride, piece.bytes});
  }
  const auto opened = handle->client.caches().open(wanted, duration(timeout_ns));
  if (!opened.ok()) return fail(opened.error());
  *cache = *opened;
  return KVD_OK;
}

kvd_status kvd_cache_close(kvd_handle* handle, uint64_t cache, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.caches().close(cache, duration(timeout_ns)));
}

kvd_status kvd_cache_lookup(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                            uint64_t count, uint64_t timeout_ns, uint64_t* leading) {
  if (const char* fault = fault_of(handle, digests, count, kMostDigests)) return invalid(fault);
  if (leading == nullptr) return invalid("leading is NULL");
  const auto found =
      handle->client.caches().lookup(cache, copies_of(digests, count), duration(timeout_ns));
  if (!found.ok()) return fail(found.error());
  *leading = *found;
  return KVD_OK;
}

kvd_status kvd_cache_post_lookup(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                 uint64_t count) {
  if (const char* fault = fault_of(handle, digests, count, kMostCopied)) return invalid(fault);
  return done(handle->client.caches().post_lookup(cache, copies_of(digests, count)));
}

kvd_status kvd_cache_post_drop(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                               uint64_t count) {
  if (const char* fault = fault_of(handle, digests, count, kMostCopied)) return invalid(fault);
  return done(handle->client.caches().post_drop(cache, copies_of(digests, count)));
}

// NOLINTNEXTLINE(readability-function-size): C has no spans
kvd_status kvd_cache_store(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                           const uint32_t* block_ids, uint64_t count, uint32_t flags,
                           uint64_t timeout_ns, uint64_t* ticket) {
  if (ticket == nullptr) return invalid("ticket is NULL");
  *ticket = 0;
  if (const char* fault = fault_of(handle, digests, count, kMostCopied)) return invalid(fault);
  if (block_ids == nullptr && count != 0) return invalid("block_ids is NULL");
  if ((flags & ~KVD_CACHE_PARK) != 0) return invalid("unknown flags");
  std::uint64_t number = 0;
  const auto status =
      handle->client.caches().store(cache, copies_of(digests, count), std::span(block_ids, count),
                                    (flags & KVD_CACHE_PARK) != 0, duration(timeout_ns), number);
  return copied(status, number, ticket);
}

// NOLINTNEXTLINE(readability-function-size): C has no spans
kvd_status kvd_cache_load(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                          const uint32_t* block_ids, uint64_t count, uint64_t timeout_ns,
                          uint64_t* ticket) {
  if (ticket == nullptr) return invalid("ticket is NULL");
  *ticket = 0;
  if (const char* fault = fault_of(handle, digests, count, kMostCopied)) return invalid(fault);
  if (block_ids == nullptr && count != 0) return invalid("block_ids is NULL");
  std::uint64_t number = 0;
  const auto status = handle->client.caches().load(
      cache, copies_of(digests, count), std::span(block_ids, count), duration(timeout_ns), number);
  return copied(status, number, ticket);
}

kvd_status kvd_cache_drop(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                          uint64_t count, uint64_t timeout_ns) {
  if (const char* fault = fault_of(handle, digests, count, kMostDigests)) return invalid(fault);
  const auto dropped =
      handle->client.caches().drop(cache, copies_of(digests, count), duration(timeout_ns));
  return dropped.ok() ? KVD_OK : fail(dropped.error());
}

// NOLINTNEXTLINE(readability-function-size): C has no spans
kvd_status kvd_cache_retain(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                            uint64_t count, uint64_t time_ns, uint64_t timeout_ns,
                            uint64_t* retained) {
  return kvd_cache_hint(handle, cache, KVD_HINT_RETAIN, digests, count, time_ns, timeout_ns,
                        retained);
}

// NOLINTNEXTLINE(readability-function-size): C has no spans
kvd_status kvd_cache_hint(kvd_handle* handle, uint64_t cache, uint32_t hint, const uint8_t* digests,
                          uint64_t count, uint64_t time_ns, uint64_t timeout_ns, uint64_t* taken) {
  if (const char* fault = fault_of(handle, digests, count, kMostDigests)) return invalid(fault);
  if (taken == nullptr) return invalid("the place for the number of blocks is NULL");
  const auto hinted =
      handle->client.caches().hint(cache, static_cast<kc::Hint>(hint), copies_of(digests, count),
                                   duration(time_ns), duration(timeout_ns));
  if (!hinted.ok()) return fail(hinted.error());
  *taken = *hinted;
  return KVD_OK;
}

// NOLINTNEXTLINE(readability-function-size): C has no spans
kvd_status kvd_cache_label(kvd_handle* handle, uint64_t cache, const uint8_t* parent,
                           const char* lora, const uint8_t* digests, uint64_t count,
                           const uint32_t* tokens, uint64_t token_count, uint64_t timeout_ns,
                           uint64_t* kept) {
  if (const char* fault = fault_of(handle, digests, count, kMostCopied)) return invalid(fault);
  if (tokens == nullptr || kept == nullptr) return invalid("tokens or kept is NULL");
  if (token_count > kMostDigests) return invalid("more than 2^20 tokens");
  const std::vector<kc::Digest> named = copies_of(digests, count);
  kc::BlockLabels labels;
  labels.digests = named;
  labels.tokens = std::span(tokens, token_count);
  if (parent != nullptr) std::memcpy(labels.parent.data(), parent, labels.parent.size());
  if (lora != nullptr) labels.lora = lora;
  const auto told = handle->client.caches().label(cache, labels, duration(timeout_ns));
  if (!told.ok()) return fail(told.error());
  *kept = *told;
  return KVD_OK;
}

kvd_status kvd_cache_get_changes(kvd_handle* handle, uint64_t cache, kvd_cache_cursor* cursor,
                                 uint64_t timeout_ns, kvd_cache_changes* changes) {
  kvd_cache_changes out{};
  if (handle == nullptr) return invalid(kNoHandle);
  if (cursor == nullptr) return invalid("cursor is NULL");
  if (!read_struct(changes, out)) return invalid(kNoStruct);
  auto found = handle->client.caches().changes(
      cache, {cursor->life, cursor->start, cursor->position}, duration(timeout_ns));
  if (!found.ok()) return fail(found.error());
  handle->changes = std::move(*found);
  handle->change_views.clear();
  for (const kc::CacheChange& change : handle->changes.all) {
    kvd_cache_change& view = handle->change_views.emplace_back();
    std::memcpy(view.digest, change.digest.data(), sizeof view.digest);
    std::memcpy(view.parent, change.parent.data(), sizeof view.parent);
    std::memcpy(view.lora, change.lora.data(), std::min(change.lora.size(), sizeof view.lora - 1));
    view.tiers = (change.in_dram ? KVD_CHANGE_IN_DRAM : 0u) |
                 (change.on_disk ? KVD_CHANGE_ON_DISK : 0u) |
                 (change.in_hbm ? KVD_CHANGE_IN_HBM : 0u);
    view.token_count = static_cast<std::uint32_t>(change.tokens.size());
    view.tokens = change.tokens.data();
  }
  const kc::CacheCursor& next = handle->changes.next;
  *cursor = {next.life, next.start, next.position};
  out.changes = handle->change_views.data();
  out.count = handle->change_views.size();
  out.flags = (handle->changes.over ? KVD_CHANGES_OVER : 0u) |
              (handle->changes.more ? KVD_CHANGES_MORE : 0u);
  return write_struct(out, changes);
}

kvd_status kvd_cache_poll(kvd_handle* handle, const uint64_t* tickets, uint8_t* states,
                          uint64_t count) {
  if (handle == nullptr) return invalid(kNoHandle);
  if ((tickets == nullptr || states == nullptr) && count != 0) {
    return invalid("tickets or states is NULL");
  }
  if (count > kMostDigests) return invalid("more than 2^20 tickets");
  const auto found = handle->client.caches().poll(std::span(tickets, count));
  for (std::size_t i = 0; i < found.size(); ++i) states[i] = static_cast<uint8_t>(found[i]);
  return KVD_OK;
}

kvd_status kvd_cache_wait(kvd_handle* handle, const uint64_t* tickets, uint64_t count,
                          uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (tickets == nullptr && count != 0) return invalid("tickets is NULL");
  if (count > kMostDigests) return invalid("more than 2^20 tickets");
  return done(handle->client.caches().wait(std::span(tickets, count), duration(timeout_ns)));
}
