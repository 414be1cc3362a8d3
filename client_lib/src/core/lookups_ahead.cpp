#include "client_lib/src/core/lookups_ahead.hpp"

#include <algorithm>

namespace kvd::client {

void LookupsAhead::add(const std::shared_ptr<Session>& session, std::uint64_t cache,
                       std::span<const kvd_client::Digest> digests, std::uint64_t number,
                       TimePoint now) {
  asked_.push_back({session, cache, {digests.begin(), digests.end()}, number, now});
  if (asked_.size() > Session::kMostPosted) asked_.pop_front();
}

std::optional<std::uint64_t> LookupsAhead::take(const std::shared_ptr<Session>& session,
                                                std::uint64_t cache,
                                                std::span<const kvd_client::Digest> digests,
                                                TimePoint now) {
  std::erase_if(asked_, [&](const Asked& each) {
    return each.when + kGoodFor < now || each.session.lock() != session;
  });
  const auto found = std::find_if(asked_.begin(), asked_.end(), [&](const Asked& each) {
    return each.cache == cache && each.digests.size() >= digests.size() &&
           std::equal(digests.begin(), digests.end(), each.digests.begin());
  });
  if (found == asked_.end()) return std::nullopt;
  const std::uint64_t number = found->number;
  asked_.erase(found);
  return number;
}

}  // namespace kvd::client
