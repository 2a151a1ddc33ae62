/* The hash of dropout: the finaliser of MurmurHash3, 31 bits of it. masks.py states the same in torch. */

#ifndef SANCUS_NOISE_H
#define SANCUS_NOISE_H

#include <stdint.h>

static inline __attribute__((always_inline)) int32_t dropout_noise(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return (int32_t)((x ^ (x >> 16)) & 0x7FFFFFFFu);
}

#endif
