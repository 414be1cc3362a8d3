#include "kvd/admin/admin_service.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <utility>

#include "kvd/admin/advice/advice.hpp"
#include "kvd/admin/advice/load.hpp"
#include "kvd/admin/console/description.hpp"
#include "kvd/admin/json.hpp"
#include "kvd/admin/link/drain.hpp"
#include "kvd/admin/link/tuning_change.hpp"
#include "kvd/admin/snapshots.hpp"

namespace kvd::admin {
namespace {

HttpResponse ok(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse refused(int status, const Refusal& refusal) {
  HttpResponse response;
  response.status = status;
  response.body = refusal_document(refusal);
  return response;
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kPermissionDenied:
      return 403;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kInfeasible:
      return 409;
    case ErrorCode::kUnavailable:
    case ErrorCode::kWouldBlock:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

HttpResponse failed(const Error& error) {
  return refused(status_of(error.code), {error.code, "", error.message});
}

std::string etag_of(std::uint64_t tag) {
  char text[24];
  std::snprintf(text, sizeof text, "\"%016llx\"", static_cast<unsigned long long>(tag));
  return text;
}

/// The tags of an If-Match header (RFC 9110 section 13.1.1); none: every version may be changed.
std::optional<std::vector<std::uint64_t>> tags_of(std::string_view if_match) {
  if (if_match.empty() || if_match == "*") return std::nullopt;
  std::vector<std::uint64_t> tags;
  while (tags.size() < link::kMostTags) {
    const auto quote = if_match.find('"');
    if (quote == std::string_view::npos) break;
    if_match.remove_prefix(quote + 1);
    std::uint64_t tag = 0;
    const char* end = if_match.data() + if_match.size();
    const auto [stop, fault] = std::from_chars(if_match.data(), end, tag, 16);
    if (fault == std::errc() && stop != end && *stop == '"') tags.push_back(tag);
    if_match.remove_prefix(std::min(if_match.find('"'), if_match.size() - 1) + 1);
  }
  return tags;
}

/// "" where there is none.
std::string_view bearer_of(const HttpRequest& request) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view sent = request.authorization;
  return sent.starts_with(kScheme) ? sent.substr(kScheme.size()) : std::string_view();
}

/// Whether everybody may read what the snapshot shows.
bool is_open(const Snapshot& snapshot) {
  const auto& engines = snapshot.status.engines;
  return snapshot.read == ReadPolicy::kOpen ||
         (snapshot.read == ReadPolicy::kAuto &&
          std::all_of(engines.begin(), engines.end(),
                      [&](const auto& engine) { return engine.uid == snapshot.uid; }));
}

HttpResponse tunable(link::Part part, const core::Tuning& tuning) {
  HttpResponse response =
      ok(part == link::Part::kPolicy ? policy_document(tuning) : slo_document(tuning));
  response.etag = etag_of(link::tag_of(tuning, part));
  return response;
}

HttpResponse changeable(link::Part part, const Snapshot& snapshot) {
  if (part == link::Part::kDrain) {
    HttpResponse response = ok(drain_document(snapshot.status, snapshot.now));
    response.etag = etag_of(link::tag_of_drain(snapshot.status));
    return response;
  }
  if (part != link::Part::kQuotas) return tunable(part, snapshot.status.tuning);
  HttpResponse response = ok(quotas_document(snapshot.quotas));
  response.etag = etag_of(link::tag_of(snapshot.quotas));
  return response;
}

}  // namespace

namespace {

/// As /openapi.json, made once.
const std::string& description() {
  static const std::string kText = description_of(resource_at("/openapi.json")->body);
  return kText;
}

}  // namespace

struct AdminService::Route {
  std::string_view path;
  std::string (*document)(const Snapshot&) = nullptr;
  std::optional<link::Part> part = std::nullopt;  ///< takes PATCH
  bool clears = false;                            ///< takes DELETE

  [[nodiscard]] std::string_view allow() const {
    if (part) return "GET, PATCH";
    return clears ? "GET, DELETE" : "GET";
  }
};

std::span<const AdminService::Route> AdminService::routes() {
  using S = const Snapshot&;
  // openapi.json says what they are for.
  static constexpr Route kRoutes[] = {
      // The first two are for probes: open to all, and they ask for no snapshot.
      {"/healthz"},
      {"/readyz"},
      {"/v1/status", [](S s) { return status_document(s.status, s.info); }},
      {"/v1/config", [](S s) { return config_document(s.config); }},
      {"/v1/config/origins", [](S s) { return origins_document(s.origins); }},
      {"/v1/pools", [](S s) { return pools_document(s.status, s.info); }},
      {"/v1/engines", [](S s) { return engines_document(s.status); }},
      {"/v1/requests", [](S s) { return requests_document(s.status); }},
      {"/v1/cache", [](S s) { return cache_document(s.status); }, std::nullopt, true},
      {"/v1/remote", [](S s) { return remote_document(s.status); }},
      {"/v1/advice", [](S s) { return advice_document(s.status); }},
      {"/v1/load", [](S s) { return load_document(s.status); }},
      {"/v1/plan", [](S s) { return plan_document(s.status); }},
      {"/v1/snapshots/rotate",
       [](S s) { return snapshot_document(s.status, "rotate").value_or(""); }},
      {"/v1/snapshots/place",
       [](S s) { return snapshot_document(s.status, "place").value_or(""); }},
      {"/v1/snapshots/admit",
       [](S s) { return snapshot_document(s.status, "admit").value_or(""); }},
      {"/v1/events", [](S s) { return events_document(s.happenings, s.now); }},
      {"/v1/overview", [](S s) { return overview_document(s); }},
      {"/v1/history", [](S s) { return history_document(s); }},
      {"/v1/policy", nullptr, link::Part::kPolicy},
      {"/v1/slo", nullptr, link::Part::kSlo},
      {"/v1/quotas", nullptr, link::Part::kQuotas},
      {"/v1/drain", nullptr, link::Part::kDrain},
  };
  return kRoutes;
}

bool AdminService::wants_stream(const HttpRequest& request) {
  return request.method == "GET" && request.path == "/v1/overview" &&
         request.accept.find(kEventStream) != std::string::npos;
}

HttpResponse AdminService::answer(const Resource& resource, const HttpRequest& request) {
  if (request.method != "GET") {
    HttpResponse response =
        refusal(405, ErrorCode::kUnsupported, std::string(resource.path) + " takes GET only");
    response.allow = "GET";
    return response;
  }
  const bool described = resource.path == "/openapi.json";
  HttpResponse response = ok(described ? description() : std::string(resource.body));
  response.type = resource.type;
  return response;
}

HttpResponse AdminService::refusal(int status, ErrorCode code, std::string message) {
  return refused(status, {code, "", std::move(message)});
}

HttpResponse AdminService::handle(const HttpRequest& request) {
  if (const Resource* resource = resource_at(request.path)) return answer(*resource, request);
  const auto all = routes();
  const auto route =
      std::find_if(all.begin(), all.end(), [&](const Route& r) { return r.path == request.path; });
  return route == all.end() ? unknown_path(request.path) : dispatch(*route, request);
}

HttpResponse AdminService::unknown_path(const std::string& path) {
  std::string message = "no such path; there are";
  for (const Route& route : routes()) message += " " + std::string(route.path);
  message += " /openapi.json, which describes them";
  return refused(404, {ErrorCode::kNotFound, path, std::move(message)});
}

HttpResponse AdminService::dispatch(const Route& route, const HttpRequest& request) {
  if (route.part && request.method == "PATCH") return change(route, request);
  if (route.clears && request.method == "DELETE") return clear(route, request);
  if (request.method != "GET") {
    const std::string allow(route.allow());
    HttpResponse response = refusal(405, ErrorCode::kUnsupported,
                                    std::string(route.path) + " takes " + allow + " only");
    response.allow = allow;
    return response;
  }
  if (route.path == "/healthz") return ok("{\"status\":\"ok\"}\n");
  return route.path == "/readyz" ? readiness() : read(route, request);
}

HttpResponse AdminService::readiness() {
  const auto standing = backend_.standing("");
  const std::string why(standing.ok() ? link::text_of(standing->not_ready)
                                      : std::string_view(standing.error().message));
  if (why.empty()) return ok("{\"status\":\"ready\"}\n");
  return refusal(503, ErrorCode::kUnavailable, "not ready: " + why);
}

std::optional<HttpResponse> AdminService::check_token(const HttpRequest& request) {
  const std::string_view token = bearer_of(request);
  if (!token.empty()) {
    const auto standing = backend_.standing(token);
    if (!standing.ok()) return failed(standing.error());
    if (standing->bears_token != 0) return std::nullopt;
  }
  HttpResponse response =
      refusal(401, ErrorCode::kPermissionDenied,
              "send the header \"Authorization: Bearer TOKEN\" with the text of admin.token "
              "(kvdctl: --token-file)");
  response.challenge = true;
  return response;
}

bool AdminService::bears_token(const HttpRequest& request) {
  return !bearer_of(request).empty() && !check_token(request);
}

HttpResponse AdminService::read(const Route& route, const HttpRequest& request) {
  const auto snapshot = backend_.snapshot();
  if (!snapshot.ok()) return failed(snapshot.error());
  if (!is_open(**snapshot)) {
    if (auto refused = check_token(request)) return *std::move(refused);
  }
  if (route.part) return changeable(*route.part, **snapshot);
  return ok(route.document(**snapshot));
}

HttpResponse AdminService::change(const Route& route, const HttpRequest& request) {
  if (auto refused = check_token(request)) return *std::move(refused);
  auto patch = read_patch(*route.part, request.body);
  if (const auto* wrong = std::get_if<Refusal>(&patch)) {
    return refused(status_of(wrong->code), *wrong);
  }
  const auto& assignments = std::get<std::vector<link::Assignment>>(patch);
  const auto tuning =
      backend_.change(bearer_of(request), {*route.part, tags_of(request.if_match), assignments});
  if (tuning.ok()) {
    const bool tuned = *route.part == link::Part::kPolicy || *route.part == link::Part::kSlo;
    return tuned ? tunable(*route.part, *tuning) : read(route, request);
  }
  const ErrorCode code = tuning.error().code;
  if (code == ErrorCode::kStaleSession) {
    return refusal(412, ErrorCode::kInvalidArgument, tuning.error().message);
  }
  const Refusal refusal = refusal_of(tuning.error());
  return refused(contradicts(refusal) ? 409 : status_of(code), refusal);
}

HttpResponse AdminService::clear(const Route& route, const HttpRequest& request) {
  if (auto refused = check_token(request)) return *std::move(refused);
  const Status cleared = backend_.clear_cache(bearer_of(request));
  return cleared.ok() ? read(route, request) : failed(cleared.error());
}

}  // namespace kvd::admin
