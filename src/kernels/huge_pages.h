// Huge pages for large tables. Rows that are looked up lie anywhere, so that
// with pages of 4 KiB nearly every row costs a walk through the page tables: on
// a virtual machine more than reading the row.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::detail {

// Asks the system for huge pages behind the memory of a tensor on the CPU.
// Best before it is first written; the contents stay as they are. True if the
// system agreed; it may refuse, and nothing is asked for less than 4 MiB.
bool prefer_huge_pages(const at::Tensor& tensor);

// A contiguous copy in memory of its own, on huge pages if they can be had.
at::Tensor copy_on_huge_pages(const at::Tensor& tensor);

}  // namespace tessera::detail
