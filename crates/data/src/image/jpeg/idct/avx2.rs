//! The inverse cosine transform with AVX2: eight columns at once, two products an instruction.
//!
//! In come and out go what [`super::Portable`] takes and gives. The rotations of the method are regrouped so that each
//! is one multiply-add of a pair of rows; sums of products are exact in 32 bits, so the regrouping changes no bit.

use super::{
    Block, CONST_BITS, F_0_298, F_0_390, F_0_541, F_0_765, F_0_899, F_1_175, F_1_501, F_1_847, F_1_961,
    F_2_053, F_2_562, F_3_072, InverseDct, PASS_BITS, Work,
};
use pulp::{NullaryFnOnce, cast, x86::V3};
use std::arch::x86_64::{__m128i, __m256i};

/// Proof that the machine has AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2(V3);

impl Avx2 {
    pub fn try_new() -> Option<Self> {
        V3::try_new().map(Self)
    }

    /// Runs work that is compiled for AVX2.
    pub fn run<W: Work>(self, work: W) -> W::Output {
        struct WithAvx2<W>(Avx2, W);
        impl<W: Work> NullaryFnOnce for WithAvx2<W> {
            type Output = W::Output;
            #[inline(always)]
            fn call(self) -> W::Output {
                self.1.run(self.0)
            }
        }
        self.0.vectorize(WithAvx2(self, work))
    }

    /// Columns of two rows side by side: `a` in the low halves.
    #[inline(always)]
    fn paired(self, a: __m128i, b: __m128i) -> __m256i {
        let simd = self.0;
        simd.avx._mm256_set_m128i(simd.sse2._mm_unpackhi_epi16(a, b), simd.sse2._mm_unpacklo_epi16(a, b))
    }

    /// `a * low + b * high` of paired rows.
    #[inline(always)]
    fn rotated(self, pair: __m256i, low: i32, high: i32) -> __m256i {
        let factors = self.0.avx._mm256_set1_epi32((high << 16) | (low & 0xFFFF));
        self.0.avx2._mm256_madd_epi16(pair, factors)
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        self.0.avx2._mm256_add_epi32(a, b)
    }

    #[inline(always)]
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        self.0.avx2._mm256_sub_epi32(a, b)
    }

    /// One pass over eight rows of eight columns.
    #[inline(always)]
    fn pass<const SHIFT: i32>(self, v: [__m128i; 8]) -> [__m128i; 8] {
        let simd = self.0;
        let (v04, v26) = (self.paired(v[0], v[4]), self.paired(v[2], v[6]));
        let even0 = self.rotated(v04, 1 << CONST_BITS, 1 << CONST_BITS);
        let even1 = self.rotated(v04, 1 << CONST_BITS, -1 << CONST_BITS);
        let even2 = self.rotated(v26, F_0_541, F_0_541 - F_1_847);
        let even3 = self.rotated(v26, F_0_541 + F_0_765, F_0_541);
        let (a0, a3) = (self.add(even0, even3), self.sub(even0, even3));
        let (a1, a2) = (self.add(even1, even2), self.sub(even1, even2));

        let (z3, z4) = (simd.sse2._mm_add_epi16(v[7], v[3]), simd.sse2._mm_add_epi16(v[5], v[1]));
        let z34 = self.paired(z3, z4);
        let z3 = self.rotated(z34, F_1_175 - F_1_961, F_1_175);
        let z4 = self.rotated(z34, F_1_175, F_1_175 - F_0_390);
        let (v71, v53) = (self.paired(v[7], v[1]), self.paired(v[5], v[3]));
        let b0 = self.add(self.rotated(v71, F_0_298 - F_0_899, -F_0_899), z3);
        let b1 = self.add(self.rotated(v53, F_2_053 - F_2_562, -F_2_562), z4);
        let b2 = self.add(self.rotated(v53, -F_2_562, F_3_072 - F_2_562), z3);
        let b3 = self.add(self.rotated(v71, -F_0_899, F_1_501 - F_0_899), z4);

        let [r0, r7] = self.rows::<SHIFT>(a0, b3);
        let [r1, r6] = self.rows::<SHIFT>(a1, b2);
        let [r2, r5] = self.rows::<SHIFT>(a2, b1);
        let [r3, r4] = self.rows::<SHIFT>(a3, b0);
        [r0, r1, r2, r3, r4, r5, r6, r7]
    }

    /// The rounded sum and difference, as 16-bit rows.
    #[inline(always)]
    fn rows<const SHIFT: i32>(self, a: __m256i, b: __m256i) -> [__m128i; 2] {
        let simd = self.0;
        let half = simd.avx._mm256_set1_epi32(1 << (SHIFT - 1));
        let a = self.add(a, half);
        let sum = simd.avx2._mm256_srai_epi32::<SHIFT>(self.add(a, b));
        let difference = simd.avx2._mm256_srai_epi32::<SHIFT>(self.sub(a, b));
        // Packing works within halves; the permutation puts the quarters of each row together.
        let packed = simd
            .avx2
            ._mm256_permute4x64_epi64::<0b11_01_10_00>(simd.avx2._mm256_packs_epi32(sum, difference));
        cast(packed)
    }

    #[inline(always)]
    fn transposed(self, v: [__m128i; 8]) -> [__m128i; 8] {
        let sse2 = self.0.sse2;
        let pair16 = |a, b| [sse2._mm_unpacklo_epi16(a, b), sse2._mm_unpackhi_epi16(a, b)];
        let pair32 = |a, b| [sse2._mm_unpacklo_epi32(a, b), sse2._mm_unpackhi_epi32(a, b)];
        let pair64 = |a, b| [sse2._mm_unpacklo_epi64(a, b), sse2._mm_unpackhi_epi64(a, b)];
        let ([a0, a1], [a2, a3]) = (pair16(v[0], v[1]), pair16(v[2], v[3]));
        let ([a4, a5], [a6, a7]) = (pair16(v[4], v[5]), pair16(v[6], v[7]));
        let ([b0, b1], [b2, b3]) = (pair32(a0, a2), pair32(a1, a3));
        let ([b4, b5], [b6, b7]) = (pair32(a4, a6), pair32(a5, a7));
        cast([pair64(b0, b4), pair64(b1, b5), pair64(b2, b6), pair64(b3, b7)])
    }

    /// Columns of samples around 0 to rows of bytes around 128.
    #[inline(always)]
    fn samples(self, c: [__m128i; 8]) -> Block {
        let sse2 = self.0.sse2;
        let centre = sse2._mm_set1_epi8(-128);
        let bytes = |a, b| sse2._mm_xor_si128(sse2._mm_packs_epi16(a, b), centre);
        let (c04, c15, c26, c37) =
            (bytes(c[0], c[4]), bytes(c[1], c[5]), bytes(c[2], c[6]), bytes(c[3], c[7]));
        let (c01, c45) = (sse2._mm_unpacklo_epi8(c04, c15), sse2._mm_unpackhi_epi8(c04, c15));
        let (c23, c67) = (sse2._mm_unpacklo_epi8(c26, c37), sse2._mm_unpackhi_epi8(c26, c37));
        let (top_left, bottom_left) = (sse2._mm_unpacklo_epi16(c01, c23), sse2._mm_unpackhi_epi16(c01, c23));
        let (top_right, bottom_right) =
            (sse2._mm_unpacklo_epi16(c45, c67), sse2._mm_unpackhi_epi16(c45, c67));
        cast([
            sse2._mm_unpacklo_epi32(top_left, top_right),
            sse2._mm_unpackhi_epi32(top_left, top_right),
            sse2._mm_unpacklo_epi32(bottom_left, bottom_right),
            sse2._mm_unpackhi_epi32(bottom_left, bottom_right),
        ])
    }
}

impl InverseDct for Avx2 {
    #[inline(always)]
    fn transform_full(self, coefficients: &[i16; 64]) -> Block {
        const FIRST: i32 = (CONST_BITS - PASS_BITS) as i32;
        const SECOND: i32 = (CONST_BITS + PASS_BITS + 3) as i32;
        let columns = self.transposed(self.pass::<FIRST>(cast(*coefficients)));
        self.samples(self.pass::<SECOND>(columns))
    }
}
