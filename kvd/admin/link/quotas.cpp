#include "kvd/admin/link/quotas.hpp"

#include <algorithm>
#include <string_view>

#include "kvd/admin/link/tags.hpp"

namespace kvd::admin::link {
namespace {

Status assign(DomainQuota& domain, const Assignment& assignment) {
  const Bytes bytes(assignment.whole == kAutomatic ? INT64_MAX : assignment.whole);
  switch (static_cast<QuotaKey>(assignment.key)) {
    case QuotaKey::kHbmGuarantee:
      domain.hbm.guarantee = bytes;
      return {};
    case QuotaKey::kHbmMaximum:
      domain.hbm.maximum = bytes;
      return {};
    case QuotaKey::kDramGuarantee:
      domain.dram.guarantee = bytes;
      return {};
    case QuotaKey::kDramMaximum:
      domain.dram.maximum = bytes;
      return {};
  }
  return make_error(ErrorCode::kInvalidArgument, ": no such key");
}

Status check(const std::vector<DomainQuota>& quotas, const char* tier,
             pool::Quota DomainQuota::*member, pool::SlabCapacity capacity) {
  pool::Quotas all;
  for (std::size_t place = 0; place < quotas.size(); ++place) {
    const DomainQuota& domain = quotas[place];
    if (domain.per_user && (domain.*member).guarantee > Bytes(0)) {
      return make_error(ErrorCode::kInfeasible,
                        "domains." + domain.name + "." + tier +
                            ".guarantee_bytes: users have none, as nobody knows how many come");
    }
    all[DomainId(static_cast<std::uint32_t>(place) + 1)] = domain.*member;
  }
  const Status fits = pool::check_quotas(all, capacity);
  if (fits.ok()) return {};
  return make_error(ErrorCode::kInfeasible,
                    std::string("domains: in ") + tier + ", " + fits.error().message);
}

}  // namespace

std::uint64_t tag_of(const std::vector<DomainQuota>& quotas) {
  TagSum sum;
  for (const DomainQuota& domain : quotas) {
    sum.add(domain.name);
    for (const pool::Quota& quota : {domain.hbm, domain.dram}) {
      sum.add(quota.guarantee.value);
      sum.add(quota.maximum.value);
    }
  }
  return sum.value();
}

Result<std::vector<DomainQuota>> changed(std::vector<DomainQuota> quotas, const Change& change,
                                         std::span<const Assignment> assignments,
                                         const Capacities& capacities) {
  KVD_TRY(check_tags(change, tag_of(quotas)));
  for (const Assignment& assignment : assignments) {
    const std::string_view name = text_of(assignment.slo_class);
    const auto found = std::find_if(quotas.begin(), quotas.end(),
                                    [&](const DomainQuota& domain) { return domain.name == name; });
    if (found == quotas.end()) {
      return make_error(
          ErrorCode::kNotFound,
          "domains: no [[domain]] of the configuration is named \"" + std::string(name) + "\"");
    }
    KVD_TRY(assign(*found, assignment));
  }
  KVD_TRY(check(quotas, "hbm", &DomainQuota::hbm, capacities.hbm));
  KVD_TRY(check(quotas, "dram", &DomainQuota::dram, capacities.dram));
  return quotas;
}

}  // namespace kvd::admin::link
