#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ipc/vocabulary/bounded_input.hpp"
#include "ipc/vocabulary/command_line.hpp"
#include "ipc/vocabulary/standard_streams.hpp"
#include "kvd/ctl/assignments.hpp"
#include "kvd/ctl/choice.hpp"
#include "kvd/ctl/doctor/diagnosis.hpp"
#include "kvd/ctl/doctor/load.hpp"
#include "kvd/ctl/doctor/nodes.hpp"
#include "kvd/ctl/doctor/tiers.hpp"
#include "kvd/ctl/drain.hpp"
#include "kvd/ctl/follow.hpp"
#include "kvd/ctl/rest_client.hpp"
#include "kvd/ctl/settings.hpp"
#include "kvd/ctl/settings_file.hpp"
#include "kvd/ctl/snapshots.hpp"
#include "kvd/ctl/top/screen.hpp"
#include "kvd/ctl/top/terminal.hpp"
#include "kvd/ctl/views.hpp"

namespace kvd::ctl {
namespace {

enum ExitCode : int { kDone = 0, kRefused = 1, kUsage = 2, kUnreachable = 3 };

constexpr const char* kFooter =
    "\nKVD_ADMIN_URL and KVD_ADMIN_TOKEN_FILE stand for --url and --token-file.\n"
    "Exit codes: 0 done, 1 refused by the daemon, or a file cannot be written, 2 wrong usage,\n"
    "3 no daemon reached;\n"
    "doctor: 0 nothing is wrong (warnings aside), 1 something is;\n"
    "drain --wait: 0 nothing is left, 1 the deadline is past and something is, or blocks are "
    "lost.\n"
    "Examples:\n"
    "  kvdctl status\n"
    "  kvdctl engines --json\n"
    "  kvdctl requests --snapshot rotate | kvd-plan rotate --batch\n"
    "  kvdctl policy set rotation.policy=fcfs rotation.alpha=2\n"
    "  kvdctl slo set default.tbt=50ms\n"
    "  kvdctl quota set default.hbm.maximum_bytes=1GiB          (null: no maximum)\n"
    "  kvdctl config                          (who set what; --save FILE: keep what was changed "
    "live)\n"
    "  kvdctl cache clear\n"
    "  kvdctl drain 3 --deadline 60 --wait    (engine 3 out of service; kvdctl engines)\n"
    "  kvdctl drain node                      (all engines, and who would attach)\n"
    "  kvdctl drain node --to-remote --wait   (what it has cached goes to the remote servers)\n"
    "  kvdctl drain node --cancel             (back into service)\n"
    "  kvdctl top                             (live, in the whole terminal)\n"
    "  kvdctl events --follow\n"
    "  kvdctl events --since 5m --level warning\n"
    "  kvdctl advise                          (does KV outside of HBM pay here?)\n"
    "  kvdctl doctor                          (what is wrong here, and what to do)\n"
    "  kvdctl doctor --load                   (who waits because of whom, and what to turn)\n"
    "  kvdctl slo set batch=null              (removes the class)\n";

struct ViewCommand {
  View view;
  const char* path;
  const char* help;
  const char* patch_root;  ///< null: cannot be set
};

const std::map<std::string, ViewCommand> kCommands = {
    {"status", {View::kStatus, "/v1/status", "The daemon at a glance", nullptr}},
    {"pools", {View::kPools, "/v1/pools", "Memory by tier", nullptr}},
    {"engines", {View::kEngines, "/v1/engines", "Attached engines", nullptr}},
    {"requests", {View::kRequests, "/v1/requests", "Live requests", nullptr}},
    {"cache", {View::kCache, "/v1/cache", "The prefix cache; `clear` empties it", nullptr}},
    {"remote", {View::kRemote, "/v1/remote", "Servers that nodes share blocks by", nullptr}},
    {"advise",
     {View::kAdvice, "/v1/advice", "Whether KV outside of HBM pays on this machine and load",
      nullptr}},
    {"plan", {View::kPlan, "/v1/plan", "Which layers stream, by the plan in force", nullptr}},
    {"events", {View::kEvents, "/v1/events", "What happened last", nullptr}},
    {"policy", {View::kPolicy, "/v1/policy", "Policies and their weights; `set` changes them", ""}},
    {"slo", {View::kSlo, "/v1/slo", "Latency goals by class; `set` changes them", "classes"}},
    {"quota",
     {View::kQuota, "/v1/quotas", "What each domain may have; `set` changes it, in bytes",
      "domains"}},
};

struct Arguments {
  std::string command;
  bool json = false;
  bool set = false;
  bool clear = false;
  bool follow = false;
  bool once = false;
  bool print_lines = false;  ///< config's
  std::string save_to;       ///< config's; empty: no file
  double interval_s = 1;
  std::string snapshot;  ///< of which decision; empty: none
  Choice choice;
  std::vector<std::string> assignments;
  std::string token_file;
  std::string runtime_dir;  ///< doctor's
  std::string beside;       ///< the same: what another node has open
  bool load = false;        ///< the same
  DrainCall drain;
  RestRequest request;
};

int fail(int code, const std::string& message) {
  std::fprintf(stderr, "kvdctl: %s\n", message.c_str());
  return code;
}

void add_command(CLI::App& app, const std::string& name, const ViewCommand& command,
                 Arguments& arguments) {
  CLI::App* sub = app.add_subcommand(name, command.help);
  sub->fallthrough();
  sub->callback([&arguments, name] { arguments.command = name; });
  if (command.view == View::kEngines) {
    sub->add_option("engine", arguments.choice.engine, "The number of one of them")
        ->type_name("NUMBER");
  }
  if (command.view == View::kRequests || command.view == View::kEvents) {
    sub->add_option("--engine", arguments.choice.engine, "Of this engine alone (kvdctl engines)")
        ->type_name("NUMBER");
  }
  if (command.view == View::kRequests) {
    sub->add_option("--snapshot", arguments.snapshot,
                    "Print what a policy is asked now, as kvd-plan reads it: one line a domain\n"
                    "(rotate) or an engine (place, admit)")
        ->check(CLI::IsMember({"rotate", "place", "admit"}))
        ->excludes("--engine");
  }
  if (command.view == View::kEvents) {
    sub->add_flag("-f,--follow", arguments.follow,
                  "Go on and print what happens, until interrupted");
    sub->add_option("--since", arguments.choice.since_s, "None that is older, as 90s, 5m or 2h")
        ->transform(CLI::AsNumberWithUnit(
            std::map<std::string, double>{{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}))
        ->check(within(0.0, 31'536'000.0))
        ->type_name("TIME");
    sub->add_option("--level", arguments.choice.level, "None below it")
        ->check(CLI::IsMember({"info", "warning", "error"}));
  }
  if (command.view == View::kCache) {
    CLI::App* clear =
        sub->add_subcommand("clear", "Empty it of what no request runs on; prints what is left");
    clear->fallthrough();
    clear->callback([&arguments] { arguments.clear = true; });
  }
  if (command.patch_root == nullptr) return;
  CLI::App* set = sub->add_subcommand("set", "Change it: KEY=VALUE …; prints the new document");
  set->fallthrough();
  set->add_option("assignments", arguments.assignments, "KEY=VALUE, keys as shown, e.g. a.b=3")
      ->required();
  set->callback([&arguments] { arguments.set = true; });
}

constexpr const char* kConfig = "config";
constexpr const char* kDoctor = "doctor";
constexpr const char* kDrain = "drain";
constexpr const char* kTop = "top";

void add_config(CLI::App& app, Arguments& arguments) {
  CLI::App* sub = app.add_subcommand(kConfig, "The configuration in force, and who set each key");
  sub->fallthrough();
  sub->callback([&arguments] { arguments.command = kConfig; });
  sub->add_flag("--print", arguments.print_lines,
                "Print what was changed live, as lines for the configuration's file");
  sub->add_option("--save", arguments.save_to,
                  "Write what was changed live into this file, kvd's kvd.toml")
      ->type_name("FILE");
}

void add_drain(CLI::App& app, Arguments& arguments) {
  CLI::App* sub = app.add_subcommand(
      kDrain,
      "Takes an engine, or the whole node, out of service: nothing new, what waits is refused,\n"
      "what runs goes on to its end; without a name it shows who is out, and what is left");
  sub->fallthrough();
  sub->callback([&arguments] { arguments.command = kDrain; });
  sub->add_option("who", arguments.drain.who, "The number of an engine, or \"node\"");
  sub->add_option("--deadline", arguments.drain.deadline_s,
                  "Seconds after which what is left ends, too")
      ->check(within(0.0, 31'536'000.0));
  sub->add_flag("--cancel", arguments.drain.cancel, "Put it back into service");
  sub->add_flag("--to-remote", arguments.drain.to_remote,
                "Of the node: write what is cached to the remote servers, for other nodes");
  sub->add_flag("--wait", arguments.drain.wait,
                "Print how far it is until nothing is left, or 10 s after the deadline");
}

void add_top(CLI::App& app, Arguments& arguments) {
  CLI::App* sub = app.add_subcommand(
      kTop,
      "Live in the whole terminal: memory, rates, engines or requests; its last line has the keys");
  sub->fallthrough();
  sub->callback([&arguments] { arguments.command = kTop; });
  sub->add_flag("--once", arguments.once,
                "Print it once, after one interval, and exit; with --json the daemon's document");
  sub->add_option("--interval", arguments.interval_s, "Seconds from one look to the next")
      ->check(within(0.1, 3600.0))
      ->capture_default_str();
}

/// $XDG_RUNTIME_DIR; empty where it is no absolute path, which its specification has ignored.
std::string own_runtime() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && *runtime == '/' ? runtime : "";
}

/// The folder where engines of this user find a kvd.
std::string usual_runtime_dir() {
  const std::string own = own_runtime() + "/kvd";
  std::error_code none;
  return !own_runtime().empty() && std::filesystem::exists(own, none) ? own : "/run/kvd";
}

void add_doctor(CLI::App& app, Arguments& arguments) {
  CLI::App* sub = app.add_subcommand(
      kDoctor, "Looks for what keeps kvd or its engines from working; prints the remedies");
  sub->fallthrough();
  sub->callback([&arguments] { arguments.command = kDoctor; });
  sub->add_option("--runtime-dir", arguments.runtime_dir,
                  "paths.runtime_dir of kvd; without it $KVD_ENDPOINT, else where the kvd that\n"
                  "answers listens, else kvd in $XDG_RUNTIME_DIR or /run");
  sub->add_option(
      "--beside", arguments.beside,
      "What `kvdctl cache --json` prints on another node, a file or -: whether the two\n"
      "find each other's blocks on remote servers, and why not");
  sub->add_flag("--load", arguments.load,
                "Instead: which engines' requests wait past their goals now, what for, who has\n"
                "the memory, and what to turn")
      ->excludes("--beside");
}

void describe(CLI::App& app, Arguments& arguments) {
  app.footer(kFooter);
  app.set_version_flag("-V,--version", "kvdctl " KVD_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  app.add_flag("--json", arguments.json,
               "Print JSON instead of a table, the daemon's or the doctor's");
  app.add_option("--url", arguments.request.url, "The daemon's admin interface")
      ->envname("KVD_ADMIN_URL")
      ->capture_default_str();
  app.add_option("--token-file", arguments.token_file,
                 "File with the admin token, which changes need and reading may; without it, "
                 "kvd/admin.token in\n"
                 "$XDG_RUNTIME_DIR or /run is tried")
      ->envname("KVD_ADMIN_TOKEN_FILE");
  for (const auto& [name, command] : kCommands) add_command(app, name, command, arguments);
  add_config(app, arguments);
  add_doctor(app, arguments);
  add_drain(app, arguments);
  add_top(app, arguments);
}

Result<std::string> read_token(const std::string& file) {
  std::string token;
  std::ifstream stream(file);
  const auto read = read_bounded_line(stream, token, file, kKiB);
  if (!read.ok() || !*read || token.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cannot read a token from \"" + file + "\"; it is readable by kvd's user");
  }
  return token;
}

bool is_of_this_machine(std::string_view url) {
  if (url.find('@') != std::string_view::npos) return false;  // what stands before it is no host
  url.remove_prefix(std::min(url.size(), std::string_view("http://").size()));
  const std::size_t bracket = url.starts_with('[') ? url.find(']') : 0;
  const std::string_view host = url.substr(0, url.find_first_of(":/", bracket));
  url.remove_prefix(host.size());
  const std::string_view port = url.substr(0, url.find('/'));
  const auto all_of = [](std::string_view text, const char* allowed) {
    return text.find_first_not_of(allowed) == std::string_view::npos;
  };
  return (port.empty() || all_of(port.substr(1), "0123456789")) &&
         (host == "localhost" || host == "[::1]" ||
          (host.starts_with("127.") && all_of(host, "0123456789.")));
}

/// The file in which a daemon of this machine keeps its token, if this user may read it. The token
/// is offered only to an address of this machine.
std::string usual_token_file(const std::string& url) {
  if (!is_of_this_machine(url)) return "";
  for (const std::string& folder : {own_runtime(), std::string("/run")}) {
    std::string file = folder + "/kvd/admin.token";
    if (!folder.empty() && read_token(file).ok()) return file;
  }
  return "";
}

Status complete_token(Arguments& arguments) {
  // Reading needs it, too, where engines of several users are attached (admin.read).
  if (arguments.token_file.empty()) {
    arguments.token_file = usual_token_file(arguments.request.url);
  }
  if (!arguments.token_file.empty()) {
    KVD_ASSIGN_OR_RETURN(arguments.request.token, read_token(arguments.token_file));
  }
  return {};
}

/// Fills in what the command line implies.
Status complete(Arguments& arguments) {
  const ViewCommand& command = kCommands.at(arguments.command);
  arguments.request.path =
      arguments.snapshot.empty() ? command.path : "/v1/snapshots/" + arguments.snapshot;
  KVD_TRY(complete_token(arguments));
  if (arguments.clear) arguments.request.method = "DELETE";
  if (arguments.set) {
    arguments.request.method = "PATCH";
    KVD_ASSIGN_OR_RETURN(arguments.request.body,
                         merge_patch(arguments.assignments, command.patch_root));
  }
  return {};
}

int print(const Arguments& arguments, const std::string& document) {
  if (arguments.json) {
    std::fputs(document.c_str(), stdout);
    return kDone;
  }
  const auto text = arguments.snapshot.empty()
                        ? render(kCommands.at(arguments.command).view, document)
                        : snapshot_lines(document);
  if (!text.ok()) return fail(kRefused, text.error().message);
  std::fputs(text->c_str(), stdout);
  return kDone;
}

doctor::AdminFacts ask_admin(RestRequest request) {
  doctor::AdminFacts facts{request.url, "", 0, KVD_VERSION};
  request.path = "/v1/status";
  const auto answer = ask(request);
  if (!answer.ok()) return facts;
  facts.status = answer->status;
  if (answer->status != 200) return facts;
  facts.version = text_in(answer->body, "version");
  facts.attach = text_in(answer->body, "endpoints/attach");
  facts.live = text_in(answer->body, "live_settings");
  facts.command = text_in(answer->body, "endpoints/command");
  request.path = "/v1/engines";
  const auto engines = ask(request);
  if (engines.ok()) facts.unseen = unseen_in(engines->body);
  return facts;
}

std::vector<doctor::Finding> ask_tiers(RestRequest request) {
  request.path = "/v1/cache";
  const auto cache = ask(request);
  request.path = "/v1/remote";
  const auto remote = ask(request);
  if (!cache.ok() || !remote.ok()) return {};
  return doctor::findings_of_tiers(cache->body, remote->body);
}

/// Where engines of this user would look for a kvd, else where the running one says it is.
doctor::Places places_of(const Arguments& arguments, const doctor::AdminFacts& admin) {
  const char* endpoint = std::getenv("KVD_ENDPOINT");
  doctor::Places places;
  if (!arguments.runtime_dir.empty()) {
    places.attach = arguments.runtime_dir + "/attach.sock";
  } else if (endpoint != nullptr && *endpoint != '\0') {
    places.attach = endpoint;
  } else {
    places.attach = admin.attach.empty() ? usual_runtime_dir() + "/attach.sock" : admin.attach;
  }
  places.command = admin.command;
  if (places.attach != admin.attach) {
    places.command = std::filesystem::path(places.attach).parent_path() / "command.sock";
  }
  return places;
}

Result<std::vector<doctor::Finding>> compare_with(const std::string& file, RestRequest request) {
  std::ifstream named(file);
  std::istream& there = file == "-" ? std::cin : named;
  if (!there) return make_error(ErrorCode::kNotFound, file + " cannot be read");
  const std::string text{std::istreambuf_iterator<char>(there), {}};
  request.path = "/v1/cache";
  KVD_ASSIGN_OR_RETURN(const RestAnswer here, ask(request));
  if (here.status != 200) {
    return make_error(ErrorCode::kPermissionDenied, refusal_text(here.body));
  }
  return doctor::compare_nodes(here.body, text);
}

/// The body of an answer that is no refusal.
Result<std::string> ask_for(const RestRequest& request) {
  KVD_ASSIGN_OR_RETURN(RestAnswer answer, ask(request));
  if (answer.status == 200) return std::move(answer.body);
  return make_error(ErrorCode::kPermissionDenied, refusal_text(answer.body));
}

int fail(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return fail(kUsage, error.message);
    case ErrorCode::kUnavailable:
      return fail(kUnreachable, error.message);
    default:
      return fail(kRefused, error.message);
  }
}

int print_findings(const Arguments& arguments, const std::vector<doctor::Finding>& findings) {
  std::fputs((arguments.json ? findings_json(findings) : findings_text(findings)).c_str(), stdout);
  return doctor::is_healthy(findings) ? kDone : kRefused;
}

Result<int> run_doctor_of_load(Arguments& arguments) {
  arguments.request.path = "/v1/load";
  KVD_ASSIGN_OR_RETURN(const std::string document, ask_for(arguments.request));
  KVD_ASSIGN_OR_RETURN(const auto findings, doctor::findings_of_load(document));
  return print_findings(arguments, findings);
}

Result<int> run_doctor(Arguments& arguments) {
  if (const Status status = complete_token(arguments); !status.ok()) {
    return fail(kUsage, status.error().message);
  }
  if (arguments.load) return run_doctor_of_load(arguments);
  const doctor::AdminFacts admin = ask_admin(arguments.request);
  doctor::Facts facts = doctor::look(places_of(arguments, admin));
  facts.admin = admin;
  auto findings = doctor::diagnose(facts);
  const auto tiers = ask_tiers(arguments.request);
  findings.insert(findings.end(), tiers.begin(), tiers.end());
  if (!arguments.beside.empty()) {
    const auto nodes = compare_with(arguments.beside, arguments.request);
    if (!nodes.ok()) return fail(kUsage, nodes.error().message);
    findings.insert(findings.end(), nodes->begin(), nodes->end());
  }
  return print_findings(arguments, findings);
}

void wait(double seconds) {
  const auto time = std::chrono::duration<double>(seconds);
  std::this_thread::sleep_for(std::chrono::duration_cast<std::chrono::nanoseconds>(time));
}

Result<int> print_once(const Arguments& arguments, top::Screen& screen) {
  for (int look = 0; look < (arguments.json ? 1 : 2); ++look) {
    if (look > 0) wait(arguments.interval_s);
    KVD_ASSIGN_OR_RETURN(const std::string overview, ask_for(arguments.request));
    if (arguments.json) {
      std::fputs(overview.c_str(), stdout);
    } else {
      KVD_TRY(screen.take(overview));
    }
  }
  constexpr std::size_t kWidth = 100;
  for (const std::string& line : screen.head(kWidth)) std::printf("%s\n", line.c_str());
  if (!arguments.json) std::printf("\n");
  for (const std::string& line : screen.rows()) std::printf("%s\n", line.c_str());
  return kDone;
}

Result<int> save_settings(const std::string& named, const std::string& config,
                          const std::string& origins) {
  constexpr Bytes kMost = kMiB;
  KVD_ASSIGN_OR_RETURN(const std::string file, linked_file(named));
  std::string old;
  std::error_code fault;
  if (std::filesystem::exists(file, fault) || fault) {
    KVD_ASSIGN_OR_RETURN(old, read_bounded(file, kMost));
  }
  KVD_ASSIGN_OR_RETURN(const std::string text, settings_saved(old, config, origins));
  if (text == old) {
    std::printf("nothing was changed live that %s lacks\n", file.c_str());
    return kDone;
  }
  KVD_TRY(replace_file(file, text));
  const auto lines = settings_lines(config, origins);
  std::printf("%s has now:\n%s", file.c_str(), lines.ok() ? lines->c_str() : "");
  return kDone;
}

Result<int> run_config(Arguments& arguments) {
  KVD_TRY(complete_token(arguments));
  arguments.request.path = "/v1/config";
  KVD_ASSIGN_OR_RETURN(const std::string config, ask_for(arguments.request));
  arguments.request.path = "/v1/config/origins";
  KVD_ASSIGN_OR_RETURN(const std::string origins, ask_for(arguments.request));
  if (!arguments.save_to.empty()) return save_settings(arguments.save_to, config, origins);
  const auto write = arguments.json          ? settings_json
                     : arguments.print_lines ? settings_lines
                                             : settings_table;
  KVD_ASSIGN_OR_RETURN(const std::string text, write(config, origins));
  std::fputs(text.c_str(), stdout);
  return kDone;
}

Result<int> run_top(Arguments& arguments) {
  KVD_TRY(complete_token(arguments));
  arguments.request.path = "/v1/overview";
  top::Screen screen;
  if (arguments.once || arguments.json) return print_once(arguments, screen);
  KVD_TRY(ask_for(arguments.request));  // a fault at the start is printed, not drawn
  const auto interval = std::chrono::duration<double>(arguments.interval_s);
  KVD_TRY(top::run(
      screen, [&] { return ask_for(arguments.request); },
      std::chrono::duration_cast<Nanoseconds>(interval)));
  return kDone;
}

/// Refuses an engine that neither the document nor the list of those attached tells of. Events have
/// kvd's own under 0.
Status check_engine(const Arguments& arguments, const std::string& document) {
  const auto engine = arguments.choice.engine;
  if (!engine || tells_of(document, *engine)) return {};
  if (*engine == 0 && arguments.command == "events") return {};
  RestRequest attached = arguments.request;
  attached.path = "/v1/engines";
  KVD_ASSIGN_OR_RETURN(const std::string engines, ask_for(attached));
  if (tells_of(engines, *engine)) return {};
  return make_error(ErrorCode::kNotFound, "no engine " + std::to_string(*engine) +
                                              " is attached; kvdctl engines lists those that are");
}

/// Runs until interrupted. A daemon that was there and restarts is waited for.
Result<int> run_follow(const Arguments& arguments) {
  EventFollower follower(arguments.json, arguments.choice);
  for (bool begun = false;; begun = true) {
    const auto document = ask_for(arguments.request);
    if (!document.ok()) {
      const bool away = document.error().code == ErrorCode::kUnavailable;
      if (!begun || !away) return document.error();
    } else {
      if (!begun) KVD_TRY(check_engine(arguments, *document));
      KVD_ASSIGN_OR_RETURN(const std::string lines, follower.take(*document));
      if (std::fputs(lines.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return kDone;
    }
    wait(1);
  }
}

/// Prints each document of /v1/drain that says something new, until nothing is left.
Result<int> follow_drain(const Arguments& arguments, std::string document) {
  constexpr int kPatience = 10;  // looks after the deadline: an iteration may be long
  std::string before;
  for (int late = 0;;) {
    KVD_ASSIGN_OR_RETURN(const auto now, drain_progress(arguments.drain.who, document));
    if (arguments.json || now.line != before) {
      std::fputs(arguments.json ? document.c_str() : now.line.c_str(), stdout);
      std::fflush(stdout);
      before = now.line;
    }
    if (!arguments.drain.wait) return kDone;
    if (now.drained && now.lost) return fail(kRefused, "some blocks are lost: see kvdctl remote");
    if (now.drained) return kDone;
    if (now.late && ++late > kPatience) return fail(kRefused, "something is left, see above");
    wait(1);
    KVD_ASSIGN_OR_RETURN(document, ask_for(arguments.request));
  }
}

Result<int> run_drain(Arguments& arguments) {
  DrainCall& call = arguments.drain;
  if (call.who.empty() && (call.cancel || call.deadline_s || call.to_remote)) {
    return fail(kUsage, "drain: name an engine, or the node");
  }
  KVD_TRY(complete_token(arguments));
  arguments.request.path = "/v1/drain";
  RestRequest change = arguments.request;
  if (!call.who.empty()) {
    change.method = "PATCH";
    KVD_ASSIGN_OR_RETURN(change.body, drain_patch(call));
  }
  KVD_ASSIGN_OR_RETURN(std::string document, ask_for(change));
  if (call.cancel) call.wait = false;
  return follow_drain(arguments, std::move(document));
}

Result<int> run(Arguments& arguments) {
  if (arguments.command == kConfig) return run_config(arguments);
  if (arguments.command == kDoctor) return run_doctor(arguments);
  if (arguments.command == kDrain) return run_drain(arguments);
  if (arguments.command == kTop) return run_top(arguments);
  if (const Status status = complete(arguments); !status.ok()) {
    return fail(kUsage, status.error().message);
  }
  if (arguments.follow) return run_follow(arguments);
  const auto answer = ask(arguments.request);
  if (!answer.ok()) {
    const bool usage = answer.error().code == ErrorCode::kInvalidArgument;
    return fail(usage ? kUsage : kUnreachable, answer.error().message);
  }
  if (answer->status == 200) {
    if (arguments.choice.is_all()) return print(arguments, answer->body);
    const Status known = check_engine(arguments, answer->body);
    if (!known.ok()) return fail(known.error());
    const auto document = chosen(answer->body, arguments.choice);
    return document.ok() ? print(arguments, *document) : fail(kRefused, document.error().message);
  }
  if (arguments.json) std::fputs(answer->body.c_str(), stdout);
  return fail(kRefused, refusal_text(answer->body));
}

}  // namespace
}  // namespace kvd::ctl

namespace {

int run(int argc, char** argv) {
  kvd::ctl::Arguments arguments;
  CLI::App app("Looks into a running kvd, and tunes it", "kvdctl");
  kvd::ctl::describe(app, arguments);
  if (const auto ended = kvd::parse_command_line(app, argc, argv)) return *ended;
  const auto status = kvd::ctl::run(arguments);
  return status.ok() ? *status : kvd::ctl::fail(status.error());
}

}  // namespace

int main(int argc, char** argv) {
  kvd::open_standard_descriptors();
  return kvd::status_after_output("kvdctl", run(argc, argv));
}
