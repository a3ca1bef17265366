//! The two x86 instruction sets: AVX-512 and AVX2 with fused multiply-add.
//!
//! The kernels vouch for the pointers that they give. Nothing here can be reached on a machine without the
//! instructions: [`Avx512`] and [`Avx2`] are made by detection alone, and every function is reached through a
//! value of them.

use super::Lanes;
use std::arch::x86_64::*;

/// Runs `work` compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Runs `work` compiled for AVX2.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// The methods that are one instruction in either set.
macro_rules! straight {
    ($with:ident, $zero:ident, $load:ident, $splat:ident, $store:ident, $mul_add:ident, $add:ident) => {
        #[inline(always)]
        fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            // SAFETY: `self` was made by detection, so the machine has the instructions; in the functions below the caller
            // holds such a value.
            unsafe { $with(work) }
        }

        #[inline(always)]
        unsafe fn zero() -> Self::V {
            // SAFETY: as above.
            unsafe { $zero() }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            // SAFETY: as above; the caller vouches for the lanes read.
            unsafe { $load(from) }
        }

        #[inline(always)]
        unsafe fn splat(from: *const f32) -> Self::V {
            // SAFETY: as above; the caller vouches for the value.
            unsafe { $splat(*from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: Self::V) {
            // SAFETY: as above; the caller vouches for the lanes written.
            unsafe { $store(to, v) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // SAFETY: as above.
            unsafe { $mul_add(a, b, c) }
        }

        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: as above.
            unsafe { $add(a, b) }
        }

        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch never faults.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(16).cast());
            }
        }

        #[inline(always)]
        unsafe fn prefetch_near(at: *const f32) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
    };
}

/// 16 lanes, a 14 x 32 tile: 28 sums, 2 columns and 1 row value fill 31 of 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, on a machine that has all that [`with_avx512`] is compiled for: a virtual machine may hide
    /// any one of them.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        Avx2::detect().filter(|_| has).map(|_| Self(()))
    }
}

// SAFETY: only `detect` makes a value, and only where the machine has every instruction used here.
unsafe impl Lanes for Avx512 {
    type V = __m512;
    const WIDTH: usize = 16;
    const ROWS: usize = 14;

    straight! {
        with_avx512, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps, _mm512_fmadd_ps, _mm512_add_ps
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: as above; the caller vouches for both squares.
        unsafe {
            let mut r = [_mm512_setzero_ps(); 16];
            for (i, r) in r.iter_mut().enumerate() {
                *r = _mm512_loadu_ps(from.add(i * from_stride));
            }
            // Pairs, then fours, then quarters of registers, then halves.
            let mut a = [_mm512_setzero_ps(); 16];
            for i in 0..8 {
                a[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut b = [_mm512_setzero_ps(); 16];
            for i in 0..4 {
                for half in 0..2 {
                    let first = _mm512_castps_pd(a[4 * i + half]);
                    let second = _mm512_castps_pd(a[4 * i + half + 2]);
                    b[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
                    b[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
                }
            }
            let mut c = [_mm512_setzero_ps(); 16];
            for j in 0..4 {
                c[j] = _mm512_shuffle_f32x4::<0x88>(b[j], b[4 + j]);
                c[4 + j] = _mm512_shuffle_f32x4::<0xdd>(b[j], b[4 + j]);
                c[8 + j] = _mm512_shuffle_f32x4::<0x88>(b[8 + j], b[12 + j]);
                c[12 + j] = _mm512_shuffle_f32x4::<0xdd>(b[8 + j], b[12 + j]);
            }
            for j in 0..4 {
                Self::store(to.add(j * to_stride), _mm512_shuffle_f32x4::<0x88>(c[j], c[8 + j]));
            }
            for j in 0..4 {
                Self::store(to.add((4 + j) * to_stride), _mm512_shuffle_f32x4::<0x88>(c[4 + j], c[12 + j]));
            }
            for j in 0..4 {
                Self::store(to.add((8 + j) * to_stride), _mm512_shuffle_f32x4::<0xdd>(c[j], c[8 + j]));
            }
            for j in 0..4 {
                Self::store(to.add((12 + j) * to_stride), _mm512_shuffle_f32x4::<0xdd>(c[4 + j], c[12 + j]));
            }
        }
    }

    #[inline(always)]
    unsafe fn lookup(packed: *const u8, codes: &[f32; 16], scale: f32, to: *mut f32) {
        // SAFETY: as above; the caller vouches for 16 bytes and 32 values.
        unsafe {
            let table = _mm512_loadu_ps(codes.as_ptr());
            let scale = _mm512_set1_ps(scale);
            let (low, high) = split_codes(packed);
            for (half, codes) in [low, high].into_iter().enumerate() {
                let values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table);
                _mm512_storeu_ps(to.add(16 * half), _mm512_mul_ps(values, scale));
            }
        }
    }
}

/// 8 lanes, a 6 x 16 tile: 12 sums, 2 columns and 1 row value fill 15 of 16 registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, on a machine that has all that [`with_avx2`] is compiled for.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt");
        has.then_some(Self(()))
    }
}

// SAFETY: only `detect` makes a value, and only where the machine has every instruction used here.
unsafe impl Lanes for Avx2 {
    type V = __m256;
    const WIDTH: usize = 8;
    const ROWS: usize = 6;

    straight! {
        with_avx2, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm256_fmadd_ps, _mm256_add_ps
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: as above; the caller vouches for both squares.
        unsafe {
            let mut r = [_mm256_setzero_ps(); 8];
            for (i, r) in r.iter_mut().enumerate() {
                *r = _mm256_loadu_ps(from.add(i * from_stride));
            }
            let mut a = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut b = [_mm256_setzero_ps(); 8];
            for i in 0..2 {
                b[4 * i] = _mm256_shuffle_ps::<0x44>(a[4 * i], a[4 * i + 2]);
                b[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a[4 * i], a[4 * i + 2]);
                b[4 * i + 2] = _mm256_shuffle_ps::<0x44>(a[4 * i + 1], a[4 * i + 3]);
                b[4 * i + 3] = _mm256_shuffle_ps::<0xee>(a[4 * i + 1], a[4 * i + 3]);
            }
            for j in 0..4 {
                Self::store(to.add(j * to_stride), _mm256_permute2f128_ps::<0x20>(b[j], b[4 + j]));
            }
            for j in 0..4 {
                Self::store(to.add((4 + j) * to_stride), _mm256_permute2f128_ps::<0x31>(b[j], b[4 + j]));
            }
        }
    }

    #[inline(always)]
    unsafe fn lookup(packed: *const u8, codes: &[f32; 16], scale: f32, to: *mut f32) {
        // SAFETY: as above; the caller vouches for 16 bytes and 32 values.
        unsafe {
            let (below, above) = (Self::load(codes.as_ptr()), Self::load(codes.as_ptr().add(8)));
            let scale = _mm256_set1_ps(scale);
            let (low, high) = split_codes(packed);
            let eights = [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)];
            for (eighth, codes) in eights.into_iter().enumerate() {
                let index = _mm256_cvtepu8_epi32(codes);
                let lower = _mm256_permutevar8x32_ps(below, index);
                let upper = _mm256_permutevar8x32_ps(above, index);
                // Bit 3 of the code chooses the table's half; blendv looks at the sign bit.
                let choose = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
                let values = _mm256_blendv_ps(lower, upper, choose);
                _mm256_storeu_ps(to.add(8 * eighth), _mm256_mul_ps(values, scale));
            }
        }
    }
}

/// The 32 codes of 16 bytes, one a byte, in order.
#[inline(always)]
unsafe fn split_codes(packed: *const u8) -> (__m128i, __m128i) {
    // SAFETY: SSE2 is part of x86-64; the caller vouches for 16 bytes.
    unsafe {
        let raw = _mm_loadu_si128(packed.cast());
        let mask = _mm_set1_epi8(15);
        let first = _mm_and_si128(_mm_srli_epi16::<4>(raw), mask);
        let second = _mm_and_si128(raw, mask);
        (_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second))
    }
}
