#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/json.h"
#include "api/checkpoint/manifest.h"
#include "api/checkpoint/safetensors.h"

namespace tessera::detail {

namespace {

constexpr std::string_view kBeforeChecksum = R"({"checksum":")";
constexpr std::string_view kBeforeBody = R"(","manifest":)";
constexpr std::string_view kAfterBody = "}\n";

// What the checksum is of.
std::string_view checked_body(std::string_view text, const std::string& where) {
  const size_t prefix = kBeforeChecksum.size() + 16 + kBeforeBody.size();
  uint64_t expected = 0;
  TORCH_CHECK(
      text.size() > prefix + kAfterBody.size() &&
          text.starts_with(kBeforeChecksum) &&
          parse_hex16(text.substr(kBeforeChecksum.size(), 16), expected) &&
          text.substr(kBeforeChecksum.size() + 16).starts_with(kBeforeBody) &&
          text.ends_with(kAfterBody),
      where,
      " is no manifest of a checkpoint, or truncated");
  const auto body =
      text.substr(prefix, text.size() - prefix - kAfterBody.size());
  const auto found = checksum(body);
  TORCH_CHECK(
      found == expected,
      where,
      " is damaged: its checksum is ",
      hex16(found),
      " but ",
      hex16(expected),
      " was written");
  return body;
}

uint64_t parse_sum(const Json& json, const std::string& where) {
  uint64_t sum = 0;
  TORCH_CHECK(
      parse_hex16(json.string(where), sum),
      where,
      ": expected 16 hexadecimal digits");
  return sum;
}

Sizes parse_sizes(const Json& json, const std::string& where) {
  Sizes sizes;
  for (const auto& value : json.array(where)) {
    sizes.push_back(value.integer(where));
    TORCH_CHECK(
        sizes.back() >= 0, where, " has the negative size ", sizes.back());
  }
  TORCH_CHECK(sizes.size() <= 64, where, " has more than 64 dimensions");
  return sizes;
}

c10::ScalarType parse_dtype(const Json& json, const std::string& where) {
  const auto& name = json.string(where);
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (!name.empty() && saved_dtype(dtype) == name) return dtype;
  }
  TORCH_CHECK(false, where, ": torch has no dtype '", name, "'");
}

SavedFile parse_file(const Json& json, const std::string& where) {
  SavedFile file;
  file.name = json.at("name", where).string(where);
  TORCH_CHECK(
      !file.name.empty() && file.name.find('/') == std::string::npos &&
          file.name.find('\0') == std::string::npos && file.name != ".." &&
          file.name != ".",
      where,
      " names a file outside its directory: '",
      file.name,
      "'");
  file.bytes = json.at("bytes", where).integer(where);
  file.header_bytes = json.at("header_bytes", where).integer(where);
  file.header_checksum = parse_sum(json.at("header_checksum", where), where);
  TORCH_CHECK(
      file.header_bytes >= 8 && file.bytes >= file.header_bytes,
      where,
      ": file '",
      file.name,
      "' cannot have ",
      file.bytes,
      " bytes with a header of ",
      file.header_bytes);
  return file;
}

Piece parse_piece(
    const Json& json,
    const SavedTensor& tensor,
    const std::vector<SavedFile>& files,
    const std::string& where) {
  Piece piece;
  piece.file = json.at("file", where).integer(where);
  TORCH_CHECK(
      piece.file >= 0 && piece.file < static_cast<int64_t>(files.size()),
      where,
      " lies in file ",
      piece.file,
      " of ",
      files.size());
  const auto& file = files[piece.file];
  piece.offset = json.at("offset", where).integer(where);
  piece.box.begin = parse_sizes(json.at("begin", where), where);
  piece.box.size = parse_sizes(json.at("shape", where), where);
  const int64_t bytes = bytes_of(tensor.dtype, piece.box.size, where);
  TORCH_CHECK(
      piece.offset >= file.header_bytes && bytes <= file.bytes &&
          piece.offset <= file.bytes - bytes,
      where,
      ": bytes ",
      piece.offset,
      " to ",
      piece.offset,
      " + ",
      bytes,
      " are outside the data of file '",
      file.name,
      "'");
  const auto& sums = json.at("checksums", where).string(where);
  const auto chunks = static_cast<size_t>(
      bytes / kChunkBytes + (bytes % kChunkBytes != 0 ? 1 : 0));
  TORCH_CHECK(
      sums.size() == 16 * chunks,
      where,
      ": expected checksums of ",
      chunks,
      " chunks");
  for (size_t i = 0; i < chunks; ++i) {
    uint64_t sum = 0;
    TORCH_CHECK(
        parse_hex16(std::string_view(sums).substr(16 * i, 16), sum),
        where,
        ": a checksum is not hexadecimal");
    piece.checksums.push_back(sum);
  }
  return piece;
}

int64_t parse_rank(const std::string& text, const std::string& where) {
  int64_t rank = -1;
  const auto* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, rank);
  TORCH_CHECK(
      parsed.ec == std::errc() && parsed.ptr == end && rank >= 0,
      where,
      ": '",
      text,
      "' is no rank");
  return rank;
}

void check_files(
    const std::vector<SavedFile>& files, const std::string& where) {
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const auto& file : files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  TORCH_CHECK(
      twice == names.end(), where, " names the file '", *twice, "' twice");
}

}  // namespace

std::optional<int64_t> saved_number_in(std::string_view start) {
  constexpr std::string_view kKey = "\n\"saved\":";
  const size_t at = start.find(kKey);
  if (at == std::string_view::npos) {
    // An earlier version wrote it, if it is one at all.
    const bool manifest = start.starts_with(kBeforeChecksum) &&
                          start.find("\n\"ranks\":") != start.npos;
    return manifest ? std::optional<int64_t>(0) : std::nullopt;
  }
  const auto number = start.substr(at + kKey.size());
  int32_t saved = 0;  // a larger one is none of ours
  const auto parsed =
      std::from_chars(number.data(), number.data() + number.size(), saved);
  if (parsed.ec != std::errc() || saved < 0) return std::nullopt;
  return saved;
}

void check_cover(const SavedTensor& tensor, const std::string& where) {
  const int64_t bytes = bytes_of(tensor.dtype, tensor.shape, where);
  std::vector<const Box*> boxes;
  int64_t held = 0;
  for (const auto& piece : tensor.pieces) {
    const Box& box = piece.box;
    TORCH_CHECK(
        box.dim() == static_cast<int64_t>(tensor.shape.size()) &&
            box.begin.size() == box.size.size(),
        where,
        " has pieces of another number of dimensions");
    for (int64_t d = 0; d < box.dim(); ++d) {
      TORCH_CHECK(
          box.begin[d] <= tensor.shape[d] &&
              box.size[d] <= tensor.shape[d] - box.begin[d],
          where,
          ": the box ",
          box.str(),
          " is not inside the tensor");
    }
    if (box.numel() == 0) continue;
    held += box.numel();
    TORCH_CHECK(
        held <= bytes / tensor.item_bytes(),
        where,
        ": its boxes hold more than the tensor");
    boxes.push_back(&box);
  }
  TORCH_CHECK(
      held == bytes / tensor.item_bytes(),
      where,
      ": its boxes hold ",
      held,
      " of ",
      bytes / tensor.item_bytes(),
      " elements");
  std::sort(boxes.begin(), boxes.end(), [](const Box* a, const Box* b) {
    return a->dim() > 0 && a->begin[0] < b->begin[0];
  });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t k = i + 1; k < boxes.size(); ++k) {
      if (boxes[i]->dim() > 0 &&
          boxes[k]->begin[0] >= boxes[i]->begin[0] + boxes[i]->size[0]) {
        break;
      }
      TORCH_CHECK(
          intersection(*boxes[i], *boxes[k]).numel() == 0,
          where,
          ": the boxes ",
          boxes[i]->str(),
          " and ",
          boxes[k]->str(),
          " overlap");
    }
  }
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const Json json = Json::parse(checked_body(text, where), where);
  TORCH_CHECK(
      json.at("format", where).string(where) == "tessera-checkpoint",
      where,
      " is of another format");
  const int64_t version = json.at("version", where).integer(where);
  TORCH_CHECK(
      version == 1 &&
          json.at("chunk_bytes", where).integer(where) == kChunkBytes,
      where,
      " is of version ",
      version,
      ", which this library does not read: take a newer one");
  Manifest out;
  out.id = parse_sum(json.at("id", where), where);
  out.step = json.at("step", where).integer(where);
  if (const auto* saved = json.find("saved")) {
    out.saved = saved->integer(where);
    TORCH_CHECK(out.saved >= 0, where, " says that it was save ", out.saved);
  }
  out.ranks = json.at("ranks", where).integer(where);
  out.tessera_version = json.at("tessera", where).string(where);
  out.torch_version = json.at("torch", where).string(where);
  for (const auto& file : json.at("files", where).array(where)) {
    out.files.push_back(parse_file(file, where));
  }
  check_files(out.files, where);
  for (const auto& [name, value] : json.at("tensors", where).object(where)) {
    const auto here = c10::str(where, ": tensor '", name, "'");
    SavedTensor tensor;
    tensor.dtype = parse_dtype(value.at("dtype", here), here);
    tensor.shape = parse_sizes(value.at("shape", here), here);
    tensor.layout = value.at("layout", here).string(here);
    for (const auto& piece : value.at("pieces", here).array(here)) {
      tensor.pieces.push_back(parse_piece(piece, tensor, out.files, here));
    }
    check_cover(tensor, here);
    out.tensors.emplace(name, std::move(tensor));
  }
  const auto& generators = json.at("generators", where).object(where);
  for (const auto& [device, states] : generators) {
    for (const auto& [rank, state] : states.object(where)) {
      out.generators[device][parse_rank(rank, where)] = state.string(where);
    }
  }
  for (const auto& [name, value] : json.at("values", where).object(where)) {
    out.values[name] = value.string(where);
  }
  return out;
}

}  // namespace tessera::detail
