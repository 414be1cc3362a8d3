#include "kvd/admin/admin_service.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "kvd/admin/json.hpp"
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

/// FNV-1a of the document: the same document has the same tag, whoever wrote it.
std::string etag_of(std::string_view document) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : document) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  char text[24];
  std::snprintf(text, sizeof text, "\"%016llx\"", static_cast<unsigned long long>(hash));
  return text;
}

/// Whether an If-Match header lets a change of the document pass (RFC 9110 section 13.1.1).
bool matches(std::string_view if_match, std::string_view etag) {
  return if_match.empty() || if_match == "*" || if_match.find(etag) != std::string_view::npos;
}

/// Time depends on the lengths only.
bool equal_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i] ^ other);
  }
  return difference == 0;
}

/// A name under which this machine's loopback is reached. A web page that re-binds its own name to
/// 127.0.0.1 sends that name, and is refused.
bool is_loopback_host(std::string_view host) {
  if (host.starts_with('[')) {
    return host == "[::1]" || host.starts_with("[::1]:");
  }
  host = host.substr(0, host.find(':'));
  constexpr auto is_octet_char = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  return host == "localhost" ||
         (host.starts_with("127.") && std::all_of(host.begin(), host.end(), is_octet_char));
}

}  // namespace

struct AdminService::Route {
  std::string_view path;
  std::string_view summary;
  HttpResponse (AdminService::*answer)(const HttpRequest&);
  bool probe = false;       ///< open to all even where reading needs the token
  bool changeable = false;  ///< takes PATCH
};

/// A part of the tuning that has a document of its own.
struct AdminService::Tunable {
  std::string (*document)(const core::Tuning&);
  std::optional<Refusal> (*patch)(std::string_view, core::Tuning&);
};

std::span<const AdminService::Route> AdminService::routes() {
  using S = AdminService;
  static constexpr Route kRoutes[] = {
      {"/healthz", "Whether the process answers", &S::health, true},
      {"/readyz", "Whether engines can attach", &S::readiness, true},
      {"/v1/status", "The daemon at a glance", &S::status},
      {"/v1/config", "The configuration in force", &S::config},
      {"/v1/pools", "Tiers and their slabs", &S::pools},
      {"/v1/engines", "Attached engines", &S::engines},
      {"/v1/requests", "Live requests", &S::requests},
      {"/v1/plan", "Which layers stream: the placement plan in force, by engine", &S::plan},
      {"/v1/snapshots/rotate", "What the rotation policy is asked, for kvd-plan", &S::snapshots},
      {"/v1/snapshots/place", "The same for placement", &S::snapshots},
      {"/v1/snapshots/admit", "The same for admission", &S::snapshots},
      {"/v1/events", "What happened last, numbered", &S::events},
      {"/v1/policy", "Policies and their weights; merge-patch to change", &S::policy, false, true},
      {"/v1/slo", "Latency goals by class; merge-patch to change", &S::slo, false, true},
      {"/openapi.json", "This description", &S::description},
  };
  return kRoutes;
}

HttpResponse AdminService::refusal(int status, ErrorCode code, std::string message) {
  return refused(status, {code, "", std::move(message)});
}

HttpResponse AdminService::handle(const HttpRequest& request) {
  if (!is_loopback_host(request.host)) {
    return refusal(403, ErrorCode::kPermissionDenied,
                   "the Host header must name the loopback (127.0.0.1, localhost or [::1]); a "
                   "proxy must set it");
  }
  const auto all = routes();
  const auto route =
      std::find_if(all.begin(), all.end(), [&](const Route& r) { return r.path == request.path; });
  return route == all.end() ? unknown_path(request.path) : dispatch(*route, request);
}

HttpResponse AdminService::unknown_path(const std::string& path) {
  std::string message = "no such path; there are";
  for (const Route& route : routes()) message += " " + std::string(route.path);
  return refused(404, {ErrorCode::kNotFound, path, std::move(message)});
}

HttpResponse AdminService::dispatch(const Route& route, const HttpRequest& request) {
  const bool changes = route.changeable && request.method == "PATCH";
  if (!changes && request.method != "GET") {
    const std::string allow = route.changeable ? "GET, PATCH" : "GET";
    HttpResponse response = refusal(405, ErrorCode::kUnsupported,
                                    std::string(route.path) + " takes " + allow + " only");
    response.allow = allow;
    return response;
  }
  const bool guarded = changes || (config_.read == ReadPolicy::kToken && !route.probe);
  if (guarded && !bears_token(request)) {
    HttpResponse response =
        refusal(401, ErrorCode::kPermissionDenied,
                "send the header \"Authorization: Bearer TOKEN\" with the text of admin.token "
                "(kvdctl: --token-file)");
    response.challenge = true;
    return response;
  }
  return (this->*route.answer)(request);
}

bool AdminService::bears_token(const HttpRequest& request) const {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view sent = request.authorization;
  return !config_.token.empty() && sent.starts_with(kScheme) &&
         equal_constant_time(sent.substr(kScheme.size()), config_.token);
}

HttpResponse AdminService::health(const HttpRequest&) { return ok("{\"status\":\"ok\"}\n"); }

HttpResponse AdminService::readiness(const HttpRequest&) {
  if (backend_.ready()) return ok("{\"status\":\"ready\"}\n");
  return refusal(503, ErrorCode::kUnavailable, "not ready: starting or draining; try again");
}

HttpResponse AdminService::config(const HttpRequest&) {
  auto document = backend_.config_json(config_.timeout);
  return document.ok() ? ok(*std::move(document)) : failed(document.error());
}

HttpResponse AdminService::description(const HttpRequest&) { return ok(openapi()); }

HttpResponse AdminService::status(const HttpRequest&) {
  const auto status = backend_.status(config_.timeout);
  return status.ok() ? ok(status_document(*status, backend_.info())) : failed(status.error());
}

HttpResponse AdminService::pools(const HttpRequest&) {
  const auto status = backend_.status(config_.timeout);
  return status.ok() ? ok(pools_document(*status, backend_.info())) : failed(status.error());
}

HttpResponse AdminService::engines(const HttpRequest&) {
  const auto status = backend_.status(config_.timeout);
  return status.ok() ? ok(engines_document(*status)) : failed(status.error());
}

HttpResponse AdminService::requests(const HttpRequest&) {
  const auto status = backend_.status(config_.timeout);
  return status.ok() ? ok(requests_document(*status)) : failed(status.error());
}

HttpResponse AdminService::plan(const HttpRequest&) {
  const auto status = backend_.status(config_.timeout);
  return status.ok() ? ok(plan_document(*status)) : failed(status.error());
}

HttpResponse AdminService::events(const HttpRequest&) {
  return ok(events_document(backend_.happenings(), backend_.now()));
}

HttpResponse AdminService::snapshots(const HttpRequest& request) {
  const auto status = backend_.status(config_.timeout);
  if (!status.ok()) return failed(status.error());
  const std::string kind = request.path.substr(request.path.rfind('/') + 1);
  return ok(snapshot_document(*status, kind).value_or(""));
}

HttpResponse AdminService::policy(const HttpRequest& request) {
  return tunable(request, {policy_document, patch_policy});
}

HttpResponse AdminService::slo(const HttpRequest& request) {
  return tunable(request, {slo_document, patch_slo});
}

HttpResponse AdminService::tunable(const HttpRequest& request, const Tunable& part) {
  const std::lock_guard lock(changing_);
  auto status = backend_.status(config_.timeout);
  if (!status.ok()) return failed(status.error());
  if (request.method == "PATCH") return change(request, part, std::move(status->tuning));
  HttpResponse response = ok(part.document(status->tuning));
  response.etag = etag_of(response.body);
  return response;
}

HttpResponse AdminService::change(const HttpRequest& request, const Tunable& part,
                                  core::Tuning tuning) {
  if (!matches(request.if_match, etag_of(part.document(tuning)))) {
    return refusal(412, ErrorCode::kInvalidArgument,
                   "the document has changed since the ETag in If-Match; read it again");
  }
  if (const auto refusal = part.patch(request.body, tuning)) {
    return refused(status_of(refusal->code), *refusal);
  }
  HttpResponse response = ok(part.document(tuning));
  response.etag = etag_of(response.body);
  const Status status = backend_.retune(std::move(tuning), config_.timeout);
  return status.ok() ? response : failed(status.error());
}

std::string AdminService::openapi() {
  Json paths = Json::object();
  const Json answer = {{"200", {{"description", "The JSON document"}}},
                       {"default", {{"description", "{\"error\", \"path\", \"message\"}"}}}};
  for (const Route& route : routes()) {
    Json& path = paths[std::string(route.path)];
    path["get"] = {{"summary", std::string(route.summary)}, {"responses", answer}};
    if (!route.changeable) continue;
    path["patch"] = {
        {"summary", "Change it by a JSON merge-patch (RFC 7396); the answer is the new document"},
        {"security", Json::array({{{"token", Json::array()}}})},
        {"requestBody", {{"content", {{"application/merge-patch+json", Json::object()}}}}},
        {"responses", answer}};
  }
  return to_text(
      {{"openapi", "3.0.3"},
       {"info", {{"title", "kvd admin interface"}, {"version", "1"}}},
       {"components", {{"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
       {"paths", std::move(paths)}});
}

}  // namespace kvd::admin
