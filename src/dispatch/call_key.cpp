#include "dispatch/call_key.h"

#include <c10/core/DefaultDtype.h>

#include <bit>
#include <cstring>

#include "dispatch/grad_layout.h"

namespace tessera::detail {

namespace {

// Tags keep words of different kinds apart. They stand in the top byte, where
// no pointer or small number reaches.
enum Tag : uint64_t {
  kNone = 1ull << 56,
  kTensor = 2ull << 56,
  kPlainTensor = 3ull << 56,
  kInt = 4ull << 56,
  kDouble = 5ull << 56,
  kBool = 6ull << 56,
  kComplex = 7ull << 56,
  kList = 8ull << 56,
  kString = 9ull << 56,
  kDevice = 10ull << 56,
  kMetaTensor = 11ull << 56,
};

}  // namespace

CallKey::CallKey(const OpInfo& op, const Rule& rule)
    : ignores_numbers_(rule.ignores_numbers) {
  const auto dtype =
      static_cast<uint64_t>(c10::get_default_dtype_as_scalartype());
  add_word(dtype << 56 | reinterpret_cast<uint64_t>(&op));
}

CallKey::CallKey(
    const OpInfo& op, const Rule& rule, c10::ArrayRef<c10::IValue> args)
    : CallKey(op, rule) {
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& value = args[i];
    switch (op.args[i]) {
      case ArgKind::Tensor:
        if (value.isTensor()) {
          add(value.toTensor());
        } else {
          add_word(kNone);
        }
        break;
      case ArgKind::Number:
        add_number(value);
        break;
      case ArgKind::Unread:
        break;
      case ArgKind::TensorList:
      case ArgKind::Plain:
        add_value(value);
        break;
    }
  }
}

void CallKey::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    add_word(kNone);
  } else if (is_dtensor(tensor)) {
    if (distributed_meta(tensor).is_copied_view()) {
      distributed_meta(tensor).make_current();
    }
    has_new_leaf_ |= is_new_leaf(tensor);
    add_word(
        (tensor.is_meta() ? kMetaTensor : kTensor) |
        reinterpret_cast<uint64_t>(distributed_meta(tensor).spec.get()));
  } else {
    add_plain_tensor(tensor);
  }
}

void CallKey::add_plain_tensor(const at::Tensor& tensor) {
  has_plain_ |= tensor.dim() != 0;
  const bool number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  add_word(
      kPlainTensor | static_cast<uint64_t>(tensor.scalar_type()) |
      static_cast<uint64_t>(number) << 8 |
      static_cast<uint64_t>(tensor.dim()) << 16);
  for (const int64_t size : tensor.sizes()) {
    add_word(size);
  }
  for (const int64_t stride : tensor.strides()) {
    add_word(stride);
  }
}

void CallKey::add(const at::Scalar& number) {
  // The usual numbers, without making an IValue.
  if (ignores_numbers_ && !number.isSymbolic()) {
    switch (number.type()) {
      case at::kDouble:
        return add_word(kDouble);
      case at::kLong:
        return add_word(kInt);
      default:
        break;
    }
  }
  add_number(number);
}

void CallKey::add_number(const c10::IValue& value) {
  if (!ignores_numbers_ || value.isNone()) {
    add_value(value);
  } else if (value.isDouble()) {
    add_word(kDouble);
  } else if (value.isInt()) {
    add_word(kInt);
  } else if (value.isBool()) {
    add_word(kBool);
  } else if (value.isComplexDouble()) {
    add_word(kComplex);
  } else {
    cacheable_ = false;
  }
}

void CallKey::add_value(const c10::IValue& value) {
  if (value.isNone()) {
    add_word(kNone);
  } else if (value.isInt()) {
    add_word(kInt);
    add_word(value.toInt());
  } else if (value.isBool()) {
    add_word(kBool | static_cast<uint64_t>(value.toBool()));
  } else if (value.isDouble()) {
    add_word(kDouble);
    add_word(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isList()) {
    add_list(value);
  } else if (value.isDevice()) {
    const auto device = value.toDevice();
    add_word(
        kDevice | static_cast<uint64_t>(device.type()) << 16 |
        static_cast<uint8_t>(device.index()));
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    add_word(kString | text.size());
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, &text[i], std::min<size_t>(8, text.size() - i));
      add_word(word);
    }
  } else if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    add_word(kComplex);
    add_word(std::bit_cast<uint64_t>(number.real()));
    add_word(std::bit_cast<uint64_t>(number.imag()));
  } else {
    cacheable_ = false;
  }
}

void CallKey::add_list(const c10::IValue& value) {
  const auto list = value.toListRef();
  add_word(kList | list.size());
  for (const auto& element : list) {
    add_value(element);
  }
}

}  // namespace tessera::detail
