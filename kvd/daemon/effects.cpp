#include <algorithm>
#include <set>
#include <utility>

#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/log.hpp"

/// What the Controller decides, done.
namespace kvd::daemon {

namespace {

/// How long a slab may wait for a descriptor before what it was for is ended.
constexpr Nanoseconds kSlabPatience = std::chrono::seconds(2);

}  // namespace

void Daemon::perform(const core::Reply& reply) {
  // The engine maps a region when it is granted, so all of it has to be on its way by then.
  const auto* granted = std::get_if<core::RegionReply>(&reply.body);
  const bool incomplete =
      granted && std::any_of(unsent_.begin(), unsent_.end(), [&](const UnsentSlab& unsent) {
        return unsent.slab.region == granted->region;
      });
  if (incomplete) {
    held_.push_back(reply);
    return;
  }
  const auto it = waiting_.find(reply.reply_to);
  if (it == waiting_.end()) return;  // the session ended meanwhile
  const Waiting waiting = it->second;
  waiting_.erase(it);
  answer(waiting.peer, waiting.head, reply.body, waiting.engine);
}

void Daemon::perform(const core::PublishTable& table) {
  const auto group = groups_.find(table.engine);
  const std::uint32_t ranks = group == groups_.end() ? 1 : group->second.ranks();
  each_rank(table.engine, [&](Peer& peer) {
    if (!peer.table) return;
    std::vector<shm::TableRowSource> rows;
    rows.reserve(table.rows.size());
    for (const core::TableRow& row : table.rows) {
      // By rank, then group of the rank, then block: a rank's share is in one piece.
      const std::size_t share = row.slots.size() / ranks;
      rows.push_back({row.request, row.tokens, row.blocks, row.groups / ranks,
                      std::span(row.slots).subspan(peer.rank * share, share)});
    }
    const PlanVersion in_use = table.idle ? table.version : peer.page->using_version();
    const Status status = peer.table->publish(table.version, rows, in_use);
    if (!status.ok()) drop(peer.engine, status.error().message);
  });
}

void Daemon::perform(const core::CopySlots& copy) {
  const auto group = groups_.find(copy.engine);
  Peer* peer = find(copy.engine);
  std::shared_ptr<PageLease> lease;
  if (group != groups_.end()) {
    lease = group->second.fences;
  } else if (peer) {
    lease = peer->lease;
  }
  std::atomic<std::uint64_t>* fence = nullptr;
  // For what is in the background nobody waits, so its failure is nobody's end.
  if (lease && !copy.background) {
    fence = copy.to_hbm ? &lease->page().fence_h2d() : &lease->page().fence_d2h();
    fences_[copy.ticket] = {copy.engine, std::move(lease)};
  }
  mover_->copy(copy, fence);
}

void Daemon::perform(const core::StreamLayers& stream) {
  Peer* peer = find(stream.engine);
  if (!peer) return feed(core::CopyFinished{stream.ticket, false, Bytes(0), {}});
  shm::ServedClientPage& page = *peer->page;
  streams_[stream.ticket] = {stream.engine, peer->lease};
  mover_->stream(stream, {&page.progress_word(), &page.progress_wanted(), &page.fence_layers()});
}

void Daemon::perform(const core::EndStream& end) { mover_->end_stream(end.ticket); }

void Daemon::perform(const core::SolvePlacement& problem) {
  if (solver_) solver_->solve(problem);  // none while the daemon ends: no plan is needed any more
}

void Daemon::perform(const core::Scrub& scrub) { mover_->scrub(scrub); }

void Daemon::perform(const core::RenewSlab& renew) {
  // Whoever was to be sent the old memory is not to get the new.
  std::erase_if(unsent_, [&](const UnsentSlab& unsent) { return unsent.slab.slab == renew.slab; });
  const Bytes size = slabs_->slab_bytes(Tier::kHbm);
  renewer_->renew({renew.slab, slabs_->take(Tier::kHbm, renew.slab), Tier::kHbm, size});
}

void Daemon::open_renewer() {
  SlabRenewer::Answers answers;
  answers.renewed = [this](SlabIndex slab, const kernels::Slab& memory) {
    inbox_.post([this, slab, memory] {
      slabs_->put(Tier::kHbm, slab, memory);
      feed(core::SlabRenewed{slab});
    });
  };
  answers.failed = [this](SlabIndex slab, const Error& error) {
    inbox_.post([this, slab, error] {
      tell(core::Note::Level::kWarning, EngineId(),
           "slab " + std::to_string(slab.value) +
               " changes domain and there is no new memory for it; tried again every second: " +
               error.message);
    });
  };
  renewer_ = std::make_unique<SlabRenewer>(*backend_, std::move(answers));
}

void Daemon::perform(const core::SendSlab& slab) {
  const auto group = groups_.find(slab.engine);
  if (group != groups_.end()) group->second.slabs[slab.slab] = {};
  each_rank(slab.engine, [&](const Peer& peer) {
    core::SendSlab to_rank = slab;
    to_rank.engine = peer.engine;
    const bool queued = std::any_of(unsent_.begin(), unsent_.end(), [&](const UnsentSlab& unsent) {
      return unsent.slab.engine == peer.engine;
    });
    if (queued || !send_slab(to_rank)) unsent_.push_back({to_rank, clock_.now() + kSlabPatience});
  });
}

bool Daemon::send_slab(const core::SendSlab& slab) {
  Peer* peer = find(slab.engine);
  if (!peer) return true;  // nobody waits for it any more
  const auto fd = slabs_->export_slab(Tier::kHbm, slab.slab);
  if (!fd.ok()) return false;
  wire::MapSlab message;
  message.header.version = peer->version;
  message.region = slab.region.value;
  message.bytes = static_cast<std::uint64_t>(slabs_->slab_bytes(Tier::kHbm).value);
  message.slab = slab.slab.value;
  message.position = slab.position;
  message.count = slab.count;
  const int fds[] = {fd->get()};
  if (!peer->connection.send(wire::seal(message), fds).ok()) {
    drop(slab.engine, "does not read its attach socket");
  }
  return true;
}

void Daemon::send_waiting_slabs() {
  std::set<EngineId> stuck;
  for (const UnsentSlab& unsent : std::exchange(unsent_, {})) {
    if (!stuck.contains(unsent.slab.engine) && send_slab(unsent.slab)) continue;
    stuck.insert(unsent.slab.engine);
    if (clock_.now() < unsent.deadline) {
      unsent_.push_back(unsent);
    } else {
      give_up(unsent.slab);
    }
  }
  for (const core::Reply& reply : std::exchange(held_, {})) perform(reply);
}

// The engine is innocent: only what the slab was for ends. Blocks are simply asked for again.
void Daemon::give_up(const core::SendSlab& slab) {
  tell(core::Note::Level::kWarning, slab.engine,
       "no file descriptor for slab " + std::to_string(slab.slab.value) + " of engine " +
           std::to_string(slab.engine.value) + ": raise RLIMIT_NOFILE");
  // Other ranks may have mapped it, so it cannot be taken back.
  if (const Peer* peer = find(slab.engine); peer && peer->group) {
    return drop(slab.engine, "kvd had no file descriptor for a slab of it");
  }
  for (core::Reply& reply : held_) {
    const auto* granted = std::get_if<core::RegionReply>(&reply.body);
    if (!granted || granted->region != slab.region) continue;
    reply.body = make_error(ErrorCode::kUnavailable,
                            "kvd had no file descriptor free to hand over the region: try again, "
                            "or raise its RLIMIT_NOFILE");
  }
  feed(core::SlabUnsent{slab.engine, slab.slab, slab.region});
}

void Daemon::perform(const core::AskUnmap& ask) {
  each_rank(ask.engine, [&](Peer& peer) {
    wire::UnmapSlab message;
    message.notice.header.version = peer.version;
    message.notice.slab = ask.slab.value;
    if (!peer.connection.send(wire::seal(message)).ok()) {
      drop(peer.engine, "does not read its attach socket");
    }
  });
}

void Daemon::perform(const core::Evict& evict) {
  each_rank(evict.engine, [this](const Peer& rank) { kill(rank); });
}

void Daemon::perform(const core::Note& note) { tell(note.level, note.engine, note.text); }

void Daemon::tell(core::Note::Level level, EngineId engine, const std::string& text) {
  switch (level) {
    case core::Note::Level::kInfo:
      log_info(text);
      return journal_.add(clock_.now(), "info", engine, text);
    case core::Note::Level::kWarning:
      log_warning(text);
      return journal_.add(clock_.now(), "warning", engine, text);
    case core::Note::Level::kError:
      log_error(text);
      return journal_.add(clock_.now(), "error", engine, text);
  }
}

}  // namespace kvd::daemon
