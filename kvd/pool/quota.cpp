#include "kvd/pool/quota.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace kvd::pool {
namespace {

Status check_quota(DomainId domain, const Quota& quota) {
  const std::string who = "the quota of domain " + std::to_string(domain.value);
  if (quota.guarantee < Bytes{} || quota.maximum < Bytes{}) {
    return make_error(ErrorCode::kInvalidArgument, who + " is negative: give sizes >= 0");
  }
  if (quota.maximum < quota.guarantee) {
    return make_error(ErrorCode::kInvalidArgument,
                      who + " has a maximum below its guarantee: raise the maximum to at least " +
                          std::to_string(quota.guarantee.value) + " bytes");
  }
  return {};
}

std::uint32_t held_by(const HeldSlabs& held, DomainId domain) {
  const auto found = held.find(domain);
  return found == held.end() ? 0 : found->second;
}

/// What the other domains hold or may claim at any time.
std::uint64_t spoken_for(const Quotas& quotas, const HeldSlabs& held, DomainId domain,
                         SlabCapacity capacity) {
  std::uint64_t slabs = 0;
  for (const auto& [other, quota] : quotas) {
    if (other != domain) slabs += std::max(held_by(held, other), guaranteed_slabs(quota, capacity));
  }
  for (const auto& [other, count] : held) {
    if (other != domain && !quotas.contains(other)) slabs += count;
  }
  return slabs;
}

}  // namespace

std::uint32_t maximum_slabs(const Quota& quota, SlabCapacity capacity) {
  const std::int64_t whole = quota.maximum / capacity.slab_bytes;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(whole, capacity.slabs));
}

std::uint32_t guaranteed_slabs(const Quota& quota, SlabCapacity capacity) {
  const std::int64_t whole = pieces(quota.guarantee, capacity.slab_bytes);
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(whole, quota.maximum / capacity.slab_bytes));
}

Status check_quotas(const Quotas& quotas, SlabCapacity capacity) {
  std::int64_t guaranteed = 0;
  for (const auto& [domain, quota] : quotas) {
    KVD_TRY(check_quota(domain, quota));
    if (quota.guarantee > capacity.slab_bytes * std::int64_t{capacity.slabs}) {
      guaranteed = INT64_MAX;
      break;
    }
    guaranteed += guaranteed_slabs(quota, capacity);
  }
  if (guaranteed <= std::int64_t{capacity.slabs}) return {};
  return make_error(ErrorCode::kInvalidArgument, "the guarantees, each in whole slabs of " +
                                                     std::to_string(capacity.slab_bytes.value) +
                                                     " bytes, exceed the capacity of " +
                                                     std::to_string(capacity.slabs) +
                                                     " slabs: lower them or enlarge the tier");
}

std::uint32_t most_slabs(const Quotas& quotas, DomainId domain, SlabCapacity capacity) {
  std::uint32_t guaranteed = 0;  // guaranteed to others; never more than there are
  for (const auto& [other, quota] : quotas) {
    if (other != domain) guaranteed += guaranteed_slabs(quota, capacity);
  }
  const auto found = quotas.find(domain);
  const std::uint32_t maximum =
      found == quotas.end() ? capacity.slabs : maximum_slabs(found->second, capacity);
  return std::min(maximum, capacity.slabs - guaranteed);
}

std::uint32_t room_slabs(const Quotas& quotas, const HeldSlabs& held, DomainId domain,
                         SlabCapacity capacity) {
  const auto found = quotas.find(domain);
  const std::uint32_t own = held_by(held, domain);
  const std::uint64_t taken = own + spoken_for(quotas, held, domain, capacity);
  const std::uint32_t maximum =
      found == quotas.end() ? capacity.slabs : maximum_slabs(found->second, capacity);
  if (own >= maximum || taken >= capacity.slabs) return 0;
  return std::min(maximum - own, capacity.slabs - static_cast<std::uint32_t>(taken));
}

HeldSlabs excess_slabs(const Quotas& quotas, const HeldSlabs& held, SlabCapacity capacity) {
  const auto quota_of = [&](DomainId domain) {
    const auto found = quotas.find(domain);
    return found == quotas.end() ? Quota{} : found->second;
  };
  std::uint64_t taken = 0, lacking = 0, borrowed = 0;
  for (const auto& [domain, quota] : quotas) {
    const std::uint32_t guaranteed = guaranteed_slabs(quota, capacity);
    lacking += guaranteed - std::min(guaranteed, held_by(held, domain));
  }
  const auto lent = [&](DomainId domain, std::uint32_t slabs) {
    return slabs - std::min(slabs, guaranteed_slabs(quota_of(domain), capacity));
  };
  for (const auto& [domain, slabs] : held) taken += slabs, borrowed += lent(domain, slabs);
  lacking -= std::min<std::uint64_t>(lacking, capacity.slabs - taken);
  HeldSlabs excess;
  for (const auto& [domain, slabs] : held) {
    const std::uint32_t above = slabs - std::min(slabs, maximum_slabs(quota_of(domain), capacity));
    const std::uint64_t part =
        lacking == 0 ? 0 : (lacking * lent(domain, slabs) + borrowed - 1) / borrowed;
    const auto beyond = std::max(above, static_cast<std::uint32_t>(part));
    if (beyond > 0) excess[domain] = beyond;
  }
  return excess;
}

Parts equal_parts(const Quotas& quotas, const Demands& demands, SlabCapacity capacity) {
  struct Range {
    std::uint32_t guaranteed = 0, least = 0, most = 0;
  };
  Parts parts{quotas};
  std::map<DomainId, Range> ranges;
  for (const auto& [domain, demand] : demands) parts.quotas.try_emplace(domain);
  for (const auto& [domain, quota] : parts.quotas) {
    const auto found = demands.find(domain);
    const Demand demand = found == demands.end() ? Demand{} : found->second;
    const std::uint32_t maximum = maximum_slabs(quota, capacity);
    Range& range = ranges[domain];
    range.guaranteed = guaranteed_slabs(quota, capacity);
    range.least = std::max(range.guaranteed, std::min(demand.keeps, maximum));
    range.most = std::max(range.least, std::min(demand.wants, maximum));
  }
  const auto fits = [&](std::uint32_t part, std::uint32_t Range::*least) {
    std::uint64_t sum = 0;
    for (const auto& [domain, range] : ranges) sum += std::clamp(part, range.*least, range.most);
    return sum <= capacity.slabs;
  };
  const auto largest = [&](std::uint32_t Range::*least) {
    std::uint32_t part = 0;
    for (std::uint32_t step = std::bit_floor(capacity.slabs); step > 0; step /= 2) {
      if (fits(part + step, least)) part += step;
    }
    return part;
  };
  if (fits(capacity.slabs, &Range::guaranteed)) return {quotas};
  const std::uint32_t equal = largest(&Range::guaranteed);
  if (!fits(0, &Range::least)) return {quotas, equal};
  parts.slabs = equal;
  const std::uint32_t left = largest(&Range::least);
  for (const auto& [domain, range] : ranges) {
    Bytes& guarantee = parts.quotas[domain].guarantee;
    const std::int64_t slabs{std::clamp(left, range.least, range.most)};
    guarantee = std::max(guarantee, capacity.slab_bytes * slabs);
  }
  return parts;
}

ErrorCode judge(std::uint32_t wanted, const SlabSupply& supply) {
  const std::uint32_t held_in_the_end = supply.held + supply.held_later;
  const std::uint32_t loose_in_the_end = supply.loose + supply.loose_later;
  if (wanted <= supply.held + std::min(supply.loose, supply.room)) return ErrorCode::kOk;
  if (wanted <= held_in_the_end + std::min(loose_in_the_end, supply.room_later)) {
    return ErrorCode::kWouldBlock;
  }
  return wanted <= held_in_the_end + loose_in_the_end ? ErrorCode::kQuotaExceeded
                                                      : ErrorCode::kOutOfMemory;
}

}  // namespace kvd::pool
