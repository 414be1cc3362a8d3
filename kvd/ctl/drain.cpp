#include "kvd/ctl/drain.hpp"

#include <algorithm>

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl {
namespace {

using cells::Json;
using cells::seconds;
using cells::text;

constexpr const char* kNode = "node";

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string called(const std::string& who, const Json& drain) {
  return who == kNode ? who : "engine " + who + " '" + text(drain.at("name")) + "'";
}

std::string left_text(const std::string& who, const Json& drain) {
  const std::string what = who == kNode ? " engines" : " requests or regions";
  return text(drain.at("left")) + what + " left";
}

std::string blocks_text(const Json& blocks) {
  if (blocks.is_null()) return "";
  return "; to remote servers: " + text(blocks.at("stored")) + " blocks stored, " +
         text(blocks.at("left")) + " left, " + text(blocks.at("lost")) + " lost";
}

void add(const std::string& who, const Json& drain, DrainProgress& out) {
  const std::string state = text(drain.at("state"));
  const Json& deadline = drain.at("deadline_s");
  out.drained = out.drained && state == "drained";
  out.late = out.late || state == "late";
  const Json blocks = drain.value("to_remote", Json());
  out.lost = out.lost || (state == "drained" && !blocks.is_null() && blocks.at("lost") != 0);
  out.line += called(who, drain) + ": " + state + " for " + seconds(drain.at("since_s")) + ", " +
              left_text(who, drain) +
              (deadline.is_null() ? "" : ", deadline in " + seconds(deadline)) +
              blocks_text(blocks) + "\n";
}

}  // namespace

Result<std::string> drain_patch(const DrainCall& call) {
  if (call.who != kNode && !is_number(call.who)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "'" + call.who +
                          "' is neither \"node\" nor the number of an engine "
                          "(kvdctl engines)");
  }
  Json how = nullptr;
  if (!call.cancel) how = Json::object();
  if (!call.cancel && call.deadline_s) how["deadline_s"] = *call.deadline_s;
  if (call.to_remote && (call.cancel || call.who != kNode)) {
    return make_error(ErrorCode::kInvalidArgument, "--to-remote goes with \"drain node\"");
  }
  if (call.to_remote) how["to_remote"] = true;
  const Json patch = call.who == kNode ? Json{{kNode, how}} : Json{{"engines", {{call.who, how}}}};
  return patch.dump();
}

Result<DrainProgress> drain_progress(const std::string& who, std::string_view document) {
  DrainProgress out;
  out.drained = true;
  try {
    const Json all = Json::parse(document);
    const Json& node = all.at(kNode);
    if (!node.is_null() && (who.empty() || who == kNode)) add(kNode, node, out);
    for (const auto& [engine, drain] : all.at("engines").items()) {
      if (who.empty() || who == kNode || who == engine) add(engine, drain, out);
    }
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
  if (out.line.empty()) {
    out.line = who.empty() || who == kNode ? "all are in service\n"
                                           : "engine " + who + " is in service, or gone\n";
  }
  return out;
}

}  // namespace kvd::ctl
