/* Includes ROWS for float and double values and for 32- and 64-bit column numbers.
 *
 * ROWS names its functions TYPED(x), for example spmm_f32_i64_avx2.
 */

#define TYPED(x) NAME(JOIN(x, SUFFIX))

#define REAL_BITS 32
#define INDEX int32_t
#define SUFFIX f32_i32
#include "vector.h"
#include ROWS
#undef INDEX
#undef SUFFIX

#define INDEX int64_t
#define SUFFIX f32_i64
#include ROWS
#undef INDEX
#undef SUFFIX
#undef REAL_BITS

#define REAL_BITS 64
#define INDEX int32_t
#define SUFFIX f64_i32
#include "vector.h"
#include ROWS
#undef INDEX
#undef SUFFIX

#define INDEX int64_t
#define SUFFIX f64_i64
#include ROWS
#undef INDEX
#undef SUFFIX
#undef REAL_BITS

#undef TYPED
