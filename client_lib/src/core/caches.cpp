#include "client_lib/src/core/caches.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "client_lib/src/core/convert.hpp"
#include "ipc/digest/fingerprint.hpp"
#include "ipc/wire/attach_codec.hpp"

namespace kvd::client {
namespace {

constexpr std::size_t kMostBlocks = wire::kMaxRequestsPerStep;

wire::CacheOpenCommand to_wire(const kvd_client::CacheOptions& options, RegionId region,
                               std::span<const wire::BlockPiece> pieces) {
  digest::BlockFacts facts;
  facts.model = options.model;
  // The prefix keeps these blocks apart from blocks of requests, whatever the model text says.
  facts.layout = "placed by the engine, " + std::to_string(options.block_bytes) + " bytes";
  facts.block_tokens = Tokens(options.block_tokens);
  wire::CacheOpenCommand open;
  open.body.fingerprint = digest::fingerprint(facts).digest.bytes;
  open.body.region = region.value;
  open.body.blocks = region ? options.blocks : 0;
  open.body.block_bytes = options.block_bytes;
  open.body.block_tokens = options.block_tokens;
  open.pieces = pieces;
  return open;
}

/// The part of the model's text that people are shown, without characters that a log line must not
/// have.
wire::CacheModelBody description(std::uint64_t cache, std::string_view model) {
  wire::CacheModelBody body;
  body.cache = cache;
  std::transform(model.begin(), model.begin() + std::min(model.size(), body.model.size() - 1),
                 body.model.begin(), [](char c) { return c >= ' ' && c <= '~' ? c : '?'; });
  return body;
}

std::vector<wire::CacheBlock> to_wire(std::span<const kvd_client::Digest> digests,
                                      std::span<const std::uint32_t> blocks) {
  std::vector<wire::CacheBlock> entries;
  entries.reserve(digests.size());
  for (std::size_t i = 0; i < digests.size(); ++i) {
    entries.push_back({digests[i], blocks.empty() ? 0 : blocks[i], 0});
  }
  return entries;
}

/// A lookup, a drop or a retain.
wire::CacheCommand question(const CacheBook::Known& cache, wire::CacheOp op,
                            std::span<const wire::CacheBlock> blocks) {
  wire::CacheCommand command;
  command.body.cache = cache.id;
  command.body.op = static_cast<std::uint32_t>(op);
  if (op == wire::CacheOp::kLookup) command.body.flags = cache.lookup_flags;
  command.blocks = blocks;
  return command;
}

/// An older daemon refuses the flag.
bool knows_await(Session& session, std::uint64_t cache, TimePoint until) {
  const wire::CacheCommand of_nothing =
      question({cache, wire::kCacheAwait}, wire::CacheOp::kLookup, {});
  return session.call(of_nothing, until).ok();
}

}  // namespace

Result<std::uint64_t> Caches::open(const kvd_client::CacheOptions& options, Nanoseconds timeout) {
  if (options.model.empty()) {
    return invalid("the cache has no model to tell its blocks from others: set the option");
  }
  std::vector<wire::BlockPiece> pieces;
  if (options.region_id != 0) {
    for (const kvd_client::BlockPiece& piece : options.pieces) {
      pieces.push_back({piece.offset, piece.stride, piece.bytes});
    }
  }
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint64_t> {
        RegionId region;
        if (options.region_id != 0) {
          const auto found = link_.regions().daemon_id(options.region_id, session);
          if (!found) {
            return make_error(ErrorCode::kNotFound,
                              "region " + std::to_string(options.region_id) +
                                  " is not one that this client has of the daemon");
          }
          region = *found;
        }
        wire::CacheOpenCommand open = to_wire(options, region, pieces);
        if (options.block_bytes == 0) {
          open.body.fingerprint = fingerprint_of(options.model, session->welcome().shape);
        }
        KVD_ASSIGN_OR_RETURN(const std::uint64_t id, value_of(session->call(open, until)));
        // This is for people alone. A daemon that does not take it has opened the cache all the
        // same.
        static_cast<void>(session->call(description(id, options.model), until));
        CacheBook::Known known{id, 0};
        if (options.await_remote && knows_await(*session, id, until)) {
          known.lookup_flags = wire::kCacheAwait;
        }
        return book_.add(session, known);
      });
}

Status Caches::close(std::uint64_t cache, Nanoseconds timeout) {
  return link_.on_memory(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    const auto known = book_.of_daemon(cache, session);
    if (!known.ok() && known.error().code == ErrorCode::kNotFound) return known.error();
    book_.forget(cache);
    if (!known.ok()) return {};  // it went with its daemon
    wire::FinishCommand finish;
    finish.body.target = known->id;
    finish.body.kind = static_cast<std::uint32_t>(wire::TargetKind::kCache);
    KVD_TRY(session->call(finish, until));
    return {};
  });
}

// What does not fit one command is asked in several.
Result<std::uint64_t> Caches::ask(std::uint64_t cache, wire::CacheOp op,
                                  std::span<const kvd_client::Digest> digests, Nanoseconds timeout,
                                  std::uint32_t retain_ms) {
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint64_t> {
        KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book_.of_daemon(cache, session));
        std::uint64_t sum = 0;
        for (auto rest = digests; !rest.empty();) {
          const auto part = rest.first(std::min(rest.size(), kMostBlocks));
          rest = rest.subspan(part.size());
          const std::vector<wire::CacheBlock> blocks = to_wire(part, {});
          wire::CacheCommand command = question(known, op, blocks);
          command.body.retain_ms = retain_ms;
          KVD_ASSIGN_OR_RETURN(const std::uint64_t count, value_of(session->call(command, until)));
          sum += count;
          if (op == wire::CacheOp::kLookup && count < part.size()) break;
        }
        return sum;
      });
}

// Never attaches: its caller is in the middle of a step.
Status Caches::post(std::uint64_t cache, wire::CacheOp op,
                    std::span<const kvd_client::Digest> digests) {
  if (digests.size() > kMostBlocks) return invalid("more than 4096 blocks cannot be posted");
  return link_.in_a_step(Nanoseconds(0), [&](const SessionPtr& session, TimePoint now) -> Status {
    KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book_.of_daemon(cache, session));
    const std::vector<wire::CacheBlock> blocks = to_wire(digests, {});
    const wire::CacheCommand command = question(known, op, blocks);
    const bool wanted = op == wire::CacheOp::kLookup;
    KVD_ASSIGN_OR_RETURN(const std::uint64_t number,
                         session->post(command, wanted, now + LookupsAhead::kGoodFor));
    if (wanted) ahead_.add(session, cache, digests, number, now);
    return {};
  });
}

Status Caches::post_lookup(std::uint64_t cache, std::span<const kvd_client::Digest> digests) {
  return digests.empty() ? Status() : post(cache, wire::CacheOp::kLookup, digests);
}

Status Caches::post_drop(std::uint64_t cache, std::span<const kvd_client::Digest> digests) {
  return digests.empty() ? Status() : post(cache, wire::CacheOp::kDrop, digests);
}

Result<std::uint64_t> Caches::lookup(std::uint64_t cache,
                                     std::span<const kvd_client::Digest> digests,
                                     Nanoseconds timeout) {
  const auto posted = link_.on_memory(
      timeout,
      [&](const SessionPtr& session, TimePoint until) -> Result<std::optional<std::uint64_t>> {
        const auto number = ahead_.take(session, cache, digests, link_.clock().now());
        if (!number) return std::optional<std::uint64_t>();
        KVD_ASSIGN_OR_RETURN(const std::uint64_t found, value_of(session->collect(*number, until)));
        return std::optional(std::min<std::uint64_t>(found, digests.size()));
      });
  if (!posted.ok()) return posted.error();
  if (*posted) return **posted;
  return ask(cache, wire::CacheOp::kLookup, digests, timeout);
}

Result<std::uint64_t> Caches::drop(std::uint64_t cache, std::span<const kvd_client::Digest> digests,
                                   Nanoseconds timeout) {
  return ask(cache, wire::CacheOp::kDrop, digests, timeout);
}

Result<std::uint64_t> Caches::retain(std::uint64_t cache,
                                     std::span<const kvd_client::Digest> digests, Nanoseconds time,
                                     Nanoseconds timeout) {
  if (time < Nanoseconds(0) || time > std::chrono::hours(24)) {
    return invalid("blocks are retained for 0 to 24 hours");
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return ask(cache, wire::CacheOp::kRetain, digests, timeout, static_cast<std::uint32_t>(ms));
}

Status Caches::copy(const CopyOfBlocks& copy, Nanoseconds timeout, std::uint64_t& ticket) {
  ticket = 0;
  if (copy.digests.size() != copy.blocks.size() || copy.digests.empty()) {
    return invalid("a copy of no blocks, or not of one for each digest");
  }
  if (copy.digests.size() > kMostBlocks) {
    return invalid("more than 4096 blocks: split them over several calls");
  }
  const std::vector<wire::CacheBlock> blocks = to_wire(copy.digests, copy.blocks);
  return link_.on_memory(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    wire::CacheCommand command;
    KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book_.of_daemon(copy.cache, session));
    command.body.cache = known.id;
    command.body.op = static_cast<std::uint32_t>(copy.op);
    command.body.flags = copy.park ? std::uint32_t{wire::kCachePark} : 0u;
    command.blocks = blocks;
    KVD_ASSIGN_OR_RETURN(command.body.ticket, book_.begin(session));
    const auto reply = session->call(command, until);
    const ErrorCode code = reply.ok() ? ErrorCode::kOk : reply.error().code;
    const bool unknown = code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kUnavailable;
    if (unknown) {
      book_.unanswered(command.body.ticket);
    } else {
      book_.answered(command.body.ticket, reply.ok());
    }
    if (reply.ok() || unknown) ticket = command.body.ticket;
    return reply.ok() ? Status() : Status(reply.error());
  });
}

Result<std::uint64_t> Caches::label(std::uint64_t cache, const kvd_client::BlockLabels& labels,
                                    Nanoseconds timeout) {
  const std::size_t count = labels.digests.size();
  if (count > wire::kMaxLabelled) return invalid("labels of more than 1024 blocks");
  if (count == 0 || labels.tokens.size() % count != 0)
    return invalid("not the tokens of the blocks");
  wire::CacheLabelCommand command;
  command.body.parent = labels.parent;
  if (labels.lora.size() >= command.body.lora.size())
    return invalid("a name of over 63 characters");
  wire::set_text(command.body.lora, labels.lora);
  command.body.block_tokens = static_cast<std::uint32_t>(labels.tokens.size() / count);
  command.digests = labels.digests;
  command.tokens = labels.tokens;
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint64_t> {
        KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book_.of_daemon(cache, session));
        command.body.cache = known.id;
        return value_of(session->call(command, until));
      });
}

Result<kvd_client::CacheChanges> Caches::changes(std::uint64_t cache,
                                                 const kvd_client::CacheCursor& seen,
                                                 Nanoseconds timeout) {
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<kvd_client::CacheChanges> {
        KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book_.of_daemon(cache, session));
        const wire::CacheChangesBody asked{known.id, {seen.life, seen.start, seen.position}};
        return answer_of<wire::CacheChangesReply>(
            session->call(asked, until),
            [](const wire::CacheChangesReply& reply) { return to_public(reply); });
      });
}

kvd_client::TicketState Caches::poll(std::uint64_t ticket) {
  return link_.forked() ? kvd_client::TicketState::kFailed : book_.poll(ticket);
}

Status Caches::wait(std::span<const std::uint64_t> tickets, Nanoseconds timeout) {
  KVD_TRY(link_.check_fork());
  return book_.wait(tickets, link_.deadline(timeout), link_.clock());
}

}  // namespace kvd::client
