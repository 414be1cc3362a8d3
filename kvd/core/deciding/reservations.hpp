#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Decides how much those inside a domain may come to hold: who may come in beside them, and who
/// may grow where more is wanted than there is.
///
/// Clients announce far longer answers than they get, so what is kept for a request is what answers
/// of its engine have needed (Knowledge::reserved_length). A guess may be wrong. So a request comes
/// in, or grows, only while those inside can still end one after the other, each with all it has
/// announced (and the slots that its layers stream through, where HBM cannot hold it), while the
/// later ones keep what they have. A request that may not grow is curbed: it leaves HBM as soon as
/// DRAM has room, and comes back when others have ended. The request that lacks the least to its
/// announced end is never curbed, and can always get there.
///
/// Source: the banker's algorithm (Dijkstra, EWD 623), with requests that leave HBM as a whole;
/// kvd/DESIGN.md "Reservations". The guess: LightLLM's past-future scheduler. Where the domain has
/// several devices or classes, or layers of it stream, each request is kept all it has announced.
///
/// Owner: control thread. Cost: O(requests inside and those that may come in) while all they
/// announced fits, or more is free than any of them may still want; else O(n log n), and O(n) for
/// each that grows or comes in.
class Reservations : private Part {
 public:
  explicit Reservations(Ground& ground)
      : Part(ground), knowledge_(ground.knowledge), line_(ground.line) {}

  /// Curbs those of the domain that may not grow now (Order::curbed). Returns those that wait and
  /// may come in on the share's device, in the order of service.
  [[nodiscard]] std::vector<Request*> admissible(Share share);

 private:
  /// HBM of a device, and what of it is promised.
  struct Prospect {
    Bytes room_in_hbm;
    Bytes promised;
    Bytes largest;    ///< promise to one request
    Bytes elsewhere;  ///< bytes that its requests are promised on other devices
    double spread =
        1;  ///< the largest ratio of what a request has on all devices to what it has on this one

    void promise(Bytes most, Bytes on_all) {
      promised += most;
      largest = std::max(largest, most);
      if (on_all <= most) return;
      elsewhere += on_all - most;
      spread =
          std::max(spread, static_cast<double>(on_all.value) / static_cast<double>(most.value));
    }
    void promise(Bytes most) { promise(most, most); }
    /// DRAM that must back the promises, where `lost` bytes of HBM are free and of no use.
    [[nodiscard]] Bytes in_dram(Bytes lost, bool alone) const;
  };
  /// What both tiers have for a domain, without what a class may strand.
  struct Room {
    Bytes hbm;
    Bytes both;
  };
  /// A request that came in, or is about to.
  struct Stake {
    Request* request = nullptr;
    TimePoint arrived{0};
    Bytes has;           ///< in both tiers, each block once
    Bytes next;          ///< bytes once it has what it wants now
    Bytes held;          ///< either `has` or `next`: what counts as its own
    Bytes most;          ///< all that it announced
    bool rests = false;  ///< it does not run before another request lets it
    bool sheltered = false;

    [[nodiscard]] Bytes lacks() const { return std::max(Bytes(0), most - held); }
    [[nodiscard]] bool ends_before(const Stake& other) const;
  };
  /// A place in the order in which they can end.
  struct Turn {
    Bytes held;  ///< bytes of those from here on
    Bytes left;  ///< the least that a request up to here has beyond what it needs to end
  };
  struct Sum {
    Bytes held;
    Bytes largest;  ///< holding of one request
    Bytes wants;    ///< the most that one of them wants, to come in or to end

    void add(const Stake& stake) {
      held += stake.held;
      largest = std::max(largest, stake.held);
      wants = std::max({wants, stake.lacks(), stake.held});
    }
  };

  /// By device. Every request that came in may grow to all the tokens it asked for.
  [[nodiscard]] std::vector<Prospect>& prospects(DomainId domain);
  [[nodiscard]] Bytes room_in_dram(DomainId domain);
  /// All that is promised fits.
  [[nodiscard]] bool fits(Share share, Bytes in_dram, bool alone) const;
  /// Adds the class to those whose requests have promises.
  void count_class(ClassId model_class);
  /// Bytes of a tier that those classes may leave free in slabs of their own, where no other class
  /// gets them.
  [[nodiscard]] Bytes lost_between_classes(const pool::TierPool& tier) const;

  /// More requests may come in than could all have what they announced.
  [[nodiscard]] bool may_guess(DomainId domain) const;
  void take_stock(DomainId domain);
  void join(Request& request);
  [[nodiscard]] Stake stake_of(Request& request) const;
  [[nodiscard]] Room room(Share share, Bytes in_dram) const;
  void sort();
  void move_up(std::size_t from);
  /// Whichever request it is, it could end now.
  [[nodiscard]] static bool plenty(const Sum& sum, const Room& room);
  /// They can end one after the other, in their order. Sets `turns_`.
  [[nodiscard]] bool safe(const Room& room);
  /// Curbs all that cannot grow.
  void curb(const Room& room);
  void curb_some(const Room& room);
  // These ask about the request at a place in the order.
  [[nodiscard]] bool may_grow(std::size_t at, const Room& room) const;
  [[nodiscard]] bool grow(std::size_t at, const Room& room);
  void shelter(const Request* request);
  /// The first request that can end while no other does; null: there is none.
  [[nodiscard]] const Request* who_can_end(const Room& room) const;
  /// Lets in one that waits, if it can be inside, too. True: it is among them from then on.
  [[nodiscard]] bool takes(Request& request, const Room& room);

  Knowledge& knowledge_;
  ServingOrder& line_;
  std::vector<Prospect> prospects_;  ///< kept for its memory
  std::vector<ClassId> classes_;     ///< of those inside and of those admitted; kept for its memory
  std::vector<Stake> stakes_;        ///< the same
  std::vector<std::uint32_t> order_;         ///< the order in which the stakes can end
  std::vector<Turn> turns_;                  ///< by place in that order
  std::vector<std::uint32_t> order_before_;  ///< kept for its memory
  std::vector<Turn> turns_before_;           ///< the same
  Sum sum_;                                  ///< over the stakes
  Prospect likely_;  ///< what the requests are likely to need; its room is not used
  Bytes fixed_;      ///< what silent engines hold
};

}  // namespace kvd::core
