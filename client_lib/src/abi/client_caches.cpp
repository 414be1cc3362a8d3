#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "client_lib/src/abi/client_impl.hpp"
#include "client_lib/src/core/convert.hpp"
#include "ipc/digest/fingerprint.hpp"
#include "ipc/wire/attach_codec.hpp"

/// The calls of level 2: caches of engines that place their blocks themselves.
namespace kvd::client {
namespace {

constexpr std::size_t kMostBlocks = wire::kMaxRequestsPerStep;

wire::CacheOpenCommand open_command(const kvd_client::CacheOptions& options, RegionId region,
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

wire::CacheCommand command_of(const CacheBook::Known& cache, wire::CacheOp op,
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
      command_of({cache, wire::kCacheAwait}, wire::CacheOp::kLookup, {});
  return session.call(of_nothing, until).ok();
}

/// A lookup, a drop or a hint.
struct Question {
  std::uint64_t cache = 0;
  wire::CacheOp op = wire::CacheOp::kLookup;
  std::span<const kvd_client::Digest> digests;
  std::uint32_t retain_ms = 0;
};

/// What does not fit one command is asked in several.
Result<std::uint64_t> ask(DaemonLink& link, const CacheBook& book, const Question& asked,
                          Nanoseconds timeout) {
  return link.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint64_t> {
        KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book.of_daemon(asked.cache, session));
        std::uint64_t sum = 0;
        for (auto rest = asked.digests; !rest.empty();) {
          const auto part = rest.first(std::min(rest.size(), kMostBlocks));
          rest = rest.subspan(part.size());
          const std::vector<wire::CacheBlock> blocks = to_wire(part, {});
          wire::CacheCommand command = command_of(known, asked.op, blocks);
          command.body.retain_ms = asked.retain_ms;
          KVD_ASSIGN_OR_RETURN(const std::uint64_t count, value_of(session->call(command, until)));
          sum += count;
          if (asked.op == wire::CacheOp::kLookup && count < part.size()) break;
        }
        return sum;
      });
}

/// Never attaches: its caller is in the middle of a step.
Status post(DaemonLink& link, const CacheBook& book, LookupsAhead& ahead, const Question& asked) {
  if (asked.digests.empty()) return {};
  if (asked.digests.size() > kMostBlocks) return invalid("more than 4096 blocks cannot be posted");
  return link.in_a_step(Nanoseconds(0), [&](const SessionPtr& session, TimePoint now) -> Status {
    KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book.of_daemon(asked.cache, session));
    const std::vector<wire::CacheBlock> blocks = to_wire(asked.digests, {});
    const wire::CacheCommand command = command_of(known, asked.op, blocks);
    const bool wanted = asked.op == wire::CacheOp::kLookup;
    KVD_ASSIGN_OR_RETURN(const std::uint64_t number,
                         session->post(command, wanted, now + LookupsAhead::kGoodFor));
    if (wanted) ahead.add(session, asked.cache, asked.digests, number, now);
    return {};
  });
}

struct CopyOfBlocks {
  std::uint64_t cache = 0;
  wire::CacheOp op = wire::CacheOp::kStore;
  std::span<const kvd_client::Digest> digests;
  std::span<const std::uint32_t> blocks;
  bool park = false;
};

/// Stores or loads. Where the daemon copies, or may copy, `ticket` is not 0 and has to be polled
/// whatever is returned.
Status copy_blocks(DaemonLink& link, CacheBook& book, const CopyOfBlocks& copy, Nanoseconds timeout,
                   std::uint64_t& ticket) {
  ticket = 0;
  if (copy.digests.size() != copy.blocks.size() || copy.digests.empty()) {
    return invalid("a copy of no blocks, or not of one for each digest");
  }
  if (copy.digests.size() > kMostBlocks) {
    return invalid("more than 4096 blocks: split them over several calls");
  }
  const std::vector<wire::CacheBlock> blocks = to_wire(copy.digests, copy.blocks);
  return link.on_memory(timeout, [&](const SessionPtr& session, TimePoint until) -> Status {
    wire::CacheCommand command;
    KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, book.of_daemon(copy.cache, session));
    command.body.cache = known.id;
    command.body.op = static_cast<std::uint32_t>(copy.op);
    command.body.flags = copy.park ? std::uint32_t{wire::kCachePark} : 0u;
    command.blocks = blocks;
    KVD_ASSIGN_OR_RETURN(command.body.ticket, book.begin(session));
    const auto reply = session->call(command, until);
    const ErrorCode code = reply.ok() ? ErrorCode::kOk : reply.error().code;
    const bool unknown = code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kUnavailable;
    if (unknown) {
      book.unanswered(command.body.ticket);
    } else {
      book.answered(command.body.ticket, reply.ok());
    }
    if (reply.ok() || unknown) ticket = command.body.ticket;
    return reply.ok() ? Status() : Status(reply.error());
  });
}

}  // namespace
}  // namespace kvd::client

namespace kvd_client {

namespace wire = kvd::wire;
using kvd::TimePoint;
using kvd::client::CacheBook;
using kvd::client::public_result;
using kvd::client::SessionPtr;
using kvd::client::value_of;

Result<std::uint64_t> Caches::open(const CacheOptions& options, Duration timeout) {
  if (options.model.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "the cache has no model to tell its blocks from others: set the option"};
  }
  std::vector<wire::BlockPiece> pieces;
  if (options.region_id != 0) {
    for (const BlockPiece& piece : options.pieces) {
      pieces.push_back({piece.offset, piece.stride, piece.bytes});
    }
  }
  const auto open = [&](const SessionPtr& session, TimePoint until) -> kvd::Result<std::uint64_t> {
    kvd::RegionId region;
    if (options.region_id != 0) {
      const auto found = impl_->link.regions().daemon_id(options.region_id, session);
      if (!found) {
        return kvd::make_error(kvd::ErrorCode::kNotFound,
                               "region " + std::to_string(options.region_id) +
                                   " is not one that this client has of the daemon");
      }
      region = *found;
    }
    wire::CacheOpenCommand command = kvd::client::open_command(options, region, pieces);
    if (options.block_bytes == 0) {
      command.body.fingerprint =
          kvd::client::fingerprint_of(options.model, session->welcome().shape);
    }
    KVD_ASSIGN_OR_RETURN(const std::uint64_t id, value_of(session->call(command, until)));
    // This is for people alone. A daemon that does not take it has opened the cache all the same.
    static_cast<void>(session->call(kvd::client::description(id, options.model), until));
    CacheBook::Known known{id, 0};
    if (options.await_remote && kvd::client::knows_await(*session, id, until)) {
      known.lookup_flags = wire::kCacheAwait;
    }
    return impl_->book.add(session, known);
  };
  return public_result(impl_->link.on_memory(timeout, open));
}

Status Caches::close(std::uint64_t cache, Duration timeout) {
  const auto close = [&](const SessionPtr& session, TimePoint until) -> kvd::Status {
    const auto known = impl_->book.of_daemon(cache, session);
    if (!known.ok() && known.error().code == kvd::ErrorCode::kNotFound) return known.error();
    impl_->book.forget(cache);
    if (!known.ok()) return {};  // it went with its daemon
    wire::FinishCommand finish;
    finish.body.target = known->id;
    finish.body.kind = static_cast<std::uint32_t>(wire::TargetKind::kCache);
    KVD_TRY(session->call(finish, until));
    return {};
  };
  return public_result(impl_->link.on_memory(timeout, close));
}

Result<std::uint64_t> Caches::lookup(std::uint64_t cache, std::span<const Digest> digests,
                                     Duration timeout) {
  using Found = std::optional<std::uint64_t>;
  const auto collect = [&](const SessionPtr& session, TimePoint until) -> kvd::Result<Found> {
    const auto number = impl_->ahead.take(session, cache, digests, impl_->link.clock().now());
    if (!number) return Found();
    KVD_ASSIGN_OR_RETURN(const std::uint64_t found, value_of(session->collect(*number, until)));
    return Found(std::min<std::uint64_t>(found, digests.size()));
  };
  const auto posted = impl_->link.on_memory(timeout, collect);
  if (!posted.ok()) return kvd::client::public_error(posted.error());
  if (*posted) return **posted;
  return public_result(kvd::client::ask(impl_->link, impl_->book,
                                        {cache, wire::CacheOp::kLookup, digests}, timeout));
}

Status Caches::post_lookup(std::uint64_t cache, std::span<const Digest> digests) {
  return public_result(kvd::client::post(impl_->link, impl_->book, impl_->ahead,
                                         {cache, wire::CacheOp::kLookup, digests}));
}

Status Caches::post_drop(std::uint64_t cache, std::span<const Digest> digests) {
  return public_result(kvd::client::post(impl_->link, impl_->book, impl_->ahead,
                                         {cache, wire::CacheOp::kDrop, digests}));
}

Status Caches::store(std::uint64_t cache, std::span<const Digest> digests,
                     std::span<const std::uint32_t> blocks, bool park, Duration timeout,
                     std::uint64_t& ticket) {
  return public_result(kvd::client::copy_blocks(
      impl_->link, impl_->book, {cache, wire::CacheOp::kStore, digests, blocks, park}, timeout,
      ticket));
}

Status Caches::load(std::uint64_t cache, std::span<const Digest> digests,
                    std::span<const std::uint32_t> blocks, Duration timeout,
                    std::uint64_t& ticket) {
  return public_result(kvd::client::copy_blocks(
      impl_->link, impl_->book, {cache, wire::CacheOp::kLoad, digests, blocks}, timeout, ticket));
}

Result<std::uint64_t> Caches::drop(std::uint64_t cache, std::span<const Digest> digests,
                                   Duration timeout) {
  return public_result(
      kvd::client::ask(impl_->link, impl_->book, {cache, wire::CacheOp::kDrop, digests}, timeout));
}

Result<std::uint64_t> Caches::retain(std::uint64_t cache, std::span<const Digest> digests,
                                     Duration time, Duration timeout) {
  return hint(cache, Hint::kRetain, digests, time, timeout);
}

Result<std::uint64_t> Caches::hint(std::uint64_t cache, Hint hint, std::span<const Digest> digests,
                                   Duration time, Duration timeout) {
  using Op = kvd::wire::CacheOp;
  constexpr Op kOps[] = {Op::kRetain, Op::kPin, Op::kUnpin, Op::kDemote, Op::kPrefetch};
  const std::uint32_t number = static_cast<std::uint32_t>(hint) - 1;
  if (number >= std::size(kOps)) return Error{ErrorCode::kInvalidArgument, "no such hint"};
  const bool has_time = hint == Hint::kRetain || hint == Hint::kPrefetch;
  if (time < Duration(0) || time > std::chrono::hours(24)) {
    return Error{ErrorCode::kInvalidArgument, "blocks are retained for 0 to 24 hours"};
  }
  if ((!has_time && time != Duration(0)) || (hint == Hint::kPrefetch && time == Duration(0))) {
    return Error{
        ErrorCode::kInvalidArgument,
        "a prefetch says for how long blocks are retained, a pin, unpin or demotion does not"};
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return public_result(
      kvd::client::ask(impl_->link, impl_->book,
                       {cache, kOps[number], digests, static_cast<std::uint32_t>(ms)}, timeout));
}

Result<std::uint64_t> Caches::label(std::uint64_t cache, const BlockLabels& labels,
                                    Duration timeout) {
  wire::CacheLabelCommand command;
  const std::size_t count = labels.digests.size();
  if (count > wire::kMaxLabelled) {
    return Error{ErrorCode::kInvalidArgument, "labels of more than 1024 blocks"};
  }
  if (count == 0 || labels.tokens.size() % count != 0) {
    return Error{ErrorCode::kInvalidArgument, "not the tokens of the blocks"};
  }
  if (labels.lora.size() >= command.body.lora.size()) {
    return Error{ErrorCode::kInvalidArgument, "a name of over 63 characters"};
  }
  command.body.parent = labels.parent;
  wire::set_text(command.body.lora, labels.lora);
  command.body.block_tokens = static_cast<std::uint32_t>(labels.tokens.size() / count);
  command.digests = labels.digests;
  command.tokens = labels.tokens;
  const auto label = [&](const SessionPtr& session, TimePoint until) -> kvd::Result<std::uint64_t> {
    KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, impl_->book.of_daemon(cache, session));
    command.body.cache = known.id;
    return value_of(session->call(command, until));
  };
  return public_result(impl_->link.on_memory(timeout, label));
}

Result<CacheChanges> Caches::changes(std::uint64_t cache, const CacheCursor& seen,
                                     Duration timeout) {
  const auto ask = [&](const SessionPtr& session, TimePoint until) -> kvd::Result<CacheChanges> {
    KVD_ASSIGN_OR_RETURN(const CacheBook::Known known, impl_->book.of_daemon(cache, session));
    const wire::CacheChangesBody asked{known.id, {seen.life, seen.start, seen.position}};
    return kvd::client::answer_of<wire::CacheChangesReply>(
        session->call(asked, until),
        [](const wire::CacheChangesReply& reply) { return kvd::client::to_public(reply); });
  };
  return public_result(impl_->link.on_memory(timeout, ask));
}

std::vector<TicketState> Caches::poll(std::span<const std::uint64_t> tickets) {
  const bool forked = impl_->link.forked();
  std::vector<TicketState> states;
  states.reserve(tickets.size());
  for (const std::uint64_t ticket : tickets) {
    states.push_back(forked ? TicketState::kFailed : impl_->book.poll(ticket));
  }
  return states;
}

Status Caches::wait(std::span<const std::uint64_t> tickets, Duration timeout) {
  const kvd::client::DaemonLink& link = impl_->link;
  const kvd::Status usable = link.check_fork();
  if (!usable.ok()) return kvd::client::public_error(usable.error());
  return public_result(impl_->book.wait(tickets, link.deadline(timeout), link.clock()));
}

}  // namespace kvd_client
