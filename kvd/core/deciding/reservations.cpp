#include "kvd/core/deciding/reservations.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace kvd::core {

// Where HBM cannot hold what is promised, some request inside has to leave, and DRAM must have room
// for a whole request besides everything else there.
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
        const Tokens most = r.goal.prompt + r.goal.max_new;
        there.promise(owner.bytes_for(most, device), owner.bytes_for(most));
      } else {  // it neither grows nor leaves
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
    // A block that several requests share counts once for each of them, but is one slot here.
    const std::int64_t counted = r.table.doubled() - r.table.doubled_alone();
    room += requests_.session_of(r).shape.slot_bytes() * (r.dram_slots() - counted);
  });
  return room;
}

// DRAM backs what all devices promise. A request of a group leaves all its devices, though only one
// of them lacks room: what it has on the others goes to DRAM, too, and leaves room there that
// nobody may need.
bool Reservations::fits(Share share, Bytes in_dram, bool alone) const {
  const Bytes lost = lost_between_classes(store_.hbm.of(share.device));
  const Prospect& own = prospects_[share.device.value];
  const auto wanted_of = [&](const Prospect& one) {
    return one.in_dram(lost, &one == &own && alone);
  };
  if (wanted_of(own) == Bytes(0)) return true;
  Bytes wanted, besides;
  for (const Prospect& one : prospects_) wanted += wanted_of(one);
  for (const Prospect& one : prospects_) {
    const auto leaves = static_cast<double>(wanted_of(one).value) * (one.spread - 1);
    const Bytes with_it =
        std::min(Bytes(static_cast<std::int64_t>(std::ceil(leaves))), one.elsewhere);
    besides = std::max(besides, with_it - (wanted - wanted_of(one)));
  }
  return wanted + besides + lost_between_classes(store_.dram) <= in_dram;
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
  // Goes in the order of service, as Admission does: with different orders the two would let in
  // different requests, and so none.
  for (Request* r : line_.in_line(share.domain)) {
    const Session& owner = requests_.session_of(*r);
    if (!owner.on(share.device)) continue;
    if (!owner.life.responsive) continue;  // nobody waits behind the queue of a silent engine
    const Tokens tokens = r->goal.prompt + r->goal.max_new;
    // Regions may end. Until then this request alone waits, and makes way for nobody.
    if (owner.bytes_for(tokens, share.device) > own.room_in_hbm + in_dram) continue;
    const bool alone = own.largest == Bytes(0);
    count_class(owner.class_id);
    for (const DeviceId device : owner.devices().all()) {
      all[device.value].promise(owner.bytes_for(tokens, device), owner.bytes_for(tokens));
    }
    if (sure && !fits(share, in_dram, alone)) {
      sure = false;
      take_stock(share.domain);
      for (Request* before : out) join(*before);
    }
    // Nobody overtakes for ever.
    if (!sure && (!may_guess(share.domain) || !takes(*r, room(share, in_dram)))) return out;
    out.push_back(r);
  }
  return out;
}

// Guessing needs three things. It needs one device, because the order of ends would otherwise have
// to be one for all. It needs layers that do not stream, because streaming takes room that no table
// names. And it needs one class, because free bytes in HBM may be of no use to another.
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
  stake.arrived = request.times.arrived;
  stake.most = owner.bytes_for(announced);
  // A request that HBM cannot hold ends with its layers streamed, through slots that no table
  // names.
  if (stake.most > prospects_[owner.devices().first().value].room_in_hbm) {
    stake.most +=
        owner.shape.slot_bytes() * (owner.blocks_for(announced) * std::int64_t{owner.shape.ranks});
  }
  stake.rests = request.forced_out() || request.paused();
  stake.sheltered = request.order.sheltered;
  // Prompts that come in get, chunk by chunk, the room they were let in for.
  const bool comes = request.order.claim != 0 || request.phase == Phase::kPrompt;
  const std::int64_t least = comes ? owner.blocks_for(request.room_to_run()) : 0;
  const std::int64_t blocks = std::max(least, std::int64_t{request.table.blocks()});
  stake.has = stake.held = stake.next = owner.shape.slot_bytes() * (blocks * owner.groups());
  if (comes || request.leaving || request.place == Location::kGoing) return stake;
  // A request that is out comes back for all that it is likely to need, or it would be out again at
  // once.
  const Tokens wanted = request.place == Location::kParked
                            ? request.goal.prompt + knowledge_.reserved_length(request)
                            : request.progress.planned + Tokens(1);
  stake.next = std::max(stake.held, owner.bytes_for(std::min(wanted, announced)));
  return stake;
}

void Reservations::take_stock(DomainId domain) {
  stakes_.clear();
  order_.clear();
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
  order_.push_back(static_cast<std::uint32_t>(stakes_.size()));
  stakes_.push_back(stake_of(request));
  sum_.add(stakes_.back());
  likely_.promise(std::max(stakes_.back().held, owner.bytes_for(length)));
}

// A sheltered request was counted on to end first. Requests that do not run cannot end before
// others have.
bool Reservations::Stake::ends_before(const Stake& other) const {
  const auto rank = [](const Stake& stake) {
    return std::tuple(stake.rests, !stake.sheltered, stake.lacks(), stake.arrived);
  };
  const auto order = rank(*this) <=> rank(other);
  return order != 0 ? order < 0 : request->key < other.request->key;
}

// Often only the last one has joined since.
void Reservations::sort() {
  const auto sooner = [this](std::uint32_t a, std::uint32_t b) {
    return stakes_[a].ends_before(stakes_[b]);
  };
  if (std::is_sorted(order_.begin(), order_.end() - 1, sooner)) return move_up(order_.size() - 1);
  std::sort(order_.begin(), order_.end(), sooner);
}

// Moves the stake at `from` up in the order, because it lacks less than before.
void Reservations::move_up(std::size_t from) {
  const auto moved = order_.begin() + static_cast<std::ptrdiff_t>(from);
  const auto to = std::partition_point(order_.begin(), moved, [&](std::uint32_t i) {
    return stakes_[i].ends_before(stakes_[*moved]);
  });
  std::rotate(to, moved, moved + 1);
}

bool Reservations::plenty(const Sum& sum, const Room& room) {
  return sum.held + sum.wants + sum.largest <= room.both;
}

// When a request's turn comes, those before it have ended and those after it keep what they have.
// If HBM holds all that, nobody has to leave. Otherwise the request whose turn it is may be out
// itself: then HBM must have room for it, or DRAM for any request in HBM, and those leave until HBM
// has it.
bool Reservations::safe(const Room& room) {
  turns_.resize(order_.size());
  Bytes held, largest;
  for (std::size_t at = order_.size(); at-- > 0;) {
    const Stake& stake = stakes_[order_[at]];
    held += stake.held;
    const Bytes lacks = stake.lacks();
    const Bytes comes = largest > Bytes(0) ? std::max(lacks, stake.held) : lacks;
    const Bytes left = std::max(room.hbm - held - lacks, room.both - held - comes - largest);
    if (left < Bytes(0)) return false;
    turns_[at] = {held, left};
    largest = std::max(largest, stake.held);
  }
  for (std::size_t at = 1; at < turns_.size(); ++at) {
    turns_[at].left = std::min(turns_[at].left, turns_[at - 1].left);
  }
  return true;
}

// Every request that ends before it lacks what it takes, and it has to end itself. More can stand
// in its way, but these two find most of those that may not grow, without a look at every request.
bool Reservations::may_grow(std::size_t at, const Room& room) const {
  Stake grown = stakes_[order_[at]];
  grown.held = grown.next;
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(at);
  const auto found = std::partition_point(
      order_.begin(), end, [&](std::uint32_t i) { return stakes_[i].ends_before(grown); });
  const auto turn = static_cast<std::size_t>(found - order_.begin());
  const Bytes more = grown.next - grown.has;
  if (turn > 0 && turns_[turn - 1].left < more) return false;
  const Bytes held = turns_[turn].held + more;
  return held + grown.lacks() <= std::max(room.hbm, room.both);
}

void Reservations::curb(const Room& room) {
  if (stakes_.empty()) return;
  Sum grown;
  for (Stake& stake : stakes_) {
    stake.held = stake.next;
    grown.add(stake);
  }
  bool all_grow = plenty(grown, room);
  if (!all_grow) {
    sort();
    all_grow = safe(room);
  }
  if (!all_grow) {
    for (Stake& stake : stakes_) stake.held = stake.has;
    curb_some(room);
  } else {
    shelter(nullptr);
  }
  sum_ = {};
  for (const Stake& stake : stakes_) sum_.add(stake);
}

// The first may always grow: that takes nothing from the requests after it. Where others came back
// before their turn, any request that can end with what is free is as good.
void Reservations::curb_some(const Room& room) {
  sort();
  if (!safe(room)) {
    const Request* first = who_can_end(room);
    shelter(first != nullptr ? first : stakes_[order_.front()].request);
    sort();
  }
  Stake& first = stakes_[order_.front()];
  first.held = first.next;
  const bool is_safe = safe(room);
  for (std::size_t at = 1; at < order_.size(); ++at) {
    Stake& stake = stakes_[order_[at]];
    if (stake.next == stake.has) continue;
    const bool grows = is_safe && may_grow(at, room) && grow(at, room);
    stake.request->order.curbed = !grows;
  }
  shelter(is_safe ? nullptr : first.request);
  if (is_safe) return;
  for (Stake& stake : stakes_) {
    Request& r = *stake.request;
    r.order.curbed |= r.order.claim != 0 && &r != first.request;
  }
}

// A request that grows passes only some of those before it in the order.
bool Reservations::grow(std::size_t at, const Room& room) {
  Stake& stake = stakes_[order_[at]];
  order_before_ = order_;
  turns_before_ = turns_;
  stake.held = stake.next;
  move_up(at);
  if (safe(room)) return true;
  stake.held = stake.has;
  order_.swap(order_before_);
  turns_.swap(turns_before_);
  return false;
}

void Reservations::shelter(const Request* request) {
  for (Stake& stake : stakes_) {
    stake.sheltered = stake.request->order.sheltered = stake.request == request;
  }
}

// All others keep what they have, or even stay where they are.
const Request* Reservations::who_can_end(const Room& room) const {
  Bytes held, stays, largest, second;
  for (const Stake& stake : stakes_) {
    held += stake.held;
    stays += memory_.hbm_bytes(*stake.request);
    second = std::max(second, std::min(largest, stake.held));
    largest = std::max(largest, stake.held);
  }
  for (const std::uint32_t i : order_) {
    const Stake& stake = stakes_[i];
    if (stake.rests) break;  // so does every request after it
    const Bytes others = stays - memory_.hbm_bytes(*stake.request);
    if (others + std::max(stake.held, stake.most) <= room.hbm) return stake.request;
    const Bytes lacks = stake.lacks();
    const Bytes wants = stake.request->runs() ? lacks : std::max(lacks, stake.held);
    const Bytes leaves = stake.held == largest ? second : largest;
    if (held + lacks <= room.hbm || held + wants + leaves <= room.both) return stake.request;
  }
  return nullptr;
}

bool Reservations::takes(Request& request, const Room& room) {
  join(request);
  const bool in_hbm = likely_.promised <= room.hbm;
  if (!in_hbm && likely_.promised + likely_.largest > room.both) return false;
  if (plenty(sum_, room)) return true;
  sort();
  return safe(room);
}

}  // namespace kvd::core
