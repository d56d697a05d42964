#include "api/checkpoint/mapped.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "api/checkpoint/bus_error.h"
#include "api/checkpoint/checksum.h"
#include "api/checkpoint/file_window.h"

namespace tessera::detail {

namespace {

// A range of addresses; unmapped at the end.
class Mapping {
 public:
  explicit Mapping(int64_t bytes)
      : bytes_(bytes),
        data_(::mmap(
            nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    TORCH_CHECK(
        data_ != MAP_FAILED,
        "[load_plain] cannot reserve ",
        bytes,
        " bytes of addresses");
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return static_cast<char*>(data_); }

  // Private: whoever writes gets pages of their own.
  bool map(int64_t at, int64_t bytes, int fd, int64_t offset) {
    return ::mmap(
               data() + at,
               bytes,
               PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_FIXED,
               fd,
               offset) != MAP_FAILED;
  }

 private:
  int64_t bytes_;
  void* data_;
};

int64_t piece_bytes(const SavedTensor& saved, const Piece& piece) {
  return piece.box.numel() * saved.item_bytes();
}

// The pieces in the order of rows, if they are rows.
std::vector<const Piece*> pieces_by_row(const SavedTensor& saved) {
  std::vector<const Piece*> pieces;
  for (const auto& piece : saved.pieces) {
    if (piece.box.numel() == 0) continue;
    for (int64_t d = 1; d < piece.box.dim(); ++d) {
      if (piece.box.size[d] != saved.shape[d]) return {};
    }
    pieces.push_back(&piece);
  }
  std::sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) {
    return a->box.dim() > 0 && a->box.begin[0] < b->box.begin[0];
  });
  return pieces;
}

// Throws unless the file has all the bytes of the piece, now too. `readable`:
// whether they could be read where they are mapped.
void check_reaches(
    const Source& source,
    const std::string& name,
    const Piece& piece,
    int64_t bytes,
    bool readable) {
  TORCH_CHECK(
      readable && reaches(source.file(piece.file, name), piece.offset + bytes),
      "[load] ",
      source.file_path(piece.file),
      ", which holds a part of tensor '",
      name,
      "', was truncated while it was being mapped");
}

void verify_mapped(
    const Source& source,
    const std::string& name,
    const SavedTensor& saved,
    const Piece& piece,
    const char* data) {
  const int64_t bytes = piece_bytes(saved, piece);
  for (size_t c = 0; c < piece.checksums.size(); ++c) {
    const int64_t from = static_cast<int64_t>(c) * kChunkBytes;
    const int64_t size = std::min(kChunkBytes, bytes - from);
    uint64_t found = 0;
    check_reaches(source, name, piece, bytes, survives_bus_error([&] {
                    found = checksum(data + from, size);
                  }));
    TORCH_CHECK(
        found == piece.checksums[c],
        "[load] ",
        source.file_path(piece.file),
        " is damaged: bytes ",
        piece.offset + from,
        " to ",
        piece.offset + from + size,
        ", which hold a part of tensor '",
        name,
        "', have another checksum than was written");
  }
  check_reaches(source, name, piece, bytes, true);
}

}  // namespace

std::optional<at::Tensor> map_tensor(
    const Source& source, const std::string& name, const SavedTensor& saved) {
  const auto pieces = pieces_by_row(saved);
  if (pieces.empty()) return std::nullopt;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  // How far into its first page the tensor begins.
  const int64_t shift = pieces[0]->offset % page;
  if (shift % saved.item_bytes() != 0) return std::nullopt;
  int64_t total = shift;
  for (const auto* piece : pieces) {
    const bool first = piece == pieces.front();
    if (!first && (piece->offset % page != 0 || total % page != 0)) {
      return std::nullopt;
    }
    total += piece_bytes(saved, *piece);
  }
  const auto mapping = std::make_shared<Mapping>(total);
  int64_t at = 0;
  for (const auto* piece : pieces) {
    const int64_t before = piece == pieces.front() ? shift : 0;
    const int64_t bytes = piece_bytes(saved, *piece) + before;
    const int fd = source.file(piece->file, name);
    if (!mapping->map(at, bytes, fd, piece->offset - before)) {
      return std::nullopt;  // a file system that maps no files
    }
    verify_mapped(source, name, saved, *piece, mapping->data() + at + before);
    at += bytes;
  }
  return at::from_blob(
      mapping->data() + shift,
      saved.shape,
      [mapping](void*) {},
      at::TensorOptions(saved.dtype));
}

}  // namespace tessera::detail
