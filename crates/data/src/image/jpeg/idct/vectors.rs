//! The inverse cosine transform in vectors: eight columns at once, two products an instruction.
//!
//! Takes and gives the same as [`super::Portable`]. The rotations of the method are regrouped so that each is
//! one multiply-add of a pair of rows; sums of products are exact in 32 bits, so the regrouping changes no
//! bit. `pulp` hands out the instructions only on machines that have them, so all of it is safe code.

use super::{
    Block, CONST_BITS, F_0_298, F_0_390, F_0_541, F_0_765, F_0_899, F_1_175, F_1_501, F_1_847, F_1_961,
    F_2_053, F_2_562, F_3_072, InverseDct, PASS_BITS, Work,
};
use pulp::{NullaryFnOnce, cast, i16x8 as Row, i32x8 as Sums, x86::V3};

/// A row paired with another, column by column.
type Pairs = pulp::i16x16;

/// Proof that the machine has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Vectors(V3);

impl Vectors {
    pub fn try_new() -> Option<Self> {
        V3::try_new().map(Self)
    }

    /// Runs work that is compiled for these instructions.
    pub fn run<W: Work>(self, work: W) -> W::Output {
        struct Vectorised<W>(Vectors, W);
        impl<W: Work> NullaryFnOnce for Vectorised<W> {
            type Output = W::Output;
            #[inline(always)]
            fn call(self) -> W::Output {
                self.1.run(self.0)
            }
        }
        self.0.vectorize(Vectorised(self, work))
    }

    /// Columns of two rows side by side: `a` in the low halves.
    #[inline(always)]
    fn paired(self, a: Row, b: Row) -> Pairs {
        let [first, second] = self.zip16(a, b);
        cast([first, second])
    }

    /// `a * low + b * high` of paired rows.
    #[inline(always)]
    fn rotated(self, pairs: Pairs, low: i32, high: i32) -> Sums {
        let factors = self.0.splat_i32x8((high << 16) | (low & 0xFFFF));
        cast(self.0.avx2._mm256_madd_epi16(cast(pairs), cast(factors)))
    }

    #[inline(always)]
    fn add(self, a: Sums, b: Sums) -> Sums {
        self.0.wrapping_add_i32x8(a, b)
    }

    #[inline(always)]
    fn sub(self, a: Sums, b: Sums) -> Sums {
        self.0.wrapping_sub_i32x8(a, b)
    }

    /// One pass over eight rows of eight columns.
    #[inline(always)]
    fn pass<const SHIFT: i32>(self, v: [Row; 8]) -> [Row; 8] {
        let (v04, v26) = (self.paired(v[0], v[4]), self.paired(v[2], v[6]));
        let even0 = self.rotated(v04, 1 << CONST_BITS, 1 << CONST_BITS);
        let even1 = self.rotated(v04, 1 << CONST_BITS, -1 << CONST_BITS);
        let even2 = self.rotated(v26, F_0_541, F_0_541 - F_1_847);
        let even3 = self.rotated(v26, F_0_541 + F_0_765, F_0_541);
        let (a0, a3) = (self.add(even0, even3), self.sub(even0, even3));
        let (a1, a2) = (self.add(even1, even2), self.sub(even1, even2));

        let (z3, z4) = (self.0.wrapping_add_i16x8(v[7], v[3]), self.0.wrapping_add_i16x8(v[5], v[1]));
        let z34 = self.paired(z3, z4);
        let z3 = self.rotated(z34, F_1_175 - F_1_961, F_1_175);
        let z4 = self.rotated(z34, F_1_175, F_1_175 - F_0_390);
        let (v71, v53) = (self.paired(v[7], v[1]), self.paired(v[5], v[3]));
        let b0 = self.add(self.rotated(v71, F_0_298 - F_0_899, -F_0_899), z3);
        let b1 = self.add(self.rotated(v53, F_2_053 - F_2_562, -F_2_562), z4);
        let b2 = self.add(self.rotated(v53, -F_2_562, F_3_072 - F_2_562), z3);
        let b3 = self.add(self.rotated(v71, -F_0_899, F_1_501 - F_0_899), z4);

        let [r0, r7] = self.rounded::<SHIFT>(a0, b3);
        let [r1, r6] = self.rounded::<SHIFT>(a1, b2);
        let [r2, r5] = self.rounded::<SHIFT>(a2, b1);
        let [r3, r4] = self.rounded::<SHIFT>(a3, b0);
        [r0, r1, r2, r3, r4, r5, r6, r7]
    }

    /// The rounded sum and difference, as rows of 16 bits.
    #[inline(always)]
    fn rounded<const SHIFT: i32>(self, a: Sums, b: Sums) -> [Row; 2] {
        let avx2 = self.0.avx2;
        let a = self.add(a, self.0.splat_i32x8(1 << (SHIFT - 1)));
        let sum = avx2._mm256_srai_epi32::<SHIFT>(cast(self.add(a, b)));
        let difference = avx2._mm256_srai_epi32::<SHIFT>(cast(self.sub(a, b)));
        // Packing works within halves; the permutation puts the quarters of each row together.
        let packed = avx2._mm256_packs_epi32(sum, difference);
        cast(avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
    }

    /// Elements of 16 bits in turn from `a` and `b`: those of the first halves, then of the second.
    #[inline(always)]
    fn zip16(self, a: Row, b: Row) -> [Row; 2] {
        let sse2 = self.0.sse2;
        [cast(sse2._mm_unpacklo_epi16(cast(a), cast(b))), cast(sse2._mm_unpackhi_epi16(cast(a), cast(b)))]
    }

    /// The same with elements of 32 bits.
    #[inline(always)]
    fn zip32(self, a: Row, b: Row) -> [Row; 2] {
        let sse2 = self.0.sse2;
        [cast(sse2._mm_unpacklo_epi32(cast(a), cast(b))), cast(sse2._mm_unpackhi_epi32(cast(a), cast(b)))]
    }

    /// The same with elements of 64 bits.
    #[inline(always)]
    fn zip64(self, a: Row, b: Row) -> [Row; 2] {
        let sse2 = self.0.sse2;
        [cast(sse2._mm_unpacklo_epi64(cast(a), cast(b))), cast(sse2._mm_unpackhi_epi64(cast(a), cast(b)))]
    }

    /// The same with bytes.
    #[inline(always)]
    fn zip8(self, a: Row, b: Row) -> [Row; 2] {
        let sse2 = self.0.sse2;
        [cast(sse2._mm_unpacklo_epi8(cast(a), cast(b))), cast(sse2._mm_unpackhi_epi8(cast(a), cast(b)))]
    }

    #[inline(always)]
    fn transposed(self, v: [Row; 8]) -> [Row; 8] {
        let ([a0, a1], [a2, a3]) = (self.zip16(v[0], v[1]), self.zip16(v[2], v[3]));
        let ([a4, a5], [a6, a7]) = (self.zip16(v[4], v[5]), self.zip16(v[6], v[7]));
        let ([b0, b1], [b2, b3]) = (self.zip32(a0, a2), self.zip32(a1, a3));
        let ([b4, b5], [b6, b7]) = (self.zip32(a4, a6), self.zip32(a5, a7));
        cast([self.zip64(b0, b4), self.zip64(b1, b5), self.zip64(b2, b6), self.zip64(b3, b7)])
    }

    /// Turns columns of samples around 0 into rows of bytes around 128.
    #[inline(always)]
    fn samples(self, c: [Row; 8]) -> Block {
        let sse2 = self.0.sse2;
        let centre = sse2._mm_set1_epi8(-128);
        let bytes = |a: Row, b: Row| cast(sse2._mm_xor_si128(sse2._mm_packs_epi16(cast(a), cast(b)), centre));
        let ([c01, c45], [c23, c67]) = (
            self.zip8(bytes(c[0], c[4]), bytes(c[1], c[5])),
            self.zip8(bytes(c[2], c[6]), bytes(c[3], c[7])),
        );
        let ([top_left, bottom_left], [top_right, bottom_right]) =
            (self.zip16(c01, c23), self.zip16(c45, c67));
        cast([self.zip32(top_left, top_right), self.zip32(bottom_left, bottom_right)])
    }
}

impl InverseDct for Vectors {
    #[inline(always)]
    fn transform_full(self, coefficients: &[i16; 64]) -> Block {
        const FIRST: i32 = (CONST_BITS - PASS_BITS) as i32;
        const SECOND: i32 = (CONST_BITS + PASS_BITS + 3) as i32;
        let columns = self.transposed(self.pass::<FIRST>(cast(*coefficients)));
        self.samples(self.pass::<SECOND>(columns))
    }
}
