#include "kvd/daemon/service/effects.hpp"

#include <span>
#include <vector>

#include "ipc/wire/messages.hpp"
#include "kernels/device/fence.hpp"
#include "kvd/daemon/sessions/session_key.hpp"

namespace kvd::daemon {

namespace {

/// The rows as one rank sees them. Slots go by rank, then group of the rank, then block: a rank's
/// share is in one piece.
std::vector<shm::TableRowSource> rows_of(const core::PublishTable& table, std::uint32_t rank,
                                         std::uint32_t ranks) {
  std::vector<shm::TableRowSource> rows;
  rows.reserve(table.rows.size());
  for (const core::TableRow& row : table.rows) {
    const std::size_t share = row.slots.size() / ranks;
    rows.push_back({row.request, row.tokens, row.blocks, row.groups / ranks,
                    std::span(row.slots).subspan(rank * share, share)});
  }
  return rows;
}

}  // namespace

void Effects::carry_out(const core::Reply& reply) {
  if (uses_.slabs.hold(reply)) return;
  const auto waiting = uses_.replies.take(reply.reply_to);
  if (!waiting) return;  // the session ended meanwhile
  const Status sent = uses_.replies.answer(waiting->peer, waiting->head, reply.body);
  if (!sent.ok()) uses_.ends.drop(waiting->engine, sent.error().message);
}

void Effects::retry() {
  uses_.slabs.retry();
  for (const core::Reply& reply : uses_.slabs.take_held()) carry_out(reply);
}

void Effects::carry_out(const core::PublishTable& table) {
  const std::uint32_t ranks = uses_.groups.ranks(table.engine);
  uses_.sessions.each_rank(table.engine, [&](Peer& peer) {
    if (!peer.table) return;
    const PlanVersion in_use = table.idle ? table.version : peer.page->using_version();
    const Status status =
        peer.table->publish(table.version, rows_of(table, peer.rank, ranks), in_use);
    if (!status.ok()) uses_.ends.drop(peer.engine, status.error().message);
  });
}

// An engine that has ended looks at its page no more.
void Effects::carry_out(const core::SetTicket& ticket) {
  static_assert(wire::kCacheTickets == shm::kCacheTickets);
  Peer* peer = uses_.sessions.find(ticket.engine);
  if (!peer) return;
  const auto state = static_cast<wire::TicketState>(ticket.state);
  kernels::publish(
      {&peer->page->cache_ticket(ticket.number), wire::ticket_word(ticket.number, state)});
}

void Effects::carry_out(const core::SolvePlacement& problem) {
  // There is none while the daemon ends, when no plan is needed any more.
  if (uses_.workers.solver) uses_.workers.solver->solve(problem);
}

// There is none while the daemon ends, when questions to them are not answered any more.
void Effects::carry_out(const core::OpenDisk& order) {
  if (uses_.disks) uses_.disks->open(order);
}

void Effects::carry_out(const core::ResizeDisk& order) {
  if (uses_.disks) uses_.disks->resize(order);
}

void Effects::carry_out(const core::CloseDisk& order) {
  if (uses_.disks) uses_.disks->close(order);
}

void Effects::carry_out(const core::WriteDisk& order) {
  if (uses_.disks) uses_.disks->write(order);
}

void Effects::carry_out(const core::ReadDisk& order) {
  if (uses_.disks) uses_.disks->read(order);
}

void Effects::carry_out(const core::SendSlab& slab) {
  const Peer* peer = slab.region ? uses_.sessions.find(slab.engine) : nullptr;
  if (uses_.workers.keeper && peer != nullptr) {
    uses_.workers.keeper->keep(slab, peer->domain, proof_of(peer->key));
  }
  uses_.slabs.send(slab);
}

void Effects::carry_out(const core::RenewSlab& renew) {
  uses_.slabs.withdraw(renew.slab);
  mover::SlabStore& slabs = uses_.device.slabs();
  const Bytes size = slabs.slab_bytes(Tier::kHbm);
  uses_.workers.renewer->renew({&slabs.backend_of(Tier::kHbm, renew.slab), renew.slab,
                                slabs.take(Tier::kHbm, renew.slab), Tier::kHbm, size, false,
                                renew.in_use});
}

}  // namespace kvd::daemon
