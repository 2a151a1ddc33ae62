/* A vector as heads side by side: lane l belongs to head l % heads, for a power of two `heads` up to LANES.
 *
 * REPEATED  the values of all heads, as often as they fit
 * FOLD      the sum of every head's lanes, as a tree; with one head, of all lanes
 * CHOOSE    x where a > b, else y, lane by lane
 */

#undef CHOOSE

#if ISA_LEVEL == 2 && REAL_BITS == 32
#define CHOOSE(a, b, x, y) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x)
#elif ISA_LEVEL == 2
#define CHOOSE(a, b, x, y) _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_GT_OQ), y, x)
#elif ISA_LEVEL == 1 && REAL_BITS == 32
#define CHOOSE(a, b, x, y) _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ))
#elif ISA_LEVEL == 1
#define CHOOSE(a, b, x, y) _mm256_blendv_pd(y, x, _mm256_cmp_pd(a, b, _CMP_GT_OQ))
#else
#define CHOOSE(a, b, x, y) TYPED(chosen)(a, b, x, y)
INLINE V TYPED(chosen)(V a, V b, V x, V y)
{
    REAL left[LANES], right[LANES], yes[LANES], no[LANES];
    STORE(left, a);
    STORE(right, b);
    STORE(yes, x);
    STORE(no, y);
    for (int lane = 0; lane < LANES; lane++)
        no[lane] = left[lane] > right[lane] ? yes[lane] : no[lane];
    return LOAD(no);
}
#endif

#if ISA_LEVEL > 0 && REAL_BITS == 32
INLINE void TYPED(fold_256)(__m256 sum, const int heads, float *to)
{
    if (heads == 8) {
        _mm256_storeu_ps(to, sum);
        return;
    }
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    if (heads == 4) {
        _mm_storeu_ps(to, half);
        return;
    }
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    if (heads == 2)
        _mm_storel_pi((__m64 *)to, half);
    else
        _mm_store_ss(to, _mm_add_ss(half, _mm_movehdup_ps(half)));
}
#elif ISA_LEVEL > 0
INLINE void TYPED(fold_256)(__m256d sum, const int heads, double *to)
{
    if (heads == 4) {
        _mm256_storeu_pd(to, sum);
        return;
    }
    __m128d half = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    if (heads == 2)
        _mm_storeu_pd(to, half);
    else
        _mm_store_sd(to, _mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}
#endif

INLINE void TYPED(fold)(V sum, const int heads, REAL *to)
{
#if ISA_LEVEL == 2
    if (heads == LANES)
        STORE(to, sum);
    else
#if REAL_BITS == 32
        TYPED(fold_256)(_mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1)), heads, to);
#else
        TYPED(fold_256)(_mm256_add_pd(_mm512_castpd512_pd256(sum), _mm512_extractf64x4_pd(sum, 1)), heads, to);
#endif
#elif ISA_LEVEL == 1
    TYPED(fold_256)(sum, heads, to);
#else
    REAL lanes[LANES];
    STORE(lanes, sum);
    for (int width = LANES / 2; width >= heads; width /= 2)
        for (int lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    for (int head = 0; head < heads; head++)
        to[head] = lanes[head];
#endif
}

INLINE V TYPED(repeated)(const REAL *values, const int heads)
{
    if (heads == 1)
        return SPREAD(values[0]);
    if (heads == LANES)
        return LOAD(values);
#if ISA_LEVEL == 2 && REAL_BITS == 32
    if (heads == 8)
        return _mm512_broadcast_f32x8(_mm256_loadu_ps(values));
    if (heads == 4)
        return _mm512_broadcast_f32x4(_mm_loadu_ps(values));
#elif ISA_LEVEL == 2
    if (heads == 4)
        return _mm512_broadcast_f64x4(_mm256_loadu_pd(values));
#elif ISA_LEVEL == 1 && REAL_BITS == 32
    if (heads == 4)
        return _mm256_broadcast_ps((const __m128 *)values);
#endif
    REAL lanes[LANES];
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = values[lane % heads];
    return LOAD(lanes);
}
