/* The exponential of a softmax. */

#ifndef SANCUS_EXPONENTIAL_H
#define SANCUS_EXPONENTIAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* exp for x <= 0, within 2 units of the last place; 0 below the smallest normal number. Branch-free, so that
 * the compiler makes vectors of it. */
static inline __attribute__((always_inline)) float exp_f32(float x)
{
    const float shift = 12582912.0f; /* 1.5 2^23: adding it rounds to a whole number */
    float clamped = x < -104.0f ? -104.0f : x;
    float shifted = clamped * 1.44269504f + shift, power = shifted - shift;
    float r = clamped - power * 0.693359375f - power * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits, offset;
    memcpy(&bits, &shifted, 4);
    memcpy(&offset, &shift, 4);
    bits = (bits - offset + 127u) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return power < -126.0f ? 0.0f : p * scale;
}

static inline __attribute__((always_inline)) double exp_f64(double x)
{
    return exp(x);
}

#endif
