#include "tests/support/daemon_process.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

std::string request_text(const std::string& method, const std::string& headers,
                         const std::string& body) {
  return method + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

HttpAnswer exchange(std::uint16_t port, const std::string& method, const std::string& headers,
                    const std::string& body) {
  const std::string answer = admin::http_exchange(port, request_text(method, headers, body));
  HttpAnswer out;
  if (!answer.starts_with("HTTP/1.1 ")) return out;
  out.status = std::atoi(answer.c_str() + 9);
  const std::size_t at = answer.find("\r\n\r\n");
  if (at != std::string::npos) out.body = answer.substr(at + 4);
  return out;
}

std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

// KVDTEST_BIN_DIR in the environment says where the programs were moved to.
std::string built_program(const std::string& name) {
  const char* moved = std::getenv("KVDTEST_BIN_DIR");
  return std::string(moved != nullptr ? moved : KVD_BIN_DIR) + "/" + name;
}

pid_t child_of(pid_t parent) {
  const std::string number = std::to_string(parent);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

std::string toml_of(const RuntimeFolder& folder, const KvdSettings& settings,
                    std::uint16_t admin_port, std::uint16_t metrics_port) {
  std::ostringstream out;
  out << "backend = \"" << settings.backend << "\"\n"
      << "[paths]\nruntime_dir = \"" << folder.path() << "\"\n"
      << "[pool]\nhbm = \"" << settings.hbm << "\"\ndram = \"" << settings.dram << "\"\nslab = \""
      << settings.slab << "\"\nreserve = \"0\"\n"
      << "[link]\nbandwidth = \"" << settings.bandwidth << "\"\n"
      << "[admin]\nport = " << admin_port << "\n[metrics]\nport = " << metrics_port << "\n"
      << settings.extra;
  return out.str();
}

KvdProcess::KvdProcess(const RuntimeFolder& folder, const KvdSettings& settings)
    : endpoint_(folder.file("attach.sock")),
      token_file_(folder.file("admin.token")),
      config_file_(folder.file("kvd.toml")),
      admin_port_(free_port()),
      metrics_port_(free_port()) {
  while (metrics_port_ == admin_port_) metrics_port_ = free_port();
  std::ofstream(config_file_) << toml_of(folder, settings, admin_port_, metrics_port_);
  ChildCommand command{settings.under, settings.environment};
  for (const std::string& word : {built_program("kvd"), std::string("--config"), config_file_}) {
    command.arguments.push_back(word);
  }
  process_.emplace(command);
}

bool KvdProcess::wait_ready() const {
  return poll_until([&] { return get("/readyz").status == 200; });
}

HttpAnswer http_get(std::uint16_t port, const std::string& path) {
  return exchange(port, "GET " + path, "", "");
}

HttpAnswer KvdProcess::get(const std::string& path) const { return http_get(admin_port_, path); }

std::string KvdProcess::authorization() const {
  std::string token = text_of(token_file_);
  while (!token.empty() && token.back() == '\n') token.pop_back();
  return "Authorization: Bearer " + token + "\r\n";
}

std::string KvdProcess::patch_text(const std::string& path, const std::string& json) const {
  return request_text("PATCH " + path,
                      "Content-Type: application/merge-patch+json\r\n" + authorization(), json);
}

HttpAnswer KvdProcess::patch(const std::string& path, const std::string& json) const {
  return exchange(admin_port_, "PATCH " + path,
                  "Content-Type: application/merge-patch+json\r\n" + authorization(), json);
}

HttpAnswer KvdProcess::clear_cache() const {
  return exchange(admin_port_, "DELETE /v1/cache", authorization(), "");
}

std::string KvdProcess::metrics() const {
  return exchange(metrics_port_, "GET /metrics", "", "").body;
}

std::optional<double> KvdProcess::metric(const std::string& series) const {
  std::istringstream lines(metrics());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::atof(line.c_str() + series.size() + 1);
  }
  return std::nullopt;
}

KvdRun run_kvd(const std::vector<std::string>& arguments,
               const std::vector<std::string>& environment) {
  ChildCommand command{{built_program("kvd")}, environment};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  ChildProcess process(command);
  KvdRun run;
  run.status = process.wait();
  run.output = process.errors();
  return run;
}

}  // namespace kvd::test
