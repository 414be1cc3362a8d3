#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ipc/shm/client_page.hpp"
#include "ipc/shm/table_writer.hpp"
#include "ipc/transport/attach.hpp"
#include "ipc/transport/command_server.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::test {

/// A folder for sockets, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// The other end of the client library: real sockets, pages, tables and memfds, no pool and no
/// policy. What it answers is set by the test; what it saw can be asked for.
/// Owner: thread-safe; a thread of its own serves one client after the other.
class MiniDaemon {
 public:
  static constexpr Bytes kSlabBytes = 2 * kMiB;
  static constexpr Bytes kSlotBytes = 64 * kKiB;
  static constexpr std::uint32_t kGroups = 2;
  /// A claimed region gets its earlier number plus this.
  static constexpr std::uint64_t kTakenBack = 100;

  struct Script {
    std::uint8_t boot = 1;                ///< makes the boot id
    std::optional<Error> refuse_attach;   ///< answer to every Hello
    std::optional<Error> refuse_command;  ///< answer to every command
    bool is_older = false;                ///< it does not know what came later
    bool leave_commands = false;          ///< take no connection for them, as if it stood still
    std::uint32_t hang_ups = 0;           ///< how many Hellos are answered by a hang-up
    bool takes_back = false;              ///< every region that is claimed waits for its engine
    std::uint32_t answers = UINT32_MAX;   ///< how many it gives; more wait until this is raised
    std::uint32_t withhold_slabs = 0;     ///< how many slabs of each region are never sent
    std::array<std::uint8_t, 16> gpu{};   ///< UUID of the GPU it claims to lend; zeros: none
  };

  struct Seen {
    std::vector<wire::Hello> hellos;
    std::vector<std::uint64_t> sequences;
    std::vector<std::uint64_t> finished_regions;
    std::vector<std::uint64_t> claimed_regions;  ///< by the numbers of the daemon before
    std::vector<std::uint64_t> placed_regions;   ///< 0: a space was opened
    std::vector<wire::RequestGap> gaps;
    wire::LayersBody layers;               ///< the last question about layers
    std::vector<wire::PlaceEntry> placed;  ///< the answer to it: distance 2 for everyone
    std::vector<wire::SpaceNeed> needs;
    std::vector<std::uint64_t> submitted;
    std::vector<std::uint64_t> ended;
    std::vector<wire::StepReport> reports;
    std::vector<wire::StepBody> steps;
    std::vector<wire::BlockName> names;
    std::vector<std::array<std::uint8_t, 32>> fingerprints;  ///< of the commands that brought them
    std::uint64_t slabs_acknowledged = 0;
    std::uint64_t slabs_unmapped = 0;
    std::uint64_t goodbyes = 0;
  };

  MiniDaemon(const TemporaryFolder& folder, Script script);
  /// Dies as by SIGKILL: the sockets close, and nobody is told.
  ~MiniDaemon();
  MiniDaemon(const MiniDaemon&) = delete;
  MiniDaemon& operator=(const MiniDaemon&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] Seen seen() const;
  /// Waits until it holds; false when it did not in time.
  [[nodiscard]] bool wait_until(const std::function<bool(const Seen&)>& condition);

  void change(const std::function<void(Script&)>& edit);
  /// The page of the session; its fences are the test's to move.
  [[nodiscard]] std::shared_ptr<shm::ServedClientPage> page() const;
  /// Whether the session's bell was rung since this was last asked.
  [[nodiscard]] bool rung();
  /// How often the client has rung since the last call.
  [[nodiscard]] std::uint64_t take_rings();
  /// Gives the session a slab for blocks and returns this side's mapping of it.
  [[nodiscard]] shm::SharedMapping send_slab(std::uint32_t slab);
  /// A slab that the test makes, of kSlabBytes.
  void send_slab(std::uint32_t slab, const UniqueFd& memory);
  /// A slab whose descriptor is shorter than what the frame says, so that it cannot be mapped.
  void send_short_slab(std::uint32_t slab);
  void ask_unmap(std::uint32_t slab);
  /// This side's mapping of a slab of a region granted before.
  [[nodiscard]] std::span<std::byte> region_slab(std::uint64_t region, std::uint32_t position);
  /// What the next step answers: one entry, whose row has these slots in the order [group][block].
  void run_next(const wire::RunEntry& entry, std::vector<SlotId> slots);

 private:
  struct Session {
    transport::AttachConnection connection;
    std::shared_ptr<shm::ServedClientPage> page;
    shm::TableWriter table;
    UniqueFd bell;
    std::uint64_t iteration = 0;
  };

  void serve();
  void on_connection(transport::AttachConnection connection);
  wire::Welcome welcome_for(const wire::Hello& hello, const Session& session) const;
  void take_frames();
  void take_commands();
  void reply_to(transport::PeerId peer, const wire::Command& command);
  void send_replies();
  wire::ReplyBody body_of(const wire::Command& command);
  wire::ReplyBody grant_region(const wire::AllocateBody& body);
  wire::ReplyBody step(const wire::StepCommand& command);
  void end(const wire::TargetBody& target);
  shm::SharedMapping send(wire::MapSlab frame);

  std::string endpoint_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  Script script_;
  Seen seen_;
  std::optional<Session> session_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, shm::SharedMapping> regions_;
  std::uint64_t last_region_ = 0;
  std::deque<std::pair<transport::PeerId, wire::FrameBuffer>> replies_;
  std::optional<wire::RunEntry> next_;
  std::vector<SlotId> next_slots_;
  std::vector<wire::RunEntry> run_;  ///< what the reply being sent views
  std::unique_ptr<transport::AttachListener> listener_;
  std::unique_ptr<transport::CommandServer> commands_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace kvd::test
