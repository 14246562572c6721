// One back end, compiled once for each processor with -DMLK_BACKEND_...; rule 8 is why all but the table is hidden.
#include "rows.h"

#if defined(MLK_BACKEND_AVX512)
#define MLK_TABLE backend_avx512
#define MLK_NAME "avx512"
#elif defined(MLK_BACKEND_AVX2)
#define MLK_TABLE backend_avx2
#define MLK_NAME "avx2"
#elif defined(MLK_BACKEND_NEON)
#define MLK_TABLE backend_neon
#define MLK_NAME "neon"
#else
#define MLK_TABLE backend_plain
#define MLK_NAME "plain"
#endif

namespace mlk {
extern const Backend MLK_TABLE;
const Backend MLK_TABLE = {MLK_NAME, {PANELS_OF[1], PANELS_OF[2], PANELS_OF[3], PANELS_OF[6]},
                           product,  norm,
                           place,    attend,
                           top,      exponentials,
                           divide,   functions};
}  // namespace mlk
