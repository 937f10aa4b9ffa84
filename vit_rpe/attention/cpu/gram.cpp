// Algorithm 1 for masks M = F F^T with sparse F, fused: no L x (M D) matrix is read or written but
// the one between the two products, and that one a row at a time.
//
// Shapes: L tokens, F is (L, N) with E entries, H heads, M features, D value channels. A row of the
// matrix between (one column of F) has H x M x D sums and H x M normalizers, padded to whole
// vectors. All tensors hold the heads of a token side by side. Each row is summed in the order of
// its entries, by one thread: the same bits whatever the number of threads.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "grid.h"
#include "vectors.h"

namespace {

using namespace vit_rpe;

constexpr int64_t kBytes = 32;       // of a vector
constexpr int64_t kAhead = 6;        // entries whose rows are fetched ahead
constexpr int64_t kChunk = 1 << 14;  // entries that a thread takes at once

// Sizes of a call, in numbers; D and the normalizers are padded to whole vectors.
struct Sizes {
  int64_t heads, features, channels, normalizers;

  Sizes(const Tensor& w, const Tensor& y, int64_t width)
      : heads(w.size(1)),
        features(w.size(2)),
        channels(y.size(2)),
        normalizers(quotient(heads * features, width) * width) {}

  int64_t sums() const { return heads * features * channels; }
  int64_t row() const { return sums() + normalizers; }
};

// A sparse matrix, compressed by rows.
template <typename scalar>
struct Rows {
  const int32_t *starts, *columns;
  const scalar* values;
  int64_t count;

  Rows(const Tensor& starts, const Tensor& columns, const Tensor& values)
      : starts(starts.const_data_ptr<int32_t>()),
        columns(columns.const_data_ptr<int32_t>()),
        values(values.const_data_ptr<scalar>()),
        count(starts.size(0) - 1) {}

  // Calls `work(row)` for all rows: threads take parts with about as many entries.
  template <typename Work>
  void each(const Work& work) const {
    const int64_t entries = starts[count], parts = quotient(entries + count, kChunk);
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = first(begin, parts), last = first(end, parts); row < last; ++row) {
        work(row);
      }
    });
  }

 private:
  // The first row of a part; a row counts as one more entry, lest empty ones be all in one part.
  int64_t first(int64_t part, int64_t parts) const {
    const int64_t wanted = quotient(part * (starts[count] + count), parts);
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (starts[middle] + middle < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

inline void fetch(const void* x, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(x) + i);
  }
}

// --- Z = F^T (w y^T), row by row ----------------------------------------------------------------

// Adds `w[m] y` for some features m and some vectors of channels, over the entries of a row.
template <typename scalar, int F, int U>
void outer_block(const Rows<scalar>& matrix, int64_t row, const scalar* w, int64_t w_stride,
                 const scalar* y, int64_t y_stride, scalar* out, int64_t channels) {
  using V = typename Vector<scalar, kBytes>::type;
  constexpr int64_t width = Vector<scalar, kBytes>::width;
  V sums[F][U] = {};
  for (int64_t e = matrix.starts[row]; e < matrix.starts[row + 1]; ++e) {
    const int64_t j = matrix.columns[e];
    V scaled[U];
    for (int u = 0; u < U; ++u) {
      scaled[u] = matrix.values[e] * vector_at<scalar, kBytes>(y + j * y_stride + u * width);
    }
    for (int f = 0; f < F; ++f) {
      for (int u = 0; u < U; ++u) {
        sums[f][u] += w[j * w_stride + f] * scaled[u];
      }
    }
  }
  for (int f = 0; f < F; ++f) {
    for (int u = 0; u < U; ++u) {
      vector_at<scalar, kBytes>(out + f * channels + u * width) = sums[f][u];
    }
  }
}

template <typename scalar, int F>
void outer_features(int64_t vectors, const Rows<scalar>& matrix, int64_t row, const scalar* w,
                    int64_t w_stride, const scalar* y, int64_t y_stride, scalar* out,
                    int64_t channels) {
  constexpr int64_t width = Vector<scalar, kBytes>::width;
  while (vectors > 0) {
    int64_t done = 1;
    auto run = [&](auto block) {
      constexpr int U = decltype(block)::value;
      outer_block<scalar, F, U>(matrix, row, w, w_stride, y, y_stride, out, channels);
      done = U;
    };
    if (F <= 1 && vectors >= 8) {
      run(std::integral_constant<int, F <= 1 ? 8 : 1>());
    } else if (F <= 2 && vectors >= 4) {
      run(std::integral_constant<int, F <= 2 ? 4 : 1>());
    } else if (F <= 4 && vectors >= 2) {
      run(std::integral_constant<int, F <= 4 ? 2 : 1>());
    } else {
      run(std::integral_constant<int, 1>());
    }
    vectors -= done, y += done * width, out += done * width;
  }
}

// One row of Z: sums, then the weighted sums of `normalizer` (L, normalizers).
template <typename scalar>
void outer_row(const Sizes& sizes, const Rows<scalar>& matrix, int64_t row, const scalar* w,
               const scalar* y, const scalar* normalizer, scalar* out) {
  constexpr int64_t width = Vector<scalar, kBytes>::width;
  const int64_t m = sizes.features, d = sizes.channels, vectors = d / width;
  const int64_t w_stride = sizes.heads * m, y_stride = sizes.heads * d;
  for (int64_t e = matrix.starts[row], end = matrix.starts[row + 1]; e < end; ++e) {
    fetch(y + matrix.columns[e] * y_stride, y_stride * sizeof(scalar));
    fetch(w + matrix.columns[e] * w_stride, w_stride * sizeof(scalar));
  }
  for (int64_t h = 0; h < sizes.heads; ++h) {
    for (int64_t f = 0; f < m;) {
      const scalar *wf = w + h * m + f, *yh = y + h * d;
      scalar* to = out + (h * m + f) * d;
      if (m - f >= 8) {
        outer_features<scalar, 8>(vectors, matrix, row, wf, w_stride, yh, y_stride, to, d), f += 8;
      } else if (m - f >= 4) {
        outer_features<scalar, 4>(vectors, matrix, row, wf, w_stride, yh, y_stride, to, d), f += 4;
      } else if (m - f >= 2) {
        outer_features<scalar, 2>(vectors, matrix, row, wf, w_stride, yh, y_stride, to, d), f += 2;
      } else {
        outer_features<scalar, 1>(vectors, matrix, row, wf, w_stride, yh, y_stride, to, d), f += 1;
      }
    }
  }
  for (int64_t c = 0; c < sizes.normalizers; c += width) {
    typename Vector<scalar, kBytes>::type sum = {};
    for (int64_t e = matrix.starts[row]; e < matrix.starts[row + 1]; ++e) {
      sum += matrix.values[e] * vector_at<scalar, kBytes>(normalizer + matrix.columns[e] * sizes.normalizers + c);
    }
    vector_at<scalar, kBytes>(out + sizes.sums() + c) = sum;
  }
}

// --- F Z, row by row, contracted at once --------------------------------------------------------

template <typename scalar, int U>
void sum_block(const Rows<scalar>& matrix, int64_t row, const scalar* z, int64_t stride,
               scalar* out) {
  using V = typename Vector<scalar, kBytes>::type;
  constexpr int64_t width = Vector<scalar, kBytes>::width;
  V sums[U] = {};
  const int64_t end = matrix.starts[row + 1];
  for (int64_t e = matrix.starts[row]; e < end; ++e) {
    const scalar* from = z + matrix.columns[e] * stride;
    fetch(z + matrix.columns[std::min(e + kAhead, end - 1)] * stride, U * kBytes);
    for (int u = 0; u < U; ++u) {
      sums[u] += matrix.values[e] * vector_at<scalar, kBytes>(from + u * width);
    }
  }
  for (int u = 0; u < U; ++u) {
    vector_at<scalar, kBytes>(out + u * width) = sums[u];
  }
}

// One row of F Z.
template <typename scalar>
void sum_row(const Rows<scalar>& matrix, int64_t row, const scalar* z, int64_t numbers,
             scalar* out) {
  constexpr int64_t width = Vector<scalar, kBytes>::width;
  for (int64_t c = 0; c < numbers;) {
    const int64_t vectors = (numbers - c) / width;
    auto run = [&](auto block) {
      constexpr int U = decltype(block)::value;
      sum_block<scalar, U>(matrix, row, z + c, numbers, out + c);
      c += U * width;
    };
    if (vectors >= 8) {
      run(std::integral_constant<int, 8>());
    } else if (vectors >= 4) {
      run(std::integral_constant<int, 4>());
    } else if (vectors >= 2) {
      run(std::integral_constant<int, 2>());
    } else {
      run(std::integral_constant<int, 1>());
    }
  }
}

// sums (H, D) = sum_m w[m] R[m, :], and the same of the normalizers, (H,).
template <typename scalar>
void contract(const Sizes& sizes, const scalar* r, const scalar* w, scalar* sums, scalar* total) {
  const int64_t m = sizes.features, d = sizes.channels;
  const scalar* normalizer = r + sizes.sums();
  for (int64_t h = 0; h < sizes.heads; ++h) {
    scalar* out = sums + h * d;
    std::fill(out, out + d, scalar(0));
    scalar sum = 0;
    for (int64_t f = h * m; f < (h + 1) * m; ++f) {
      const scalar *line = r + f * d, weight = w[f];
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) {
        out[c] += weight * line[c];
      }
      sum += weight * normalizer[f];
    }
    if (total) {
      total[h] = sum;
    }
  }
}

// dots (H, M): R[m, :] . y plus the normalizer times `last` (H,), or 1 without it.
template <typename scalar>
void dot(const Sizes& sizes, const scalar* r, const scalar* y, const scalar* last, scalar* dots) {
  const int64_t m = sizes.features, d = sizes.channels;
  const scalar* normalizer = r + sizes.sums();
  for (int64_t h = 0; h < sizes.heads; ++h) {
    for (int64_t f = h * m; f < (h + 1) * m; ++f) {
      const scalar *line = r + f * d, *yh = y + h * d;
      scalar sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < d; ++c) {
        sum += line[c] * yh[c];
      }
      dots[f] = sum + normalizer[f] * (last ? last[h] : scalar(1));
    }
  }
}

// --- the operators ------------------------------------------------------------------------------

Tensor padded(const Tensor& x, int64_t width) {
  const int64_t missing = -x.size(-1) & (width - 1);
  return missing ? at::constant_pad_nd(x, {0, missing}) : x.contiguous();
}

// The features as the normalizers are gathered: (L, H M) to whole vectors.
Tensor normalizers(const Tensor& w, int64_t width) { return padded(w.flatten(1), width); }

template <typename scalar>
Tensor outer(const Rows<scalar>& matrix, const Tensor& w, const Tensor& y,
             const Tensor& normalizer) {
  const Sizes sizes(w, y, Vector<scalar, kBytes>::width);
  Tensor z = at::empty({matrix.count, sizes.row()}, w.options());
  const scalar *w_data = w.const_data_ptr<scalar>(), *y_data = y.const_data_ptr<scalar>();
  const scalar* normalizer_data = normalizer.const_data_ptr<scalar>();
  scalar* z_data = z.data_ptr<scalar>();
  matrix.each([&](int64_t row) {
    outer_row(sizes, matrix, row, w_data, y_data, normalizer_data, z_data + row * sizes.row());
  });
  return z;
}

// (sums (L, H, D), total (L, H), rows (L, H M D + normalizers) or empty) of attention undivided.
std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& starts, const Tensor& columns,
                                           const Tensor& values, const Tensor& t_starts,
                                           const Tensor& t_columns, const Tensor& t_values,
                                           bool keep) {
  at::AutoDispatchBelowADInplaceOrView plain;
  Tensor sums, total, rows;
  AT_DISPATCH_FLOATING_TYPES(v.scalar_type(), "sparse_gram", [&] {
    constexpr int64_t width = Vector<scalar_t, kBytes>::width;
    const Tensor w = q.contiguous(), from = k.contiguous(), y = padded(v, width);
    const Rows<scalar_t> matrix(starts, columns, values), across(t_starts, t_columns, t_values);
    const Tensor z = outer(across, from, y, normalizers(from, width));
    const Sizes sizes(w, y, width);
    sums = at::empty(y.sizes(), y.options());
    total = at::empty({y.size(0), y.size(1)}, y.options());
    rows = at::empty({keep ? y.size(0) : 0, sizes.row()}, y.options());
    const scalar_t *w_data = w.const_data_ptr<scalar_t>(), *z_data = z.const_data_ptr<scalar_t>();
    scalar_t *sums_data = sums.data_ptr<scalar_t>(), *total_data = total.data_ptr<scalar_t>();
    scalar_t* rows_data = keep ? rows.data_ptr<scalar_t>() : nullptr;
    matrix.each([&](int64_t row) {
      thread_local std::vector<scalar_t> buffer;
      buffer.resize(sizes.row());
      scalar_t* r = keep ? rows_data + row * sizes.row() : buffer.data();
      sum_row(matrix, row, z_data, sizes.row(), r);
      contract(sizes, r, w_data + row * sizes.heads * sizes.features,
               sums_data + row * sizes.heads * sizes.channels, total_data + row * sizes.heads);
    });
    sums = sums.narrow(-1, 0, v.size(-1));
  });
  return {sums, total, rows};
}

// The gradients of q, k, v, from those of the sums and of the totals; `rows` may be empty.
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& grad_total,
                                            const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& rows, const Tensor& starts,
                                            const Tensor& columns, const Tensor& values,
                                            const Tensor& t_starts, const Tensor& t_columns,
                                            const Tensor& t_values) {
  at::AutoDispatchBelowADInplaceOrView plain;
  Tensor dq, dk, dv;
  AT_DISPATCH_FLOATING_TYPES(v.scalar_type(), "sparse_gram_backward", [&] {
    constexpr int64_t width = Vector<scalar_t, kBytes>::width;
    const Tensor w = q.contiguous(), from = k.contiguous(), y = padded(v, width);
    const Tensor g = padded(grad, width), last = grad_total.contiguous();
    const Rows<scalar_t> matrix(starts, columns, values), across(t_starts, t_columns, t_values);
    const Sizes sizes(w, y, width);
    const int64_t features = sizes.heads * sizes.features, channels = sizes.heads * sizes.channels;
    dq = at::empty(q.sizes(), y.options());
    dk = at::empty(k.sizes(), y.options());
    dv = at::empty(y.sizes(), y.options());
    const scalar_t *y_data = y.const_data_ptr<scalar_t>(), *g_data = g.const_data_ptr<scalar_t>();
    const scalar_t* last_data = last.const_data_ptr<scalar_t>();
    const scalar_t* k_data = from.const_data_ptr<scalar_t>();
    scalar_t *dq_data = dq.data_ptr<scalar_t>(), *dk_data = dk.data_ptr<scalar_t>();
    scalar_t* dv_data = dv.data_ptr<scalar_t>();

    {  // what is made again is gone before the gradients of it are made
      const bool kept = rows.size(0) > 0;
      const Tensor z = kept ? rows : outer(across, from, y, normalizers(from, width));
      const scalar_t* z_data = z.const_data_ptr<scalar_t>();
      matrix.each([&](int64_t row) {
        thread_local std::vector<scalar_t> buffer;
        buffer.resize(sizes.row());
        const scalar_t* r = z_data + row * sizes.row();
        if (!kept) {
          sum_row(matrix, row, z_data, sizes.row(), buffer.data());
          r = buffer.data();
        }
        dot(sizes, r, g_data + row * channels, last_data + row * sizes.heads,
            dq_data + row * features);
      });
    }

    const Tensor dz = outer(across, w, g, normalizers(at::mul(w, last.unsqueeze(-1)), width));
    const scalar_t* dz_data = dz.const_data_ptr<scalar_t>();
    matrix.each([&](int64_t row) {
      thread_local std::vector<scalar_t> buffer;
      buffer.resize(sizes.row());
      scalar_t* r = buffer.data();
      sum_row(matrix, row, dz_data, sizes.row(), r);
      contract(sizes, r, k_data + row * features, dv_data + row * channels,
               static_cast<scalar_t*>(nullptr));
      dot(sizes, r, y_data + row * channels, static_cast<const scalar_t*>(nullptr),
          dk_data + row * features);
    });
    dv = dv.narrow(-1, 0, v.size(-1));
  });
  return {dq, dk, dv};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(vit_rpe, m) {
  m.def(
      "sparse_gram(Tensor q, Tensor k, Tensor v, Tensor starts, Tensor columns, Tensor values,"
      " Tensor t_starts, Tensor t_columns, Tensor t_values, bool keep)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "sparse_gram_backward(Tensor grad, Tensor grad_total, Tensor q, Tensor k, Tensor v,"
      " Tensor rows, Tensor starts, Tensor columns, Tensor values, Tensor t_starts,"
      " Tensor t_columns, Tensor t_values) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(vit_rpe, CPU, m) {
  m.impl("sparse_gram", TORCH_FN(forward));
  m.impl("sparse_gram_backward", TORCH_FN(backward));
}
