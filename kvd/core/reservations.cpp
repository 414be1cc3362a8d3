#include "kvd/core/reservations.hpp"

#include <algorithm>
#include <tuple>

namespace kvd::core {

// Of those inside somebody has to leave where HBM cannot hold what is promised, and DRAM must have
// room for a whole one with everything else there.
Bytes Reservations::Prospect::in_dram(Bytes lost, bool alone) const {
  if (promised + lost <= room_in_hbm) return Bytes(0);
  return promised + lost - room_in_hbm + (alone ? Bytes(0) : largest);
}

void Reservations::count_class(ClassId model_class) {
  if (std::find(classes_.begin(), classes_.end(), model_class) == classes_.end()) {
    classes_.push_back(model_class);
  }
}

// However well blocks are compacted, the last slab of each class may be almost empty. One class
// fills what all others leave.
Bytes Reservations::lost_between_classes(const pool::TierPool& tier) const {
  const std::int64_t others = std::max<std::int64_t>(0, std::ssize(classes_) - 1);
  return tier.config().slab_bytes * others;
}

std::vector<Reservations::Prospect>& Reservations::prospects(DomainId domain) {
  std::vector<Prospect>& all = prospects_;
  all.assign(store_.hbm.count(), {});
  classes_.clear();
  for (std::uint32_t device = 0; device < all.size(); ++device) {
    all[device].room_in_hbm = store_.cache.available(domain, Tier::kHbm, DeviceId(device));
  }
  requests_.each_inside_in(domain, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    count_class(owner.class_id);
    for (const DeviceId device : owner.devices().all()) {
      Prospect& there = all[device.value];
      const Bytes held = memory_.hbm_bytes(r, device);
      there.room_in_hbm += held;
      if (owner.life.responsive) {
        there.promise(owner.bytes_for(r.goal.prompt + r.goal.max_new, device));
      } else {  // neither grows nor leaves
        const std::int64_t parked = r.dram_slots() * owner.groups_on(device) / owner.groups();
        there.promised += held + owner.shape.slot_bytes() * parked;
      }
    }
  });
  return all;
}

Bytes Reservations::room_in_dram(DomainId domain) {
  Bytes room = store_.cache.available(domain, Tier::kDram);
  requests_.each_inside_in(domain, [&](Request& r) {
    // What HBM has too counts there for each of those that share it, and is one slot here.
    const std::int64_t counted = r.table.doubled() - r.table.doubled_alone();
    room += requests_.session_of(r).shape.slot_bytes() * (r.dram_slots() - counted);
  });
  return room;
}

// DRAM is there for what all devices promise.
bool Reservations::fits(Share share, Bytes in_dram, bool alone) const {
  const Bytes lost = lost_between_classes(store_.hbm.of(share.device));
  const Prospect& own = prospects_[share.device.value];
  Bytes wanted = own.in_dram(lost, alone);
  if (wanted == Bytes(0)) return true;
  for (const Prospect& other : prospects_) {
    wanted += &other == &own ? Bytes(0) : other.in_dram(lost, false);
  }
  return wanted + lost_between_classes(store_.dram) <= in_dram;
}

std::vector<Request*> Reservations::admissible(Share share) {
  std::vector<Prospect>& all = prospects(share.domain);
  Prospect& own = all[share.device.value];
  const Bytes in_dram = room_in_dram(share.domain);
  // Where all that is announced fits, nobody is in anybody's way.
  bool sure = fits(share, in_dram, false);
  const bool curbs = !sure && store_.hbm.count() == 1 && classes_.size() == 1;
  requests_.each_inside_in(share.domain, [&](Request& r) {
    r.order.curbed = false;
    r.order.sheltered = r.order.sheltered && curbs;
  });
  if (curbs) {
    take_stock(share.domain);
    curb(room(share, in_dram));
  }
  std::vector<Request*> out;
  const auto found = requests_.domains().find(share.domain);
  if (found == requests_.domains().end()) return out;
  for (Request* r : found->second.line) {
    const Session& owner = requests_.session_of(*r);
    if (!owner.on(share.device)) continue;
    if (!owner.life.responsive) continue;  // nobody waits behind the queue of a silent engine
    const Tokens tokens = r->goal.prompt + r->goal.max_new;
    // Regions may end; until then it alone waits, and makes way for nobody.
    if (owner.bytes_for(tokens, share.device) > own.room_in_hbm + in_dram) continue;
    const bool alone = own.largest == Bytes(0);
    count_class(owner.class_id);
    for (const DeviceId device : owner.devices().all()) {
      all[device.value].promise(owner.bytes_for(tokens, device));
    }
    // First come, first served: nobody overtakes for ever.
    if (sure && !fits(share, in_dram, alone)) {
      sure = false;
      take_stock(share.domain);
      for (Request* before : out) join(*before);
    }
    if (!sure && (!may_guess(share.domain) || !takes(*r, room(share, in_dram)))) break;
    out.push_back(r);
  }
  return out;
}

// Of several devices the order of ends would have to be one for all; layers that stream need room
// that no table names; and of several classes free bytes in HBM may be of no use.
bool Reservations::may_guess(DomainId domain) const {
  if (store_.hbm.count() > 1 || classes_.size() > 1) return false;
  return std::none_of(requests_.sessions().begin(), requests_.sessions().end(),
                      [&](const auto& entry) {
                        return entry.second.info.domain == domain && entry.second.streaming;
                      });
}

Reservations::Room Reservations::room(Share share, Bytes in_dram) const {
  const Bytes hbm = prospects_[share.device.value].room_in_hbm -
                    lost_between_classes(store_.hbm.of(share.device)) - fixed_;
  return {hbm, hbm + in_dram - lost_between_classes(store_.dram)};
}

// ---- who can end ----

Reservations::Stake Reservations::stake_of(Request& request) const {
  const Session& owner = requests_.session_of(request);
  const Tokens announced = request.goal.prompt + request.goal.max_new;
  Stake stake;
  stake.request = &request;
  stake.most = owner.bytes_for(announced);
  stake.rests = request.forced_out() || request.paused();
  // Prompts that come in get, chunk by chunk, what they were let in for.
  const bool comes = request.order.claim != 0 || request.phase == Phase::kPrompt;
  const std::int64_t least = comes ? owner.blocks_for(request.room_to_run()) : 0;
  const std::int64_t blocks = std::max(least, std::int64_t{request.table.blocks()});
  stake.held = stake.next = owner.shape.slot_bytes() * (blocks * owner.groups());
  if (comes || request.leaving || request.place == Location::kGoing) return stake;
  // Who is out comes back for all that it is likely to need, or it would be out again at once.
  const Tokens wanted = request.place == Location::kParked
                            ? request.goal.prompt + knowledge_.reserved_length(request)
                            : request.progress.planned + Tokens(1);
  stake.next = std::max(stake.held, owner.bytes_for(std::min(wanted, announced)));
  return stake;
}

void Reservations::take_stock(DomainId domain) {
  stakes_.clear();
  sum_ = {};
  likely_ = {};
  fixed_ = Bytes(0);
  requests_.each_inside_in(domain, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    if (owner.life.responsive) return join(r);
    fixed_ += memory_.hbm_bytes(r) + owner.shape.slot_bytes() * r.dram_slots();
  });
}

void Reservations::join(Request& request) {
  const Session& owner = requests_.session_of(request);
  const Tokens length = request.goal.prompt + knowledge_.reserved_length(request);
  stakes_.push_back(stake_of(request));
  sum_.add(stakes_.back());
  likely_.promise(std::max(stakes_.back().held, owner.bytes_for(length)));
}

// Who is sheltered was counted on to end first. Those that do not run cannot end before others
// have.
void Reservations::sort() {
  const auto rank = [](const Stake& stake) {
    const Request& r = *stake.request;
    return std::tuple(stake.rests, !r.order.sheltered, stake.lacks(), r.times.arrived, r.key);
  };
  std::sort(stakes_.begin(), stakes_.end(),
            [&](const Stake& a, const Stake& b) { return rank(a) < rank(b); });
}

bool Reservations::plenty(const Room& room) const {
  return sum_.held + sum_.wants + sum_.largest <= room.both;
}

// Those before have ended, those after keep what they have. Where HBM holds that, nobody has to
// leave. Else whose turn it is may be out itself: then HBM has room for it, or DRAM for any of
// those in HBM, which leave until it has.
bool Reservations::safe(const Room& room) const {
  Bytes held, largest;
  for (auto stake = stakes_.rbegin(); stake != stakes_.rend(); ++stake) {
    held += stake->held;
    const Bytes lacks = stake->lacks();
    const Bytes comes = largest > Bytes(0) ? std::max(lacks, stake->held) : lacks;
    if (held + lacks > room.hbm && held + comes + largest > room.both) return false;
    largest = std::max(largest, stake->held);
  }
  return true;
}

void Reservations::curb(const Room& room) {
  if (stakes_.empty()) return;
  const std::vector<Stake> before = stakes_;
  sum_ = {};
  for (Stake& stake : stakes_) {
    stake.held = stake.next;
    sum_.add(stake);
  }
  bool all_grow = plenty(room);
  if (!all_grow) {
    sort();
    all_grow = safe(room);
  }
  if (all_grow) return shelter(nullptr);
  stakes_ = before;
  curb_some(room);
  sum_ = {};
  for (const Stake& stake : stakes_) sum_.add(stake);
}

// The first one may always grow: that takes from nobody after it. Where others came back before
// their turn, anybody who can end with what is free is as good.
void Reservations::curb_some(const Room& room) {
  sort();
  if (!safe(room)) {
    const auto can = std::find_if(stakes_.begin(), stakes_.end(),
                                  [&](const Stake& stake) { return can_end(stake, room); });
    shelter(can == stakes_.end() ? stakes_.front().request : can->request);
    sort();
  }
  std::vector<Request*> order;
  for (const Stake& stake : stakes_) order.push_back(stake.request);
  for (Request* r : order) {
    const auto stake = std::find_if(stakes_.begin(), stakes_.end(),
                                    [&](const Stake& s) { return s.request == r; });
    if (stake->next == stake->held) continue;
    const std::vector<Stake> kept = stakes_;
    stake->held = stake->next;
    sort();
    if (r == order.front() || safe(room)) continue;
    stakes_ = kept;
    r->order.curbed = true;
  }
  const bool is_safe = safe(room);
  shelter(is_safe ? nullptr : order.front());
  if (is_safe) return;
  for (Request* r : order) r->order.curbed |= r->order.claim != 0 && r != order.front();
}

void Reservations::shelter(const Request* request) {
  for (Stake& stake : stakes_) stake.request->order.sheltered = stake.request == request;
}

// All others keep what they have, or even stay where they are.
bool Reservations::can_end(const Stake& stake, const Room& room) const {
  if (stake.rests) return false;
  Bytes held, largest, stays;
  for (const Stake& other : stakes_) {
    held += other.held;
    if (other.request == stake.request) continue;
    largest = std::max(largest, other.held);
    stays += memory_.hbm_bytes(*other.request);
  }
  if (stays + std::max(stake.held, stake.most) <= room.hbm) return true;
  const Bytes lacks = stake.lacks();
  const Bytes wants = stake.request->runs() ? lacks : std::max(lacks, stake.held);
  return held + lacks <= room.hbm || held + wants + largest <= room.both;
}

bool Reservations::takes(Request& request, const Room& room) {
  join(request);
  const bool in_hbm = likely_.promised <= room.hbm;
  if (!in_hbm && likely_.promised + likely_.largest > room.both) return false;
  if (plenty(room)) return true;
  sort();
  return safe(room);
}

}  // namespace kvd::core
