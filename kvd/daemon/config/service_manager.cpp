#include "kvd/daemon/config/service_manager.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>

#include "kvd/daemon/base/descriptor_store.hpp"
#include "kvd/daemon/config/needs.hpp"

namespace kvd::daemon {
namespace {

/// Folders that the unit gives kvd, with what is below them (RuntimeDirectory, CacheDirectory).
constexpr std::string_view kOwnFolders[] = {"/run/kvd", "/var/cache/kvd"};

bool is_own(const std::string& folder) {
  return std::any_of(std::begin(kOwnFolders), std::end(kOwnFolders), [&](std::string_view own) {
    return folder == own || folder.starts_with(std::string(own) + "/");
  });
}

/// The other folders that kvd writes to. Under the unit everything else is read-only.
std::set<std::string> other_folders(const Config& config) {
  std::set<std::string> folders{config.disk.path, config.runtime_dir};
  for (const auto* file : {&config.attach_socket, &config.command_socket, &config.token_file})
    folders.insert(std::filesystem::path(*file).parent_path());
  std::erase_if(folders, [](const auto& folder) { return folder.empty() || is_own(folder); });
  return folders;
}

/// One word of a unit file. Source: systemd.syntax(7), systemd.unit(5) "Specifiers".
std::string unit_word(const std::string& text) {
  std::string word = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') word += '\\';
    word += c;
    if (c == '%') word += c;
  }
  return word + '"';
}

}  // namespace

// A manager that does not listen is no reason not to serve engines.
void notify_service_manager(std::string_view state) {
  (void)tell_service_manager(state, std::nullopt, false);
}

std::string unit_text(const Config& config) {
  std::string text =
      "# Made by `kvd --print-unit`; again when pools, folders, remote servers or drain.to_remote "
      "change. Its place:\n"
      "# /etc/systemd/system/kvd.service.d/kvd.conf\n"
      "[Unit]\n"
      "# kvd that was killed, or waits for memory (status 75), is started again without end.\n"
      "StartLimitIntervalSec=0\n"
      "[Service]\n"
      "MemoryMax=" +
      std::to_string(memory_at_most(config).value) + "\n";
  if (!config.remote.servers.empty())
    text +=
        "# kvd asks remote.servers; else it speaks to nobody beyond this "
        "machine.\nIPAddressAllow=any\n";
  if (config.remote.drain > Nanoseconds(0)) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(config.remote.drain);
    text += "TimeoutStopSec=" + std::to_string(seconds.count() + 15) + "s\n";
  }
  const auto folders = other_folders(config);
  if (!folders.empty())
    text += "# They have to be there, and kvd's: install -d -o kvd -g kvd FOLDER\n";
  for (const auto& folder : folders) text += "ReadWritePaths=" + unit_word(folder) + "\n";
  return text;
}

}  // namespace kvd::daemon
