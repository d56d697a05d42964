#include "api/checkpoint/checksum.h"
#include "api/checkpoint/json.h"
#include "api/checkpoint/manifest.h"
#include "api/checkpoint/safetensors.h"

namespace tessera::detail {

namespace {

std::string json_list(SizesRef values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ",";
    out += std::to_string(values[i]);
  }
  return out + "]";
}

// `entries`, each already "key":value, one a line.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_ += "{"; }
  std::string& key(std::string_view key) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    out_ += json_string(key) + ":";
    return out_;
  }
  void end() { out_ += "}"; }

 private:
  std::string& out_;
  bool first_ = true;
};

void write_tensor(std::string& out, const SavedTensor& tensor) {
  out += "{\"dtype\":" + json_string(saved_dtype(tensor.dtype)) +
         ",\"shape\":" + json_list(tensor.shape) +
         ",\"layout\":" + json_string(tensor.layout) + ",\"pieces\":[";
  const char* comma = "";
  for (const auto& piece : tensor.pieces) {
    out += comma;
    out += "{\"file\":" + std::to_string(piece.file) +
           ",\"offset\":" + std::to_string(piece.offset) +
           ",\"begin\":" + json_list(piece.box.begin) +
           ",\"shape\":" + json_list(piece.box.size) + ",\"checksums\":\"";
    for (const uint64_t sum : piece.checksums) out += hex16(sum);
    out += "\"}";
    comma = ",";
  }
  out += "]}";
}

std::string write_body(const Manifest& manifest) {
  std::string out;
  ObjectWriter body(out);
  body.key("format") += "\"tessera-checkpoint\"";
  body.key("version") += "1";
  body.key("id") += json_string(hex16(manifest.id));
  body.key("step") += std::to_string(manifest.step);
  body.key("saved") += std::to_string(manifest.saved);
  body.key("ranks") += std::to_string(manifest.ranks);
  body.key("tessera") += json_string(manifest.tessera_version);
  body.key("torch") += json_string(manifest.torch_version);
  body.key("chunk_bytes") += std::to_string(kChunkBytes);
  body.key("files") += "[";
  const char* comma = "";
  for (const auto& file : manifest.files) {
    out += comma;
    out += "\n{\"name\":" + json_string(file.name) +
           ",\"bytes\":" + std::to_string(file.bytes) +
           ",\"header_bytes\":" + std::to_string(file.header_bytes) +
           ",\"header_checksum\":" + json_string(hex16(file.header_checksum)) +
           "}";
    comma = ",";
  }
  out += "]";
  body.key("tensors");
  ObjectWriter tensors(out);
  for (const auto& [name, tensor] : manifest.tensors) {
    write_tensor(tensors.key(name), tensor);
  }
  tensors.end();
  body.key("generators");
  ObjectWriter devices(out);
  for (const auto& [device, states] : manifest.generators) {
    devices.key(device);
    ObjectWriter ranks(out);
    for (const auto& [rank, state] : states) {
      ranks.key(std::to_string(rank)) += json_string(state);
    }
    ranks.end();
  }
  devices.end();
  body.key("values");
  ObjectWriter values(out);
  for (const auto& [name, value] : manifest.values) {
    values.key(name) += json_string(value);
  }
  values.end();
  body.end();
  return out;
}

}  // namespace

std::string saved_dtype(c10::ScalarType dtype) {
  // Safetensors has no name for it: files have two F64 for each.
  if (dtype == c10::ScalarType::ComplexDouble) return "C128";
  return safetensors_dtype(dtype);
}

std::string write_manifest(const Manifest& manifest) {
  const auto body = write_body(manifest);
  return "{\"checksum\":\"" + hex16(checksum(body)) +
         "\",\"manifest\":" + body + "}\n";
}

}  // namespace tessera::detail
