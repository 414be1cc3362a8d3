#include "kvd/core/cache/remote_store.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvd::core {

namespace {

/// Names that one question has, and questions under way.
constexpr std::size_t kMostAsked = 4096, kMostAsking = 240;
constexpr std::size_t kMostRemoteWrites = 8;
/// The most rows that wait for their write. Beyond it the oldest are forgotten.
constexpr std::size_t kMostWaiting = 16384;
/// For how long write_all() makes failed writes again where none of them succeeds, and how often: a
/// server that was off is tried every four seconds.
constexpr Nanoseconds kTriesAgainFor = std::chrono::seconds(6);
constexpr Nanoseconds kTriesAgainEach = std::chrono::milliseconds(200);
/// Rows that wait for their write before write_all() offers more.
constexpr std::size_t kEnough = 4096;
/// The most rows that one event looks at.
constexpr std::size_t kMostLooked = 1024;

}  // namespace

// ---- what is there ----

std::optional<Digest> RemoteStore::there(const store::KeySpace& space, const Digest& digest) const {
  const Digest name = classes_.remote_name(space, digest);
  return names_.there(name, context_.now) ? std::optional(name) : std::nullopt;
}

// Blocks are of use behind those before them, so nothing is asked where the first is known to be
// missing.
void RemoteStore::ask(const store::KeySpace& space, std::span<const Digest> chain) {
  const DiskClasses::Disk* disk = classes_.find(space);
  if (disk == nullptr || asking_.size() >= kMostAsking) return;
  std::vector<Digest> names;
  for (const Digest& digest : chain.first(std::min(chain.size(), kMostAsked))) {
    const Digest name = classes_.remote_name(space, digest);
    if (names_.worth_asking(name, context_.now)) {
      names_.ask(name, context_.now);
      names.push_back(name);
    } else if (names.empty() && !names_.there(name, context_.now)) {
      return;
    }
  }
  if (names.empty()) return;
  const Ticket ticket = context_.orders.next_ticket();
  context_.emit(FindRemote{ticket, disk->shape, names});
  asking_.emplace(ticket, Question{std::move(names), context_.now});
}

double RemoteStore::answer_s() const {
  const double open =
      asking_.empty() ? 0 : to_seconds(context_.now - asking_.begin()->second.since);
  return std::max(open, answer_s_);
}

bool RemoteStore::awaits(const store::KeySpace& space, std::span<const Digest> chain,
                         double seconds) {
  ask(space, chain);
  if (answer_s() >= seconds) return false;
  return names_.awaited(classes_.remote_name(space, chain.front()), context_.now,
                        Nanoseconds(static_cast<std::int64_t>(1e9 * seconds)));
}

void RemoteStore::on_found(const RemoteFound& found) {
  const auto asked = asking_.extract(found.ticket);
  if (asked.empty()) return;
  const auto& [names, since] = asked.mapped();
  answer_s_ = (answer_s_ + to_seconds(context_.now - since)) / 2;
  for (std::size_t i = 0; i < names.size(); ++i) {
    learn(names[i], i < found.there.size() && found.there[i]);
  }
}

// ---- writing ----

std::size_t RemoteStore::left() const {
  return (all_ ? all_->left() : 0) + waiting_.size() + writes_.size();
}

void RemoteStore::write_by_rule() {
  all_.reset();
  failing_since_.reset();
  tried_again_.clear();
  no_writes_before_ = TimePoint{0};
}

bool RemoteStore::takes_more() const { return !all_ || waiting_.size() < kEnough; }

void RemoteStore::offer(const store::ForDisk& row) {
  if (!on() || (!all_ && row.touches < context_.config.remote.admission.least)) return;
  if (waiting_.size() >= kMostWaiting) {
    waiting_.pop_front();
    ++context_.counters.prefixes.lower[kRemoteTier].refused;
  }
  waiting_.push_back(row.row);
}

void RemoteStore::offer_all() {
  if (all_ && takes_more()) all_->offer();
}

void RemoteStore::write_ahead() {
  if (context_.now < no_writes_before_) return;
  for (std::size_t i = 0; i < kMostLooked && !waiting_.empty(); ++i) {
    if (writes_.size() >= kMostRemoteWrites) return;
    const std::optional<store::ForDisk> row = store_.cache.for_disk(waiting_.front());
    if (row && !write(*row)) return;
    if (!row) ++context_.counters.prefixes.lower[kRemoteTier].refused;
    waiting_.pop_front();
  }
}

bool RemoteStore::write(const store::ForDisk& row) {
  DiskClasses::Disk* disk = classes_.find(row.space);
  if (disk == nullptr) return true;
  const Digest name = classes_.remote_name(row.space, row.digest);
  if (names_.there(name, context_.now)) return true;
  // A server that is off or full would cost whoever touches the row an attempt each time.
  if (!all_ && names_.refused(name, context_.now)) return true;
  const Bytes counts = std::min(disk->row_bytes(), context_.config.remote.bytes_per_s);
  if (!all_ && !budget_.take(counts, context_.now)) return false;
  const Ticket ticket = context_.orders.next_ticket();
  // DRAM may give the row up meanwhile: its slots wait for the end of the write.
  store_.tiers.copy_reads(ticket, Tier::kDram, row.dram);
  writes_[ticket] = {disk->id, name, disk->row_bytes(), row.row};
  ++disk->remote_under_way;
  context_.emit(WriteRemote{ticket,
                            disk->shape,
                            {disk->id, 0, classes_.remote_label(row.space.domain), name,
                             row.slot_bytes, row.dram, context_.config.disk.patience}});
  return true;
}

bool RemoteStore::again(const Write& failed) {
  if (!all_) return false;
  if (!failing_since_) failing_since_ = context_.now;
  if (context_.now - *failing_since_ >= kTriesAgainFor) return false;
  no_writes_before_ = context_.now + kTriesAgainEach;
  tried_again_.insert(failed.row);
  waiting_.push_back(failed.row);  // behind those of other servers
  return true;
}

bool RemoteStore::on_finished(const DiskFinished& finished) {
  const auto ended = writes_.extract(finished.ticket);
  if (ended.empty()) return false;
  const Write& write = ended.mapped();
  --classes_.at(write.disk).remote_under_way;
  Counters::Prefixes::Lower& counters = context_.counters.prefixes.lower[kRemoteTier];
  if (finished.ok || !again(write)) ++(finished.ok ? counters.stores : counters.store_failures);
  if (!finished.ok) names_.refuse(write.name, context_.now);
  if (finished.ok) {
    if (tried_again_.erase(write.row) > 0) failing_since_.reset();  // its server is back
    counters.store_bytes += static_cast<std::uint64_t>(write.bytes.value);
    learn(write.name, true);
  }
  store_.tiers.copy_ended(finished.ticket);
  return true;
}

}  // namespace kvd::core
