#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>

#include "kernels/lookup/embedding_index.h"
#include "kernels/lookup/lookup_kernels_cpu.h"

namespace tessera::detail {
namespace {

constexpr int64_t kCacheLine = 64;
// Longer rows are left to the hardware, which follows a row once it is begun.
constexpr int64_t kPrefetchBytes = 8 * kCacheLine;
// Fewer bytes than this are not worth another thread.
constexpr int64_t kGrainBytes = 64 * 1024;

// A table as bytes. `column_stride` is in bytes too.
struct Table {
  const char* data;
  int64_t rows;
  int64_t first_row;
  int64_t table_rows;
  int64_t row_stride;
  int64_t column_stride;
  int64_t columns;
  int64_t item;
};

void prefetch_row(const char* row, int64_t bytes) {
  bytes = std::min(bytes, kPrefetchBytes);
  for (int64_t at = 0; at < bytes; at += kCacheLine) {
    __builtin_prefetch(row + at);
  }
}

// Copies a row whose items do not lie side by side.
void copy_items(char* out, const char* row, const Table& table) {
  for (int64_t column = 0; column < table.columns; ++column) {
    std::memcpy(out, row, table.item);
    out += table.item;
    row += table.column_stride;
  }
}

// Writes the rows of indices [begin, end), and reports the first bad index of
// them.
template <bool kDense, class Index>
void lookup_range(
    const Table& table,
    const Index* indices,
    int64_t begin,
    int64_t end,
    char* out,
    FirstPlace& bad) {
  const int64_t bytes = table.columns * table.item;
  out += begin * bytes;
  for (int64_t i = begin; i < end; ++i, out += bytes) {
    if (kDense && i + kPrefetchRows < end) {
      const int64_t next =
          offset_from(table.first_row, indices[i + kPrefetchRows]);
      if (is_inside(next, table.rows)) {
        prefetch_row(table.data + next * table.row_stride, bytes);
      }
    }
    const int64_t row = offset_from(table.first_row, indices[i]);
    if (is_inside(row, table.rows)) {
      const char* source = table.data + row * table.row_stride;
      if constexpr (kDense) {
        std::memcpy(out, source, bytes);
      } else {
        copy_items(out, source, table);
      }
    } else if (is_inside(indices[i], table.table_rows)) {
      std::memset(out, 0, bytes);
    } else {
      bad.report(i);
      return;
    }
  }
}

}  // namespace

at::Tensor lookup_forward_cpu(const at::Tensor& weight, const HeldRows& held) {
  const at::Tensor& indices = held.indices;
  const int64_t columns = weight.size(1);
  c10::SmallVector<int64_t, 6> sizes(
      indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(columns);
  // Not at::empty, which would be a quarter of the time of a small lookup.
  at::Tensor out(at::detail::empty_cpu(
      sizes,
      weight.scalar_type(),
      /*pin_memory=*/false,
      /*memory_format_opt=*/std::nullopt));

  const int64_t item = static_cast<int64_t>(weight.element_size());
  const bool dense = columns <= 1 || weight.stride(1) == 1;
  // Rows without columns have no memory, and null is nothing to copy from or
  // to, not even nothing.
  char nothing = 0;
  const Table table{
      columns == 0 ? &nothing
                   : static_cast<const char*>(weight.const_data_ptr()),
      held.rows,
      held.first_row,
      held.table_rows,
      weight.stride(0) * item,
      weight.stride(1) * item,
      columns,
      item};
  const auto ordered = indices.expect_contiguous();
  char* data =
      columns == 0 ? &nothing : static_cast<char*>(out.mutable_data_ptr());
  const int64_t grain =
      std::max<int64_t>(1, kGrainBytes / (columns * item + kCacheLine));

  with_index_data(*ordered, [&](const auto* index) {
    FirstPlace bad;
    at::parallel_for(
        0, indices.numel(), grain, [&](int64_t begin, int64_t end) {
          if (dense) {
            lookup_range<true>(table, index, begin, end, data, bad);
          } else {
            lookup_range<false>(table, index, begin, end, data, bad);
          }
        });
    if (bad) {
      throw_outside_table(index[bad.get()], held.table_rows);
    }
  });
  return out;
}

}  // namespace tessera::detail
