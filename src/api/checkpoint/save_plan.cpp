#include "api/checkpoint/save_plan.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/json.h"
#include "dispatch/tensor.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr int64_t kPage = 4096;
// A box that many ranks hold is cut where it is larger than this.
constexpr int64_t kLargestShare = int64_t{8} << 20;

void check_savable(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      !name.empty() && name != "__metadata__" && is_utf8(name),
      "[save] a tensor cannot be called '",
      name,
      "': expected UTF-8 text that is neither empty nor '__metadata__'");
  TORCH_CHECK_VALUE(
      tensor.defined(), "[save] '", name, "' is an undefined tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided &&
          !saved_dtype(tensor.scalar_type()).empty(),
      "[save] '",
      name,
      "' is of dtype ",
      tensor.scalar_type(),
      " and layout ",
      tensor.layout(),
      ", which a safetensors file cannot hold: convert it first");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor.is_meta(),
      "[save] '",
      name,
      "' is a meta tensor: it has no data");
}

// A part of rows for each of the ranks that are to write a share of a box.
std::vector<Box> shares_of(const Box& box, int64_t item_bytes, int64_t ranks) {
  const int64_t bytes = box.numel() * item_bytes;
  const int64_t rows = box.dim() > 0 ? box.size[0] : 1;
  const int64_t wanted = (bytes + kLargestShare - 1) / kLargestShare;
  const int64_t n = std::min({ranks, wanted, rows});
  if (n <= 1) return {box};
  std::vector<Box> shares;
  for (int64_t i = 0; i < n; ++i) {
    const auto range = chunk(rows, n, i);
    if (range.size == 0) continue;
    shares.push_back(box);
    shares.back().begin[0] += range.begin;
    shares.back().size[0] = range.size;
  }
  return shares;
}

// Tensors that fill whole pages come first, so that they can be mapped, then
// those with the largest elements, so that all are aligned.
bool written_before(const PlannedPiece& a, const PlannedPiece& b) {
  const auto key = [](const PlannedPiece& piece) {
    const auto item = static_cast<int64_t>(c10::elementSize(piece.dtype));
    const bool pages = piece.box.numel() * item % kPage == 0;
    return std::tuple(!pages, -item, std::cref(piece.name));
  };
  const auto x = key(a);
  const auto y = key(b);
  return std::tie(std::get<0>(x), std::get<1>(x), std::get<2>(x).get()) <
         std::tie(std::get<0>(y), std::get<1>(y), std::get<2>(y).get());
}

SafetensorsEntry entry_of(const PlannedPiece& piece) {
  SafetensorsEntry entry{piece.name, piece.dtype, piece.box.size};
  if (piece.dtype == c10::ScalarType::ComplexDouble) {
    entry.dtype = c10::ScalarType::Double;
    entry.shape.push_back(2);
  }
  return entry;
}

void finish_file(PlannedFile& file, uint64_t id, int64_t rank) {
  std::sort(file.pieces.begin(), file.pieces.end(), written_before);
  std::vector<SafetensorsEntry> entries;
  for (const auto& piece : file.pieces) entries.push_back(entry_of(piece));
  file.header = make_safetensors_header(
      entries,
      {{"format", "pt"},
       {"tessera_checkpoint", hex16(id)},
       {"tessera_rank", std::to_string(rank)}},
      kPage);
  file.bytes = static_cast<int64_t>(file.header.size());
  for (const auto& entry : entries) {
    file.offsets.push_back(file.bytes);
    file.bytes += entry.end - entry.begin;
  }
}

std::string layout_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return "plain";
  const auto& spec = *distributed_meta(tensor).spec;
  std::string out;
  for (const auto& placement : spec.placements) {
    out += (out.empty() ? "" : ", ") + placement.str();
  }
  std::string shape;
  for (const int64_t size : spec.mesh.shape()) {
    shape += (shape.empty() ? "" : "x") + std::to_string(size);
  }
  return "[" + out + "] on " + shape;
}

int64_t chunks_of(int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

int64_t bytes_of(const PlannedPiece& piece) {
  return piece.box.numel() *
         static_cast<int64_t>(c10::elementSize(piece.dtype));
}

}  // namespace

std::vector<Holding> holdings_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return {{whole_box(tensor.sizes()), {0}}};
  const auto& spec = *distributed_meta(tensor).spec;
  const auto ranks = spec.mesh.all_ranks();
  std::vector<Holding> holdings;
  // A slice of a mesh has a copy in each of its rows: the first is taken.
  for (const int64_t rank : spec.mesh.ranks(ranks[0])) {
    const auto box = box_of(spec, spec.mesh.position_of(rank));
    if (box.numel() == 0) continue;
    const auto found = std::find_if(
        holdings.begin(), holdings.end(), [&](const auto& holding) {
          return holding.box == box;
        });
    if (found != holdings.end()) {
      found->ranks.push_back(rank);
    } else {
      holdings.push_back({box, {rank}});
    }
  }
  return holdings;
}

int64_t PlannedFile::chunk_count() const {
  int64_t count = 0;
  for (const auto& piece : pieces) count += chunks_of(bytes_of(piece));
  return count;
}

SavePlan plan_save(
    const std::map<std::string, at::Tensor>& tensors,
    int64_t ranks,
    uint64_t id) {
  SavePlan plan;
  plan.id = id;
  plan.files.resize(ranks);
  std::vector<int64_t> load(ranks, 0);
  for (const auto& [name, tensor] : tensors) {
    check_savable(name, tensor);
    const auto dtype = tensor.scalar_type();
    const auto item = static_cast<int64_t>(c10::elementSize(dtype));
    plan.tensors[name] = {
        dtype,
        Sizes(tensor.sizes().begin(), tensor.sizes().end()),
        layout_of(tensor),
        {}};
    if (tensor.numel() == 0) {
      // Nobody holds anything; readers of the file shall find it all the same.
      plan.files[0].pieces.push_back({name, dtype, whole_box(tensor.sizes())});
      continue;
    }
    for (auto& [box, holders] : holdings_of(tensor)) {
      std::stable_sort(
          holders.begin(), holders.end(), [&](int64_t a, int64_t b) {
            return load[a] < load[b];
          });
      const auto shares =
          shares_of(box, item, static_cast<int64_t>(holders.size()));
      for (size_t i = 0; i < shares.size(); ++i) {
        plan.files[holders[i]].pieces.push_back({name, dtype, shares[i]});
        load[holders[i]] += shares[i].numel() * item;
      }
    }
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    finish_file(plan.files[rank], id, rank);
  }
  return plan;
}

uint64_t fingerprint(const std::map<std::string, at::Tensor>& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    const auto* type = tensor.defined() ? toString(tensor.scalar_type()) : "";
    text += json_string(name) + type;
    if (!tensor.defined()) continue;
    text += c10::str(tensor.sizes());
    text += layout_of(tensor);
    if (!is_dtensor(tensor)) continue;
    text += c10::str(distributed_meta(tensor).spec->mesh.all_ranks());
  }
  return checksum(text);
}

at::Tensor piece_of(const at::Tensor& tensor, const Box& box, int64_t rank) {
  if (box.numel() == 0) {
    return at::empty(box.size, at::TensorOptions(tensor.scalar_type()));
  }
  at::Tensor shard = tensor;
  Box held = whole_box(tensor.sizes());
  if (is_dtensor(tensor)) {
    const auto& spec = *distributed_meta(tensor).spec;
    const int64_t position = spec.mesh.position_of(rank);
    const auto positions = spec.mesh.local_positions();
    const auto found = std::find(positions.begin(), positions.end(), position);
    TORCH_INTERNAL_ASSERT(found != positions.end());
    shard = current_shards(tensor)[found - positions.begin()];
    held = box_of(spec, position);
  }
  for (int64_t d = 0; d < box.dim(); ++d) {
    shard = shard.narrow(d, box.begin[d] - held.begin[d], box.size[d]);
  }
  return shard;
}

std::string data_file_name(int64_t rank) {
  char name[40];
  std::snprintf(
      name,
      sizeof(name),
      "data_%04lld.safetensors",
      static_cast<long long>(rank));
  return name;
}

Manifest make_manifest(const SavePlan& plan, const std::vector<int64_t>& sums) {
  Manifest manifest;
  manifest.id = plan.id;
  manifest.ranks = static_cast<int64_t>(plan.files.size());
  manifest.tensors = plan.tensors;
  size_t next = 0;
  for (int64_t rank = 0; rank < manifest.ranks; ++rank) {
    const auto& file = plan.files[rank];
    manifest.files.push_back(
        {data_file_name(rank),
         file.bytes,
         static_cast<int64_t>(file.header.size()),
         checksum(file.header)});
    for (size_t i = 0; i < file.pieces.size(); ++i) {
      Piece piece{rank, file.offsets[i], file.pieces[i].box, {}};
      const int64_t chunks = chunks_of(bytes_of(file.pieces[i]));
      for (int64_t c = 0; c < chunks; ++c) {
        piece.checksums.push_back(static_cast<uint64_t>(sums.at(next++)));
      }
      manifest.tensors[file.pieces[i].name].pieces.push_back(std::move(piece));
    }
  }
  return manifest;
}

}  // namespace tessera::detail
