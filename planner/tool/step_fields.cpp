#include "planner/tool/step_fields.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::planner {

StepModel read_step_model(Fields& fields) {
  StepModel model;
  const auto layers = fields.whole("layers");
  if (layers < 1 || layers > static_cast<std::int64_t>(kMaxLayers)) {
    fields.fail(fields.path("layers") + " must be within 1..1024");
    return model;
  }
  if (fields.raw("compute_s").is_array()) {
    for (const auto& time : fields.raw("compute_s")) {
      if (!time.is_number() || !(time.get<double>() > 0) || !std::isfinite(time.get<double>())) {
        fields.fail("every compute_s must be a finite number above 0");
        return model;
      }
      model.compute.emplace_back(time.get<double>());
    }
    if (model.layers() != static_cast<std::size_t>(layers)) {
      fields.fail("compute_s must have one entry a layer");
    }
  } else {
    const Seconds time(fields.positive("compute_s"));
    model.compute.assign(static_cast<std::size_t>(layers), time);
  }
  model.per_block = Seconds(1 / fields.positive("link_blocks_per_s"));
  model.per_transfer = Seconds(fields.not_negative("transfer_s", 0.0));
  return model;
}

std::vector<std::int32_t> read_layers(Fields& fields, const char* key, std::size_t layers) {
  std::vector<std::int32_t> offloaded;
  for (const auto& element : fields.array(key, false)) {
    const auto layer = as_whole(element);
    if (!layer || *layer < 1 || *layer > static_cast<std::int64_t>(layers)) {
      fields.fail(fields.path(key) + " must hold layers within 1.." + std::to_string(layers));
      return {};
    }
    offloaded.push_back(static_cast<std::int32_t>(*layer));
  }
  std::sort(offloaded.begin(), offloaded.end());
  if (std::adjacent_find(offloaded.begin(), offloaded.end()) != offloaded.end()) {
    fields.fail(fields.path(key) + " must hold each layer once");
  }
  return offloaded;
}

std::string read_id(Fields& fields, std::set<std::string>& seen) {
  auto id = fields.text("id");
  if (!seen.insert(id).second) fields.fail(fields.path("id") + " \"" + id + "\" is used twice");
  return id;
}

std::vector<double> in_seconds(const std::vector<Seconds>& times) {
  std::vector<double> numbers;
  numbers.reserve(times.size());
  for (const auto time : times) numbers.push_back(time.count());
  return numbers;
}

}  // namespace kvd::planner
