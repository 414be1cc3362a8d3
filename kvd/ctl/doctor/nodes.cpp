#include "kvd/ctl/doctor/nodes.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvd::ctl::doctor {

namespace {

using Json = nlohmann::json;

constexpr const char* kCheck = "nodes";

struct Cache {
  std::string model, domain, fingerprint, remote_name;  ///< "": there are no servers
  std::uint64_t block_bytes = 0, block_tokens = 0;
};
/// The caches by model; if several caches of a model are open, the last one.
using Caches = std::map<std::string, Cache>;

Caches caches_of(const Json& document) {
  Caches all;
  for (const Json& open : document.at("open")) {
    const Json& name = open.at("remote_name");
    Cache cache{open.at("model"),       open.at("domain"),
                open.at("fingerprint"), name.is_null() ? "" : name.get<std::string>(),
                open.at("block_bytes"), open.at("block_tokens")};
    all[cache.model] = std::move(cache);
  }
  return all;
}

std::string block_of(const Cache& cache) {
  return std::to_string(cache.block_tokens) + " tokens, " + std::to_string(cache.block_bytes) +
         " bytes";
}

Finding different(const Cache& here, const Cache& there) {
  const auto warning = [&](const std::string& why, std::string remedy) {
    return Finding{kCheck, Severity::kWarning,
                   "the other node finds no block of \"" + here.model + "\": " + why,
                   std::move(remedy)};
  };
  if (here.remote_name.empty() || there.remote_name.empty()) {
    return warning(
        std::string(here.remote_name.empty() ? "this" : "that") + " one has no remote servers",
        "set remote.servers there");
  }
  if (block_of(here) != block_of(there)) {
    return warning("a block has " + block_of(here) + " here, and " + block_of(there) + " there",
                   "give both engines the same block size and number format");
  }
  if (here.fingerprint != there.fingerprint) {
    return warning("its engines call it " + here.fingerprint + " here, and " + there.fingerprint +
                       " there: other weights, another number format or layout",
                   "compare the models, or give both the same model_id where they are one");
  }
  if (here.domain != there.domain) {
    return warning(
        "it is in domain \"" + here.domain + "\" here, and in \"" + there.domain + "\" there",
        "give the domains of both nodes one name");
  }
  return warning("the secrets differ", "give both the same remote.secret_file");
}

/// The names tell what the blocks are of, so their words say what differs.
Finding only_one(const std::string& model, const char* where, const Caches& others) {
  std::string text = "\"" + model + "\" is open " + where + " alone";
  for (const auto& [name, cache] : others) text += "; on the other node: \"" + name + "\"";
  const char* remedy = others.empty()
                           ? "start its engine on the other node"
                           : "where these are one model, mend what the names tell apart, or give "
                             "both engines one model_id";
  return {kCheck, Severity::kWarning, std::move(text), remedy};
}

}  // namespace

Result<std::vector<Finding>> compare_nodes(std::string_view here, std::string_view there) {
  Caches ours, theirs;
  try {
    ours = caches_of(Json::parse(here));
    theirs = caches_of(Json::parse(there));
  } catch (const Json::exception& error) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::string("that is no answer of `kvdctl cache --json`, or of another "
                                  "version's: ") +
                          error.what());
  }
  std::vector<Finding> findings;
  for (const auto& [model, cache] : ours) {
    const auto other = theirs.find(model);
    if (other == theirs.end()) {
      findings.push_back(only_one(model, "here", theirs));
    } else if (cache.remote_name.empty() || cache.remote_name != other->second.remote_name) {
      findings.push_back(different(cache, other->second));
    } else {
      findings.push_back(
          {kCheck, Severity::kOk, "both nodes find each other's blocks of \"" + model + "\"", ""});
    }
  }
  for (const auto& [model, cache] : theirs) {
    if (!ours.contains(model)) findings.push_back(only_one(model, "there", ours));
  }
  if (findings.empty()) {
    findings.push_back({kCheck, Severity::kWarning, "no engine has a cache open on either node",
                        "start the engines first"});
  }
  return findings;
}

}  // namespace kvd::ctl::doctor
