#include "kvd/admin/link/tuning_change.hpp"

#include "kvd/admin/link/snapshot.hpp"
#include "kvd/admin/link/tags.hpp"

namespace kvd::admin::link {
namespace {

using core::Tuning;

constexpr TuningKey kKeys[] = {
    {"rotation.policy", Kind::kText,
     [](Tuning& t, const Assignment& a) { t.rotation.policy = text_of(a.text); }},
    {"rotation.alpha", Kind::kNumber,
     [](Tuning& t, const Assignment& a) { t.rotation.alpha = a.number; }},
    {"rotation.beta_b", Kind::kNumber,
     [](Tuning& t, const Assignment& a) { t.rotation.beta_b = a.number; }},
    {"rotation.beta_f", Kind::kNumber,
     [](Tuning& t, const Assignment& a) { t.rotation.beta_f = a.number; }},
    {"rotation.b_xfer", Kind::kBytesOrAuto,
     [](Tuning& t, const Assignment& a) {
       t.rotation.b_xfer =
           a.whole == kAutomatic ? std::nullopt : std::optional<Bytes>(Bytes(a.whole));
     }},
    {"rotation.eager", Kind::kTruth,
     [](Tuning& t, const Assignment& a) { t.rotation.eager = a.whole != 0; }},
    {"rotation.overload", Kind::kText,
     [](Tuning& t, const Assignment& a) { t.rotation.overload = text_of(a.text); }},
    {"rotation.pacing", Kind::kText,
     [](Tuning& t, const Assignment& a) { t.rotation.pacing = text_of(a.text); }},
    {"placement.policy", Kind::kText,
     [](Tuning& t, const Assignment& a) { t.placement.policy = text_of(a.text); }},
    {"placement.alpha", Kind::kNumber,
     [](Tuning& t, const Assignment& a) { t.placement.alpha = a.number; }},
    {"placement.window.min", Kind::kWhole,
     [](Tuning& t, const Assignment& a) { t.placement.window_min = a.whole; }},
    {"placement.window.max", Kind::kWhole,
     [](Tuning& t, const Assignment& a) { t.placement.window_max = a.whole; }},
    {"placement.pause", Kind::kTruth,
     [](Tuning& t, const Assignment& a) { t.placement.pause = a.whole != 0; }},
    {"placement.deposit", Kind::kTruth,
     [](Tuning& t, const Assignment& a) { t.placement.deposit = a.whole != 0; }},
    {"admission.policy", Kind::kText,
     [](Tuning& t, const Assignment& a) { t.admission.policy = text_of(a.text); }},
    {"admission.alpha", Kind::kNumber,
     [](Tuning& t, const Assignment& a) { t.admission.alpha = a.number; }},
    {"admission.beta", Kind::kNumber,
     [](Tuning& t, const Assignment& a) { t.admission.beta = a.number; }},
    {"load.policy", Kind::kText,
     [](Tuning& t, const Assignment& a) { t.load.policy = text_of(a.text); }},
};

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

std::span<const TuningKey> tuning_keys() { return kKeys; }

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
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const std::byte b : bytes) hash = (hash ^ static_cast<unsigned>(b)) * 0x100000001b3ull;
  return hash;
}

Result<Tuning> changed(Tuning tuning, const Change& change,
                       std::span<const Assignment> assignments) {
  KVD_TRY(check_tags(change, tag_of(tuning, change.part)));
  for (const Assignment& assignment : assignments) {
    if (change.part == Part::kSlo) {
      KVD_TRY(assign_slo(tuning.slo, assignment));
    } else if (assignment.key < std::size(kKeys)) {
      kKeys[assignment.key].set(tuning, assignment);
    } else {
      return make_error(ErrorCode::kInvalidArgument, ": no such key");
    }
  }
  const auto faults = tuning.faults();
  if (!faults.empty()) return make_error(ErrorCode::kInvalidArgument, faults.front());
  return tuning;
}

}  // namespace kvd::admin::link
