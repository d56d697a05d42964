#include "api/checkpoint/data_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "api/checkpoint/bus_error.h"
#include "api/checkpoint/checksum.h"
#include "api/checkpoint/system_calls.h"

namespace tessera::detail {

namespace {

constexpr int64_t kRowsBytes = int64_t{16} << 20;

// A block of the file that is written by one call from its start becomes one
// huge page of the page cache, where the system has such. A load then maps it
// at once instead of page by page.
constexpr int64_t kBlockBytes = int64_t{2} << 20;

// The chunks of a piece, hashed and written while they are in the cache.
class ChunkWriter {
 public:
  ChunkWriter(OutputFile& file, std::vector<int64_t>& sums)
      : file_(file), sums_(sums) {}

  void append(const char* data, int64_t bytes) {
    while (bytes > 0) {
      if (rest_.empty() && bytes >= kChunkBytes) {
        chunk(data, kChunkBytes);
        data += kChunkBytes;
        bytes -= kChunkBytes;
        continue;
      }
      const auto held = static_cast<int64_t>(rest_.size());
      const int64_t taken = std::min(kChunkBytes - held, bytes);
      rest_.resize(held + taken);
      read([&] { std::memcpy(rest_.data() + held, data, taken); });
      data += taken;
      bytes -= taken;
      if (static_cast<int64_t>(rest_.size()) == kChunkBytes) flush();
    }
    // The memory is the caller's.
    write_pending(pending_bytes_);
  }

  void flush() {
    if (rest_.empty()) return;
    chunk(rest_.data(), static_cast<int64_t>(rest_.size()));
    write_pending(pending_bytes_);
    rest_.clear();
  }

 private:
  // A tensor may be mapped from a file (load_plain), and be saved or merged.
  static void read(c10::function_ref<void()> body) {
    TORCH_CHECK(
        survives_bus_error(body),
        "[save] cannot read a tensor: it is mapped from a file that was "
        "truncated meanwhile");
  }

  void chunk(const char* data, int64_t bytes) {
    uint64_t sum = 0;
    read([&] { sum = checksum(data, bytes); });
    sums_.push_back(static_cast<int64_t>(sum));
    if (pending_ + pending_bytes_ != data) {
      write_pending(pending_bytes_);
      pending_ = data;
    }
    pending_bytes_ += bytes;
    // Up to the end of the last block that is full.
    const int64_t end = file_.end() + pending_bytes_;
    write_pending(std::max<int64_t>(0, pending_bytes_ - end % kBlockBytes));
  }

  void write_pending(int64_t bytes) {
    file_.append(pending_, bytes);
    pending_ += bytes;
    pending_bytes_ -= bytes;
  }

  OutputFile& file_;
  std::vector<int64_t>& sums_;
  std::string rest_;
  // Hashed and not written yet.
  const char* pending_ = nullptr;
  int64_t pending_bytes_ = 0;
};

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

const char* bytes_in(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

void append_piece(ChunkWriter& out, const at::Tensor& piece) {
  if (piece.numel() == 0) return;
  if (is_plain_memory(piece)) {
    out.append(bytes_in(piece), static_cast<int64_t>(piece.nbytes()));
    return;
  }
  const int64_t rows = piece.dim() > 0 ? piece.size(0) : 1;
  const auto row_bytes = static_cast<int64_t>(piece.nbytes()) / rows;
  const int64_t step = std::max<int64_t>(1, kRowsBytes / row_bytes);
  for (int64_t row = 0; row < rows; row += step) {
    const auto part = piece.dim() > 0
                          ? piece.narrow(0, row, std::min(step, rows - row))
                          : piece;
    const auto packed =
        part.resolve_conj().resolve_neg().to(at::kCPU).contiguous();
    out.append(bytes_in(packed), static_cast<int64_t>(packed.nbytes()));
  }
}

}  // namespace

std::vector<int64_t> write_data_file(
    const std::string& path,
    const PlannedFile& plan,
    const std::vector<at::Tensor>& pieces) {
  OutputFile file(path);
  file.append(plan.header.data(), plan.header.size());
  std::vector<int64_t> sums;
  ChunkWriter chunks(file, sums);
  for (const auto& piece : pieces) {
    append_piece(chunks, piece);
    chunks.flush();
  }
  file.finish();
  return sums;
}

}  // namespace tessera::detail
