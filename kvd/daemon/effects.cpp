#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/log.hpp"

/// What the Controller decides, done.
namespace kvd::daemon {

void Daemon::perform(const core::Reply& reply) {
  const auto it = waiting_.find(reply.reply_to);
  if (it == waiting_.end()) return;  // the session ended meanwhile
  const Waiting waiting = it->second;
  waiting_.erase(it);
  answer(waiting.peer, waiting.head, reply.body, waiting.engine);
}

void Daemon::perform(const core::PublishTable& table) {
  Peer* peer = find(table.engine);
  if (!peer || !peer->table) return;
  std::vector<shm::TableRowSource> rows;
  rows.reserve(table.rows.size());
  for (const core::TableRow& row : table.rows) {
    rows.push_back({row.request, row.tokens, row.blocks, row.groups, row.slots});
  }
  const PlanVersion in_use = table.idle ? table.version : peer->page->using_version();
  const Status status = peer->table->publish(table.version, rows, in_use);
  if (!status.ok()) drop(table.engine, status.error().message);
}

void Daemon::perform(const core::CopySlots& copy) {
  Peer* peer = find(copy.engine);
  std::atomic<std::uint64_t>* fence = nullptr;
  if (peer) {
    fence = copy.to_hbm ? &peer->page->fence_h2d() : &peer->page->fence_d2h();
    fences_[copy.ticket] = {copy.engine, peer->lease};
  }
  mover_->copy(copy, fence);
}

void Daemon::perform(const core::Scrub& scrub) { mover_->scrub(scrub); }

void Daemon::perform(const core::SendSlab& slab) {
  Peer* peer = find(slab.engine);
  if (!peer) return;
  const auto fd = slabs_->export_slab(Tier::kHbm, slab.slab);
  if (!fd.ok()) {
    drop(slab.engine, fd.error().message);
    return;
  }
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
}

void Daemon::perform(const core::AskUnmap& ask) {
  Peer* peer = find(ask.engine);
  if (!peer) return;
  wire::UnmapSlab message;
  message.notice.header.version = peer->version;
  message.notice.slab = ask.slab.value;
  if (!peer->connection.send(wire::seal(message)).ok()) {
    drop(ask.engine, "does not read its attach socket");
  }
}

void Daemon::perform(const core::Note& note) {
  switch (note.level) {
    case core::Note::Level::kInfo:
      log_info(note.text);
      break;
    case core::Note::Level::kWarning:
      log_warning(note.text);
      break;
    case core::Note::Level::kError:
      log_error(note.text);
      break;
  }
}

}  // namespace kvd::daemon
