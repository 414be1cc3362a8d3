#include "kvd/daemon/workers/remotes.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/errno_words.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/daemon/workers/disk_blocks.hpp"

namespace kvd::daemon {

namespace {

constexpr std::size_t kLeastSecret = 32;  ///< letters
constexpr Nanoseconds kFindTime = std::chrono::seconds(2);

/// Its first line.
Result<std::string> read_private(const std::string& key, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!file.valid() || ::fstat(file.get(), &facts) != 0) {
    return make_error(ErrorCode::kNotFound, key + ": " + path + ": " + errno_words(errno) +
                                                "; name a file that kvd's user can read");
  }
  if (!S_ISREG(facts.st_mode) || (facts.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0) {
    return make_error(ErrorCode::kPermissionDenied,
                      key + ": " + path + " may be read or changed by others: chmod 600 it");
  }
  std::array<char, 4096> text;
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  std::string line(text.data(), static_cast<std::size_t>(got < 0 ? 0 : got));
  return line.substr(0, line.find_first_of("\r\n"));
}

}  // namespace

Result<RemoteSecrets> read_remote_secrets(const Config& config) {
  RemoteSecrets secrets;
  const RemoteSettings& remote = config.remote;
  if (remote.list().empty()) return secrets;
  KVD_ASSIGN_OR_RETURN(const std::string secret,
                       read_private("remote.secret_file", remote.secret_file));
  if (secret.size() < kLeastSecret) {
    return make_error(ErrorCode::kInvalidArgument,
                      "remote.secret_file: " + remote.secret_file +
                          " has a line of under 32 letters: openssl rand -hex 32 makes one");
  }
  const auto* text = reinterpret_cast<const std::uint8_t*>(secret.data());
  secrets.names = names_under(digest::Sha256()({text, secret.size()}));
  if (remote.password_file.empty()) return secrets;
  KVD_ASSIGN_OR_RETURN(secrets.password,
                       read_private("remote.password_file", remote.password_file));
  return secrets;
}

Result<std::unique_ptr<remote::RemoteTier>> Remotes::open(const RemoteSettings& settings,
                                                          const std::string& password,
                                                          Poller& poller) {
  const remote::RemoteOptions options{settings.list(), password, settings.ttl};
  if (options.servers.empty()) return std::unique_ptr<remote::RemoteTier>();
  KVD_ASSIGN_OR_RETURN(auto tier,
                       remote::RemoteTier::open(options, std::make_shared<SteadyClock>()));
  KVD_TRY(poller.watch(Poller::Source::kRemote, 0, tier->completion_fd()));
  return tier;
}

Remotes::Remotes(const Uses& uses, std::unique_ptr<remote::RemoteTier> tier)
    : uses_(uses), tier_(std::move(tier)) {}

Remotes::~Remotes() { uses_.poller.forget(tier_->completion_fd()); }

void Remotes::find(const core::FindRemote& order) {
  remote::Find find{order.ticket, shape_of(order.shape), {}, kFindTime};
  find.digests.reserve(order.names.size());
  for (const Digest& name : order.names) find.digests.push_back(name.bytes);
  finds_.insert(order.ticket);
  tier_->find(std::move(find));
}

void Remotes::read(const core::ReadRemote& order) {
  tier_->get({order.ticket, shape_of(order.shape), key_of(order.block),
              memory_of<std::byte>(uses_.slabs, order.block), order.block.patience});
}

void Remotes::write(const core::WriteRemote& order) {
  tier_->put({order.ticket, shape_of(order.shape), key_of(order.block),
              memory_of<const std::byte>(uses_.slabs, order.block), order.block.patience});
}

void Remotes::take_finished() {
  std::vector<remote::Completion> completions;
  std::vector<remote::Change> changes;
  tier_->poll(completions, changes);
  for (const remote::Change& change : changes) tell(change);
  for (remote::Completion& completion : completions) {
    if (finds_.erase(completion.ticket) > 0) {
      uses_.events.feed(core::RemoteFound{completion.ticket, std::move(completion.there)});
      continue;
    }
    core::DiskFinished finished;
    finished.ticket = completion.ticket;
    finished.ok = completion.fault == disk::Fault::kNone;
    finished.gone = !finished.ok && completion.fault != disk::Fault::kTimedOut;
    uses_.events.feed(finished);
  }
}

void Remotes::tell(const remote::Change& change) {
  if (change.on && change.why.code == ErrorCode::kOk) {
    uses_.log.info(EngineId(), "remote server " + change.server + " is on");
  } else if (change.on) {
    uses_.log.warn(EngineId(), "nothing is written to a remote server: " + change.why.message);
  } else {
    uses_.log.warn(EngineId(), "a remote server is off, and its blocks are computed meanwhile: " +
                                   change.why.message);
  }
  uses_.events.feed(core::RemoteChanged{});
}

void Remotes::describe(std::vector<core::RemoteServer>& servers) const {
  for (const remote::ServerStatus& status : tier_->status()) {
    core::RemoteServer server;
    server.server = status.server;
    server.on = status.on;
    server.why = status.why.code == ErrorCode::kOk ? "" : status.why.message;
    server.loads = status.loads;
    server.misses = status.misses;
    server.stores = status.stores;
    server.renewals = status.renewals;
    server.finds = status.finds;
    server.errors = status.errors;
    server.offs = status.offs;
    server.bytes_in = status.in;
    server.bytes_out = status.out;
    server.round_trip_s = to_seconds(status.round_trip);
    servers.push_back(std::move(server));
  }
}

}  // namespace kvd::daemon
