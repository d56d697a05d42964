// Which rank writes which box of which tensor: every element once, replicas
// spread over the ranks that hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api/checkpoint/manifest.h"
#include "api/checkpoint/participants.h"
#include "api/checkpoint/safetensors.h"

namespace tessera::detail {

// A part of a tensor and the ranks that hold it.
struct Holding {
  Box box;
  std::vector<int64_t> ranks;
};

// Who holds what of a tensor. A plain one is rank 0's.
std::vector<Holding> holdings_of(const at::Tensor& tensor);

// A piece that a rank writes: the box of tensor `name`.
struct PlannedPiece {
  std::string name;
  c10::ScalarType dtype;
  Box box;
};

// The file of one rank.
struct PlannedFile {
  std::string header;
  // In the order of the data, `offsets[i]` from the start of the file.
  std::vector<PlannedPiece> pieces;
  std::vector<int64_t> offsets;
  int64_t bytes = 0;

  int64_t chunk_count() const;
};

struct SavePlan {
  uint64_t id = 0;
  // One a rank.
  std::vector<PlannedFile> files;
  // Without pieces: see make_manifest.
  std::map<std::string, SavedTensor> tensors;
};

// The same on every rank that has tensors of these names and layouts. Throws
// c10::ValueError for a name that a file cannot hold, c10::NotImplementedError
// for a tensor that it cannot.
SavePlan plan_save(
    const std::map<std::string, at::Tensor>& tensors,
    int64_t ranks,
    uint64_t id);

// What is the same in two plans exactly if they are of the same tensors in the
// same layouts.
uint64_t fingerprint(const std::map<std::string, at::Tensor>& tensors);

// The part of `tensor` that a piece of `rank` is, as a view of its shard.
// Requires: the rank lives here and holds the box.
at::Tensor piece_of(const at::Tensor& tensor, const Box& box, int64_t rank);

// The manifest of a plan whose chunks have these checksums, file after file.
Manifest make_manifest(const SavePlan& plan, const std::vector<int64_t>& sums);

std::string data_file_name(int64_t rank);

}  // namespace tessera::detail
