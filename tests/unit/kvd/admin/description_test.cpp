// Every answer is as /openapi.json describes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kvd/admin/admin_service.hpp"
#include "planner/policy/catalogue.hpp"
#include "tests/unit/kvd/admin/fake_backend.hpp"

namespace kvd::admin {
namespace {
using nlohmann::json;
using testing::HasSubstr;

/// Properties that a document has and its schema does not, or the reverse; "" for none.
class Schemas {
 public:
  explicit Schemas(const json& openapi) : all_(openapi["components"]["schemas"]) {}

  std::string fault(json schema, const json& value, const std::string& at = "") const {
    if (schema.contains("$ref")) {
      const auto reference = schema["$ref"].get<std::string>();
      return fault(all_.at(reference.substr(reference.rfind('/') + 1)), value, at);
    }
    if (schema.contains("oneOf")) {
      for (const json& one : schema["oneOf"]) {
        if (fault(one, value, at).empty()) return "";
      }
      return at + ": none of oneOf\n";
    }
    if (!of_type(schema["type"], value)) return at + ": " + value.dump() + " has another type\n";
    if (schema.contains("enum") && !contains(schema["enum"], value)) {
      return at + ": " + value.dump() + " is not listed\n";
    }
    return value.is_array() ? fault_of_array(schema, value, at)
                            : fault_of_object(schema, value, at);
  }

 private:
  static bool contains(const json& list, const json& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  static bool of_type(const json& type, const json& value) {
    if (type.is_array()) {
      return std::any_of(type.begin(), type.end(),
                         [&](const json& one) { return of_type(one, value); });
    }
    if (type == "integer") return value.is_number_integer();
    return type == "number" ? value.is_number() : type == value.type_name();
  }
  std::string fault_of_array(const json& schema, const json& value, const std::string& at) const {
    std::string faults;
    for (const json& one : value) faults += fault(schema["items"], one, at + "[]");
    return faults;
  }
  std::string fault_of_object(const json& schema, const json& value, const std::string& at) const {
    std::string faults;
    if (!value.is_object() || !schema.contains("properties")) return faults;
    for (const json& key : schema.value("required", json::array())) {
      if (!value.contains(key)) faults += at + ": lacks " + key.dump() + "\n";
    }
    for (const auto& [key, one] : value.items()) {
      std::string inside = at;
      inside.append(".").append(key);
      if (schema["properties"].contains(key)) {
        faults += fault(schema["properties"][key], one, inside);
      } else if (schema.contains("additionalProperties")) {
        faults += fault(schema["additionalProperties"], one, inside);
      } else {
        faults += inside.append(": the schema does not tell of it\n");
      }
    }
    return faults;
  }
  const json all_;
};

/// Something in every list.
void fill(Snapshot& s) {
  for (auto& slabs : s.status.slabs) slabs.resize(1);
  s.status.slabs[0][0].mapped_by[0] = EngineId(1);
  s.status.devices.resize(1);
  s.status.engines.resize(1);
  s.status.engines[0].ranks.devices = {DeviceId(0)};
  s.status.requests.resize(1);
  s.status.plans.resize(1);
  s.status.plans[0].requests = {{RequestId(7), 2, {2, 4}, true}};
  s.status.rotation_inputs.resize(1);
  s.info.gpu = GpuInfo{"NVIDIA H100", "c0c1", 300 * kMiB};
}

/// "GET, PATCH" as {"get", "patch"}.
std::set<std::string> methods_in(std::string allow) {
  std::transform(allow.begin(), allow.end(), allow.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::set<std::string> methods;
  std::istringstream words(allow);
  for (std::string word; words >> word;) methods.insert(word.substr(0, word.find(',')));
  return methods;
}

class DescriptionTest : public testing::Test {
 protected:
  static HttpRequest get(const std::string& path) { return {"GET", path, "", "", ""}; }
  FakeBackend backend;
  AdminService sut{backend};
};

TEST_F(DescriptionTest, EveryAnswerIsAsTheDescriptionTells) {
  const json openapi = json::parse(sut.handle(get("/openapi.json")).body);
  const Schemas schemas(openapi);
  for (const bool filled : {false, true}) {
    if (filled) backend.edit([](Snapshot& s) { fill(s); });
    for (const auto& [path, operations] : openapi["paths"].items()) {
      SCOPED_TRACE(path);
      const auto answer = sut.handle(get(path));
      ASSERT_EQ(answer.status, 200);
      const json schema =
          operations["get"]["responses"]["200"]["content"]["application/json"]["schema"];
      EXPECT_EQ(schemas.fault(schema, json::parse(answer.body)), "");
    }
  }
  const auto refusal = json::parse(sut.handle(get("/nothing")).body);
  EXPECT_EQ(schemas.fault(openapi["components"]["schemas"]["Refusal"], refusal), "");
}

TEST_F(DescriptionTest, DescriptionNamesEveryPathMethodAndPolicy) {
  const json openapi = json::parse(sut.handle(get("/openapi.json")).body);
  const json& paths = openapi["paths"];
  for (const auto& [path, operations] : paths.items()) {
    HttpRequest other = get(path);
    other.method = "PUT";
    std::set<std::string> told;
    for (const auto& [method, operation] : operations.items()) told.insert(method);
    EXPECT_EQ(told, methods_in(sut.handle(other).allow)) << path;
  }
  const std::string known = sut.handle(get("/nothing")).body;
  EXPECT_EQ(paths.size(), 24u) << known;
  for (const auto& [path, operations] : paths.items()) EXPECT_THAT(known, HasSubstr(" " + path));
  const json& policy = openapi["components"]["schemas"]["Policy"]["properties"];
  for (const auto decision : {planner::Decision::kRotation, planner::Decision::kPlacement,
                              planner::Decision::kAdmission, planner::Decision::kLoad}) {
    const auto names = planner::stock_policies().names(decision);
    EXPECT_EQ(policy[std::string(planner::name(decision))]["properties"]["policy"]["enum"],
              json(std::vector<std::string>(names.begin(), names.end())));
  }
}

}  // namespace
}  // namespace kvd::admin
