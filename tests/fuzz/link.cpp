// What a kvd-admin that was taken over may send to kvd, and what kvd tells it: any bytes on their
// socket pair, and any change. No change leaves settings or quotas with a fault.
#include <sys/socket.h>

#include <cstdint>

#include "kvd/admin/link/channel.hpp"
#include "kvd/admin/link/drain.hpp"
#include "kvd/admin/link/quotas.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/admin/link/tuning_change.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

namespace link = admin::link;
using link::Assignment, link::Change;
enum class Kind : std::uint8_t { kStream, kChange, kSnapshot, kTuning };
constexpr Bytes kMost = 4 * kKiB;

/// All messages that come before the first fault.
void receive(View bytes) {
  auto ends = link::Channel::pair();
  expect(ends.ok(), "no descriptors");
  link::Channel channel(std::move(ends->first));
  const ssize_t sent = ::send(ends->second.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  ends->second.reset();
  std::size_t read = 0;
  for (;;) {
    const auto message = channel.receive(kMost, std::chrono::seconds(10));
    if (!message.ok()) {
      expect(message.error().code != ErrorCode::kDeadlineExceeded, "it waits for one that is gone");
      return;
    }
    read += sizeof(link::Header) + message->body.size();
    expect(message->body.size() <= kMost.size(), "a message is longer than it may be");
    expect(static_cast<ssize_t>(read) <= sent, "more is read than was sent");
  }
}

std::vector<admin::DomainQuota> quotas() {
  std::vector<admin::DomainQuota> all(2);
  all[0].name = "default";
  all[0].per_user = true;
  all[1].name = "a";
  all[1].hbm = {Bytes(4096), Bytes(40960)};
  return all;
}

core::ControllerStatus attached() {
  core::ControllerStatus status;
  status.engines.resize(2);
  for (std::uint32_t id = 1; id <= 2; ++id) status.engines[id - 1].id = EngineId(id);
  return status;
}

void check_quotas(const Change& change, std::span<const Assignment> assignments) {
  const link::Capacities capacities{{Bytes(4096), 16}, {Bytes(4096), 32}};
  const auto after = link::changed(quotas(), change, assignments, capacities);
  if (!after.ok()) return;
  pool::Quotas hbm, dram;
  for (std::uint32_t i = 0; i < after->size(); ++i) {
    hbm[DomainId(i + 1)] = (*after)[i].hbm;
    dram[DomainId(i + 1)] = (*after)[i].dram;
  }
  expect(pool::check_quotas(hbm, capacities.hbm).ok(), "quotas of HBM that do not fit");
  expect(pool::check_quotas(dram, capacities.dram).ok(), "quotas of DRAM that do not fit");
}

void check_drains(const Change& change, std::span<const Assignment> assignments) {
  const core::ControllerStatus status = attached();
  const auto drains = link::drains_of(status, change, assignments);
  expect(!drains.ok() || drains->size() <= assignments.size(), "more drains than were asked for");
}

void change(View body) {
  const auto head = link::take<Change>(body);
  if (!head) return;
  std::vector<Assignment> assignments;
  while (const auto one = link::take<Assignment>(body)) assignments.push_back(*one);
  const auto tuning = link::changed(core::Tuning(), *head, assignments);
  expect(!tuning.ok() || tuning->faults().empty(), "a change has left a fault");
  check_quotas(*head, assignments);
  check_drains(*head, assignments);
}

void snapshot(View bytes) {
  auto read = link::decode_snapshot(bytes);
  if (!read.ok()) return;
  link::ByteVector again;
  link::encode(*read, again);
  auto same = link::decode_snapshot(again);
  expect(same.ok(), "what is encoded cannot be decoded");
  link::ByteVector third;
  link::encode(*same, third);
  expect(third == again, "another snapshot is encoded than was decoded");
}

Data started(Kind kind) { return {std::byte(kind)}; }

void add_message(Data& stream, link::Type type, View body) {
  link::Header header;
  header.type = static_cast<std::uint16_t>(type);
  header.length = body.size();
  add_pod(stream, header);
  add(stream, body);
}

Data change_of(link::Part part, std::uint32_t key, const char* domain, std::int64_t whole) {
  Change head;
  head.part = part;
  head.count = 1;
  Assignment one;
  one.key = key;
  one.slo_class = link::to_text<sizeof one.slo_class>(domain);
  one.whole = whole;
  Data body;
  add_pod(body, head);
  add_pod(body, one);
  return body;
}

}  // namespace

std::vector<Data> seeds() {
  using link::Part;
  std::vector<Data> all;
  Data stream = started(Kind::kStream);
  for (const Data& body :
       {change_of(Part::kPolicy, 1, "", 1),
        change_of(Part::kSlo, static_cast<std::uint32_t>(link::SloKey::kTtft), "chat", 1'000'000),
        change_of(Part::kQuotas, static_cast<std::uint32_t>(link::QuotaKey::kHbmGuarantee), "a",
                  8192),
        change_of(Part::kDrain, static_cast<std::uint32_t>(link::DrainKey::kDrain), "", 5)}) {
    add(all.emplace_back(started(Kind::kChange)), body);
    add_message(stream, link::Type::kChange, body);
  }
  add_message(stream, link::Type::kSnapshot, {});
  all.push_back(std::move(stream));
  admin::Snapshot shown;
  shown.status = attached();
  shown.quotas = quotas();
  shown.config = {{"pool.hbm", "1GiB"}};
  link::ByteVector bytes;
  link::encode(shown, bytes);
  add(all.emplace_back(started(Kind::kSnapshot)), bytes);
  core::Tuning tuning;
  bytes.clear();
  link::encode(tuning, bytes);
  add(all.emplace_back(started(Kind::kTuning)), bytes);
  return all;
}

void run(View input) {
  const auto kind = Kind(take<std::uint8_t>(input) % 4);
  if (kind == Kind::kStream) receive(input);
  if (kind == Kind::kChange) change(input);
  if (kind == Kind::kSnapshot) snapshot(input);
  if (kind == Kind::kTuning) (void)link::decode_tuning(input);
}

}  // namespace kvd::fuzz
