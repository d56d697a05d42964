// The manifest of a checkpoint: which tensors there are, and which file holds
// which box of which tensor, with checksums of every byte.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/checkpoint/box.h"

namespace tessera::detail {

// Data is checked in chunks of this size, counted from the start of a piece: a
// rank that needs a part of a piece reads and checks the chunks it touches.
inline constexpr int64_t kChunkBytes = int64_t{1} << 20;

// A box of a tensor in one file, row-major.
struct Piece {
  int64_t file = 0;
  // Where it begins in the file.
  int64_t offset = 0;
  Box box;
  // One for each chunk; none where the file is of another format.
  std::vector<uint64_t> checksums;
};

struct SavedTensor {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Sizes shape;
  // How it was laid out when it was saved, for people.
  std::string layout;
  // They cover the tensor once.
  std::vector<Piece> pieces;

  int64_t item_bytes() const {
    return static_cast<int64_t>(c10::elementSize(dtype));
  }
};

struct SavedFile {
  std::string name;
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_checksum = 0;
};

struct Manifest {
  uint64_t id = 0;  // of this save; every file of it says it too
  int64_t step = 0;
  // Which save of its run it is, from 1: what says which one is the newest. 0
  // in those that earlier versions have written.
  int64_t saved = 0;
  int64_t ranks = 1;
  std::string tessera_version;
  std::string torch_version;
  std::vector<SavedFile> files;
  std::map<std::string, SavedTensor> tensors;
  // States of the default generators, as hexadecimal digits: by device, then
  // by rank. A rank that is not named had the state of rank 0.
  std::map<std::string, std::map<int64_t, std::string>> generators;
  // What the program saved beside tensors.
  std::map<std::string, std::string> values;
};

std::string write_manifest(const Manifest& manifest);
// Throws c10::Error, which begins with `where`, unless `text` is whole and says
// something that can be: files named once and inside their directory, boxes
// that cover each tensor once and lie inside their file, a checksum a chunk.
Manifest parse_manifest(std::string_view text, const std::string& where);

// `saved` of the manifest that begins with `start`, of which nothing is
// verified; nullopt where it is not a manifest.
std::optional<int64_t> saved_number_in(std::string_view start);

// Throws c10::Error, which begins with `where`, unless the boxes cover a tensor
// of this shape once.
void check_cover(const SavedTensor& tensor, const std::string& where);

// The manifest's name of a dtype; "" where a checkpoint cannot hold it. And
// back: throws c10::Error on another name.
std::string saved_dtype(c10::ScalarType dtype);

}  // namespace tessera::detail
