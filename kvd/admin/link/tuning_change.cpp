#include "kvd/admin/link/tuning_change.hpp"

#include "ipc/vocabulary/fnv.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/admin/link/tags.hpp"
#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::admin::link {
namespace {

using core::Tuning;

void take(std::string& to, const Assignment& from) { to = text_of(from.text); }
void take(double& to, const Assignment& from) { to = from.number; }
void take(bool& to, const Assignment& from) { to = from.whole != 0; }
void take(std::optional<Bytes>& to, const Assignment& from) {
  to = from.whole == kAutomatic ? std::nullopt : std::optional(Bytes(from.whole));
}

Status assign_slo(std::map<std::string, core::Slo>& classes, const Assignment& a) {
  const std::string name(text_of(a.slo_class));
  if (a.key == static_cast<std::uint32_t>(SloKey::kRemove)) {
    classes.erase(name);
    return {};
  }
  const core::Slo initial = classes.contains("default") ? classes.at("default") : core::Slo{};
  core::Slo& slo = classes.try_emplace(name, initial).first->second;
  switch (static_cast<SloKey>(a.key)) {
    case SloKey::kTtft:
      slo.ttft = Nanoseconds(a.whole);
      return {};
    case SloKey::kTbt:
      slo.tbt = Nanoseconds(a.whole);
      return {};
    case SloKey::kTpot:
      slo.tpot = Nanoseconds(a.whole);
      return {};
    case SloKey::kGap:
      slo.gap = a.whole == kAutomatic ? std::nullopt : std::optional(Nanoseconds(a.whole));
      return {};
    case SloKey::kAdd:
    case SloKey::kRemove:
      return {};
  }
  return make_error(ErrorCode::kInvalidArgument, ": no such key");
}

}  // namespace

std::uint64_t tag_of(const Tuning& tuning, Part part) {
  Tuning only = tuning;
  if (part == Part::kPolicy) {
    only.slo.clear();
  } else {
    only = {};
    only.slo = tuning.slo;
  }
  ByteVector bytes;
  encode(only, bytes);
  Fnv1a tag;
  for (const std::byte b : bytes) tag.add(static_cast<std::uint8_t>(b));
  return tag.value();
}

Result<Tuning> changed(Tuning tuning, const Change& change,
                       std::span<const Assignment> assignments) {
  const auto keys = core::tuning_keys();
  KVD_TRY(check_tags(change, tag_of(tuning, change.part)));
  for (const Assignment& assignment : assignments) {
    if (change.part == Part::kSlo) {
      KVD_TRY(assign_slo(tuning.slo, assignment));
    } else if (assignment.key < keys.size()) {
      std::visit([&](const auto& field) { take(field.in(tuning), assignment); },
                 keys[assignment.key].field);
    } else {
      return make_error(ErrorCode::kInvalidArgument, ": no such key");
    }
  }
  const auto faults = tuning.faults();
  if (!faults.empty()) return make_error(ErrorCode::kInvalidArgument, faults.front());
  return tuning;
}

}  // namespace kvd::admin::link
