#include "kvd/tiers/remote/remote_tier.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/digest/sha256.hpp"
#include "kvd/tiers/remote/link.hpp"
#include "kvd/tiers/remote/socket.hpp"

namespace kvd::remote {

namespace {

std::uint64_t number_of(std::span<const std::uint8_t> bytes) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// SplitMix64's last steps.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

struct RemoteTier::Desk {
  explicit Desk(disk::EventFd fd) : done(std::move(fd)) {}

  void answered(const Answer& answer) {
    {
      const std::lock_guard lock(mutex);
      if (answer.kind != Request::Kind::kFind) {
        completions.push_back({answer.ticket, answer.fault, {}});
      } else if (!found(answer)) {
        return;
      }
    }
    done.signal();
  }
  void changed(Change change) {
    {
      const std::lock_guard lock(mutex);
      changes.push_back(std::move(change));
    }
    done.signal();
  }
  /// False: others have not answered yet.
  bool found(const Answer& answer) {
    const auto at = findings.find(answer.ticket);
    if (at == findings.end()) return false;
    Finding& finding = at->second;
    const std::vector<std::size_t>& asked = finding.asked[answer.server];
    for (std::size_t i = 0; i < asked.size() && i < answer.there.size(); ++i) {
      finding.there[asked[i]] = answer.there[i];
    }
    if (finding.fault == disk::Fault::kNone) finding.fault = answer.fault;
    if (--finding.left > 0) return false;
    completions.push_back({answer.ticket, finding.fault, std::move(finding.there)});
    findings.erase(at);
    return true;
  }

  const disk::EventFd done;
  std::mutex mutex;  // guards what follows
  std::vector<Completion> completions;
  std::vector<Change> changes;
  std::map<Ticket, Finding> findings;
};

Result<std::unique_ptr<RemoteTier>> RemoteTier::open(const RemoteOptions& options,
                                                     const std::shared_ptr<const Clock>& clock) {
  for (const std::string& server : options.servers) KVD_TRY(check_address(server));
  if (options.servers.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "no server: name one in remote.servers");
  }
  KVD_ASSIGN_OR_RETURN(disk::EventFd done, disk::EventFd::make());
  std::unique_ptr<RemoteTier> tier(new RemoteTier(std::make_shared<Desk>(std::move(done)), clock));
  digest::Sha256 sha256;
  for (const std::string& server : options.servers) {
    const auto* text = reinterpret_cast<const std::uint8_t*>(server.data());
    tier->seeds_.push_back(number_of(sha256({text, server.size()}).bytes));
    Link::Setup setup;
    setup.number = tier->links_.size();
    setup.address = server;
    setup.password = options.password;
    setup.ttl = options.ttl;
    setup.clock = clock;
    setup.answer = [desk = tier->desk_](const Answer& answer) { desk->answered(answer); };
    setup.change = [desk = tier->desk_](Change change) { desk->changed(std::move(change)); };
    KVD_ASSIGN_OR_RETURN(std::shared_ptr<Link> link, Link::start(std::move(setup)));
    tier->links_.push_back(std::move(link));
  }
  return tier;
}

RemoteTier::RemoteTier(std::shared_ptr<Desk> desk, std::shared_ptr<const Clock> clock)
    : desk_(std::move(desk)), clock_(std::move(clock)) {}

RemoteTier::~RemoteTier() {
  for (const auto& link : links_) link->end();
  for (const auto& link : links_) link->stop();
}

std::size_t RemoteTier::server_of(const disk::Digest& digest) const {
  const std::uint64_t name = number_of(digest);
  std::size_t best = 0;
  for (std::size_t i = 1; i < seeds_.size(); ++i) {
    if (mixed(seeds_[i] ^ name) > mixed(seeds_[best] ^ name)) best = i;
  }
  return best;
}

void RemoteTier::find(Find find) {
  Finding finding;
  finding.there.resize(find.digests.size());
  finding.asked.resize(links_.size());
  for (std::size_t i = 0; i < find.digests.size(); ++i) {
    finding.asked[server_of(find.digests[i])].push_back(i);
  }
  std::vector<std::pair<std::size_t, Request>> requests;
  const TimePoint deadline = clock_->now() + find.patience;
  for (std::size_t server = 0; server < links_.size(); ++server) {
    if (finding.asked[server].empty()) continue;
    Request request;
    request.kind = Request::Kind::kFind;
    request.ticket = find.ticket;
    request.shape = find.shape;
    request.deadline = deadline;
    for (const std::size_t i : finding.asked[server]) request.digests.push_back(find.digests[i]);
    requests.emplace_back(server, std::move(request));
  }
  finding.left = requests.size();
  if (requests.empty()) return desk_->answered({0, Request::Kind::kGet, find.ticket, {}, {}});
  {
    const std::lock_guard lock(desk_->mutex);
    desk_->findings.emplace(find.ticket, std::move(finding));
  }
  for (auto& [server, request] : requests) links_[server]->add(std::move(request));
}

void RemoteTier::get(Get get) {
  Link& link = *links_[server_of(get.key.digest)];
  link.add({Request::Kind::kGet,
            get.ticket,
            get.shape,
            get.key,
            {},
            std::move(get.groups),
            {},
            clock_->now() + get.patience});
}

void RemoteTier::put(Put put) {
  Link& link = *links_[server_of(put.key.digest)];
  link.add({Request::Kind::kPut,
            put.ticket,
            put.shape,
            put.key,
            {},
            {},
            std::move(put.groups),
            clock_->now() + put.patience});
}

void RemoteTier::poll(std::vector<Completion>& completions, std::vector<Change>& changes) {
  desk_->done.drain();
  const std::lock_guard lock(desk_->mutex);
  std::move(desk_->completions.begin(), desk_->completions.end(), std::back_inserter(completions));
  std::move(desk_->changes.begin(), desk_->changes.end(), std::back_inserter(changes));
  desk_->completions.clear();
  desk_->changes.clear();
}

int RemoteTier::completion_fd() const { return desk_->done.get(); }

std::vector<ServerStatus> RemoteTier::status() const {
  std::vector<ServerStatus> all;
  for (const auto& link : links_) all.push_back(link->status());
  return all;
}

}  // namespace kvd::remote
