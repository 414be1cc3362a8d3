/// kvd-test-engine MODE ENDPOINT [N...]: a process for a test to kill, stop or mistrust. Says
/// "ready" on stdout when it has reached the state it is named after, then stays in it.
///
///   hold REGION_MIB PRIVATE_MIB   holds a region filled with 0xA5, and private memory it touched
///   reattach REGION_MIB           the same; pings until the daemon came back: "unavailable", then
///                                 "attached"; the old region must read as it was: "intact"; frees
///                                 it at SIGUSR1: "freed"
///   fork REGION_MIB               forks with a region mapped: "child PID"; the child writes to
///                                 every page of it again and again, and after SIGUSR1 says
///                                 "refused" when a whole round was, or "wrote"
///   scribble KIND SECONDS         overwrites its client page: ones, zero, died, random, words
///   store FIRST COUNT HOW         stores blocks FIRST and so on of a region: "stored"; HOW: leave,
///                                 corrupt (the same after a byte of the first was changed), or
///                                 hold (stays, and stores and loads them for ever)
///   load FIRST COUNT              loads them into other blocks: "equal", "differ N", or "missing"
///   uid UID                       attaches as another user: "CODE MESSAGE"
///   spy UID REGION_MIB HOW DEVICE as another user, gives a region filled with 0xA5 back and keeps
///   it
///                                 mapped all the same; HOW: free (that region), leave (the
///                                 session), fork (into a child, and is killed). "spy PID"; at
///                                 SIGUSR1 that process looks for what others wrote, "saw nothing"
///                                 or "saw theirs", after having written to every page itself
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvd_client/client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

constexpr std::byte kMark{0xA5};
constexpr unsigned kLifetime = 120;  // seconds; nothing here outlives a test run

void tell(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void stay() {
  for (;;) ::pause();
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "kvd-test-engine: %s\n", why.c_str());
  std::exit(1);
}

std::size_t mebibytes(const char* text) { return std::strtoull(text, nullptr, 10) << 20; }

kvd_client::Client opened(const char* endpoint, const char* name, std::uint32_t device = 0) {
  kvd_client::Options options;
  options.device = device;
  options.endpoint = endpoint;
  options.engine_name = name;
  auto client = kvd_client::Client::open(options);
  if (!client.ok()) give_up(client.error().message);
  return std::move(*client);
}

kvd_client::Region marked_region(kvd_client::Client& client, std::size_t bytes) {
  const auto region = client.allocate_region(bytes, kPatience);
  if (!region.ok()) give_up(region.error().message);
  std::memset(region->address, static_cast<int>(kMark), region->bytes);
  return *region;
}

/// Memory whose teardown takes the kernel a while.
void touch_private(std::size_t bytes) {
  if (bytes == 0) return;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory to touch");
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);
  for (std::size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
}

/// SIGUSR1 is the test's way to ask; it is waited for, never handled.
sigset_t block_questions() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int hold(const char* endpoint, char** numbers) {
  kvd_client::Client client = opened(endpoint, "hold");
  if (mebibytes(numbers[0]) > 0) marked_region(client, mebibytes(numbers[0]));
  touch_private(mebibytes(numbers[1]));
  tell("ready");
  stay();
}

// ---- an engine that places by itself ----

constexpr std::uint64_t kBlockBytes = 65536;

std::byte content(std::uint64_t block, std::uint64_t at) {
  return static_cast<std::byte>((block * 2654435761u + at * 40503u) >> 11);
}

struct Placed {
  kvd_client::Client client;
  kvd_client::Region region;
  std::uint64_t cache = 0;
  std::vector<kvd_client::Digest> digests;
  std::vector<std::uint32_t> blocks;

  /// Where piece 0 (whole pages) or piece 1 of a block begins. All second pieces stand behind all
  /// first ones.
  [[nodiscard]] std::byte& at(std::uint64_t block, std::uint64_t offset) const {
    constexpr std::uint64_t kHalf = kBlockBytes / 2;
    const std::uint64_t base = offset < kHalf ? 0 : digests.size() * kHalf;
    return region.address[base + block * kHalf + offset % kHalf];
  }
};

template <class T>
T must(kvd_client::Result<T> result) {
  if (!result.ok()) give_up(result.error().message);
  return std::move(result).value();
}

Placed placed(const char* endpoint, std::uint64_t first, std::uint64_t count) {
  Placed p{opened(endpoint, "placed"), {}, 0, {}, {}};
  p.region = must(p.client.allocate_region(count * kBlockBytes, kPatience));
  constexpr std::uint64_t kHalf = kBlockBytes / 2;
  p.cache = must(p.client.caches().open({"test",
                                         16,
                                         kBlockBytes,
                                         p.region.id,
                                         count,
                                         {{0, kHalf, kHalf}, {count * kHalf, kHalf, kHalf}}},
                                        kPatience));
  for (std::uint64_t i = 0; i < count; ++i) {
    kvd_client::Digest digest{};
    const std::uint64_t block = first + i;
    std::memcpy(digest.data(), &block, sizeof block);
    p.digests.push_back(digest);
    p.blocks.push_back(static_cast<std::uint32_t>(i));
  }
  return p;
}

bool copied(Placed& p, std::uint64_t ticket) {
  must(p.client.caches().wait({&ticket, 1}, kPatience));
  return p.client.caches().poll({&ticket, 1})[0] == kvd_client::TicketState::kDone;
}

int store_blocks(const char* endpoint, char** arguments) {
  const std::uint64_t first = std::strtoull(arguments[0], nullptr, 10);
  const std::string how = arguments[2];
  Placed p = placed(endpoint, first, std::strtoull(arguments[1], nullptr, 10));
  for (std::uint64_t block = 0; block < p.digests.size(); ++block) {
    for (std::uint64_t at = 0; at < kBlockBytes; ++at) p.at(block, at) = content(first + block, at);
  }
  if (how == "corrupt") p.at(0, kBlockBytes - 1) ^= std::byte{1};
  std::uint64_t ticket = 0;
  must(p.client.caches().store(p.cache, p.digests, p.blocks, false, kPatience, ticket));
  if (!copied(p, ticket)) give_up("the copy failed");
  tell("stored");
  while (how == "hold") {
    must(p.client.caches().load(p.cache, p.digests, p.blocks, kPatience, ticket));
    if (!copied(p, ticket)) give_up("the copy failed");
    (void)p.client.caches().drop(p.cache, p.digests, kPatience);
    must(p.client.caches().store(p.cache, p.digests, p.blocks, true, kPatience, ticket));
    if (!copied(p, ticket)) give_up("the copy failed");
  }
  return 0;
}

int load_blocks(const char* endpoint, char** arguments) {
  const std::uint64_t first = std::strtoull(arguments[0], nullptr, 10);
  Placed p = placed(endpoint, first, std::strtoull(arguments[1], nullptr, 10));
  std::reverse(p.blocks.begin(), p.blocks.end());
  std::uint64_t ticket = 0;
  const auto status = p.client.caches().load(p.cache, p.digests, p.blocks, kPatience, ticket);
  if (status.code() == kvd_client::ErrorCode::kNotFound) {
    tell("missing");
    return 0;
  }
  must(status);
  if (!copied(p, ticket)) give_up("the copy failed");
  std::uint64_t differ = 0;
  for (std::uint64_t i = 0; i < p.digests.size(); ++i) {
    for (std::uint64_t at = 0; at < kBlockBytes; ++at) {
      differ += p.at(p.blocks[i], at) == content(first + i, at) ? 0u : 1u;
    }
  }
  tell(differ == 0 ? "equal" : "differ " + std::to_string(differ));
  return 0;
}

int reattach(const char* endpoint, char** numbers) {
  const sigset_t signals = block_questions();  // before the client starts its thread
  kvd_client::Client client = opened(endpoint, "reattach");
  const kvd_client::Region region = marked_region(client, mebibytes(numbers[0]));
  tell("ready");
  const auto ping = [&] { return client.ping(std::chrono::milliseconds(200)); };
  const auto lost = [&] { return ping().code() == kvd_client::ErrorCode::kUnavailable; };
  if (!poll_until(lost)) give_up("the daemon stayed");
  tell("unavailable");
  if (!poll_until([&] { return ping().ok(); })) give_up("the daemon did not come back");
  tell("attached");
  const bool intact = std::all_of(region.address, region.address + region.bytes,
                                  [](std::byte b) { return b == kMark; });
  tell(intact ? "intact" : "changed");
  int signal = 0;
  ::sigwait(&signals, &signal);
  if (!client.free_region(region.id, kPatience).ok()) give_up("the old region");
  tell("freed");
  stay();
}

/// Lets the kernel write to the inherited address, so that a refusal is an error and no signal.
bool is_refused(int source, std::byte* at) { return ::syscall(SYS_read, source, at, 64) < 0; }

[[noreturn]] void write_for_ever(std::byte* memory, std::size_t bytes) {
  const sigset_t question = block_questions();
  const timespec pause{0, 1'000'000};
  bool asked = false;
  const int source = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  for (;;) {
    for (std::size_t at = 0; at < bytes; at += 4096) {
      if (is_refused(source, memory + at)) continue;
      tell("wrote");
      std::_Exit(1);
    }
    if (asked) tell("refused");
    asked = ::sigtimedwait(&question, nullptr, &pause) == SIGUSR1;
  }
}

int fork_and_hold(const char* endpoint, char** numbers) {
  (void)block_questions();
  kvd_client::Client client = opened(endpoint, "fork");
  const kvd_client::Region region = marked_region(client, mebibytes(numbers[0]));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kLifetime);
    write_for_ever(region.address, region.bytes);
  }
  tell("child " + std::to_string(child));
  tell("ready");
  stay();
}

void scribble_once(shm::ClientPage& page, const std::string& kind, std::mt19937_64& random) {
  auto* keeper = reinterpret_cast<std::uint32_t*>(&page.keeper);
  const std::atomic_ref<std::uint32_t> word(*keeper);
  if (kind == "ones") {
    std::memset(&page.keeper, 0xff, sizeof page.keeper);
  } else if (kind == "zero") {
    std::memset(&page.keeper, 0, sizeof page.keeper);
  } else if (kind == "died") {
    word = FUTEX_OWNER_DIED | FUTEX_WAITERS;
  } else if (kind == "random") {
    // What the header says is left: the daemon never reads it, the library does.
    auto* words = reinterpret_cast<std::uint64_t*>(&page);
    for (std::size_t i = 8; i < sizeof page / sizeof *words; ++i) {
      std::atomic_ref<std::uint64_t>{words[i]} = random();
    }
    // Mostly as if it lived, so that it is watched for as long as possible.
    word = static_cast<std::uint32_t>(random()) & ~std::uint32_t{FUTEX_OWNER_DIED};
  } else {
    page.heartbeat = random();
    page.using_version = random();
    page.iteration_finished = random();
    page.fence_h2d = random();
    page.poison = random() & 1;
  }
}

/// One step of a session that is honest in its commands, whatever its page says.
Status step(RawEngine& engine, std::uint64_t& iteration) {
  wire::StepCommand command;
  command.body.iteration_finished = iteration;
  KVD_TRY(engine.call(command));
  if (const auto* answer = std::get_if<wire::StepReply>(&engine.reply().body)) {
    iteration = answer->body.iteration;
  }
  return {};
}

int scribble(const char* endpoint, char** arguments) {
  const std::string kind = arguments[0];
  auto engine = RawEngine::attach(endpoint, "scribble", {4, 0, 0, 0, 1024});
  if (!engine.ok()) give_up(engine.error().message);
  if (!engine->keep().ok()) give_up("keeper");
  std::mt19937_64 random(7);
  wire::SubmitBody request;
  request.request = 1;
  request.prompt_tokens = 32;
  request.max_new_tokens = 64;
  if (!engine->call(request).ok()) give_up("submit");
  std::uint64_t iteration = 0;
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::atoi(arguments[1]));
  bool told = false;
  while (std::chrono::steady_clock::now() < until) {
    // Many words an answer: the watcher of the page sees them change all the time.
    for (int i = 0; i < 100; ++i) scribble_once(engine->page(), kind, random);
    engine->acknowledge_slabs();
    (void)step(*engine, iteration).ok();  // the daemon may have dropped it, which is its right
    if (!told) tell("ready");
    told = true;
  }
  tell("done");
  stay();
}

void become(const char* user) {
  const auto uid = static_cast<uid_t>(std::strtoul(user, nullptr, 10));
  if (::setgid(uid) != 0 || ::setuid(uid) != 0) give_up("setuid");
}

int as_user(const char* endpoint, char** numbers) {
  become(numbers[0]);
  const auto engine = RawEngine::attach(endpoint, "foreign");
  tell(engine.ok() ? "Ok" : engine.error().to_string());
  return 0;
}

/// A region's slabs, mapped a second time: of a shared mapping, mremap() of no bytes makes a copy.
class KeptRegion {
 public:
  explicit KeptRegion(const kvd_client::Region& region) : size_(region.granularity) {
    for (std::size_t at = 0; at < region.bytes; at += size_) {
      void* kept = ::mremap(region.address + at, 0, size_, MREMAP_MAYMOVE);
      if (kept == MAP_FAILED || ::madvise(kept, size_, MADV_DOFORK) != 0) give_up("mremap");
      slabs_.push_back(static_cast<std::byte*>(kept));
    }
  }
  /// Whether any byte is neither the mark nor zero.
  [[nodiscard]] bool shows_others() const {
    return std::any_of(slabs_.begin(), slabs_.end(), [&](const std::byte* slab) {
      return std::any_of(slab, slab + size_,
                         [](std::byte b) { return b != kMark && b != std::byte{0}; });
    });
  }
  void overwrite() {
    for (std::byte* slab : slabs_) std::memset(slab, 0xEE, size_);
  }

 private:
  std::size_t size_;
  std::vector<std::byte*> slabs_;
};

[[noreturn]] void spy_when_asked(KeptRegion kept, const sigset_t& question) {
  tell("spy " + std::to_string(::getpid()));
  int signal = 0;
  ::sigwait(&question, &signal);
  const bool shows = kept.shows_others();
  kept.overwrite();
  tell(shows ? "saw theirs" : "saw nothing");
  stay();
}

int spy(const char* endpoint, char** arguments) {
  become(arguments[0]);
  const std::string how = arguments[2];
  const sigset_t question = block_questions();  // before the client starts its thread
  std::optional<kvd_client::Client> client =
      opened(endpoint, "spy", static_cast<std::uint32_t>(std::atoi(arguments[3])));
  const kvd_client::Region region = marked_region(*client, mebibytes(arguments[1]));
  const KeptRegion kept(region);
  if (how == "free" && !client->free_region(region.id, kPatience).ok()) give_up("free");
  if (how == "leave") client.reset();
  if (how == "fork" && ::fork() != 0) ::raise(SIGKILL);
  ::alarm(kLifetime);
  spy_when_asked(kept, question);
}

int main(int argc, char** argv) {
  ::alarm(kLifetime);
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "hold" && argc == 5) return hold(argv[2], argv + 3);
  if (mode == "reattach" && argc == 4) return reattach(argv[2], argv + 3);
  if (mode == "fork" && argc == 4) return fork_and_hold(argv[2], argv + 3);
  if (mode == "scribble" && argc == 5) return scribble(argv[2], argv + 3);
  if (mode == "store" && argc == 6) return store_blocks(argv[2], argv + 3);
  if (mode == "load" && argc == 5) return load_blocks(argv[2], argv + 3);
  if (mode == "uid" && argc == 4) return as_user(argv[2], argv + 3);
  if (mode == "spy" && argc == 7) return spy(argv[2], argv + 3);
  std::fprintf(stderr, "usage: see test_engine.cpp\n");
  return 2;
}

}  // namespace
}  // namespace kvd::test

int main(int argc, char** argv) { return kvd::test::main(argc, argv); }
