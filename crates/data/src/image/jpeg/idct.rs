//! The inverse cosine transform: libjpeg's accurate integer method, to the last bit.
//!
//! Takes 64 dequantised coefficients, row by row, and gives 8 rows of 8 samples. The columns are transformed
//! first and rounded to 2 fractional bits, then the rows. Every instruction set gives the same samples.

#[cfg(target_arch = "x86_64")]
mod vectors;

/// Eight rows of samples.
pub(super) type Block = [[u8; 8]; 8];

/// Eight columns, or rows, that go through the same arithmetic.
type Lanes = [i32; 8];

/// Fractional bits of the constants below.
const CONST_BITS: u32 = 13;
/// Fractional bits kept between the passes.
const PASS_BITS: u32 = 2;

const F_0_298: i32 = 2446;
const F_0_390: i32 = 3196;
const F_0_541: i32 = 4433;
const F_0_765: i32 = 6270;
const F_0_899: i32 = 7373;
const F_1_175: i32 = 9633;
const F_1_501: i32 = 12299;
const F_1_847: i32 = 15137;
const F_1_961: i32 = 16069;
const F_2_053: i32 = 16819;
const F_2_562: i32 = 20995;
const F_3_072: i32 = 25172;

/// A way to transform blocks; all give the same samples.
pub(super) trait InverseDct: Copy {
    /// Transforms a block that has more than its mean.
    fn transform_full(self, coefficients: &[i16; 64]) -> Block;

    /// Transforms a block; `last` is the place in zigzag order of its last coefficient that is not 0.
    #[inline(always)]
    fn transform(self, coefficients: &[i16; 64], last: usize) -> Block {
        if last == 0 { [[flat(coefficients[0]); 8]; 8] } else { self.transform_full(coefficients) }
    }
}

/// Work on many blocks, compiled once for each instruction set.
pub(super) trait Work {
    type Output;

    /// Implementations must be inlined, or they are not compiled for the instruction set.
    fn run(self, idct: impl InverseDct) -> Self::Output;
}

/// Runs `work` with the best instructions this machine has.
pub(super) fn dispatch<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(idct) = vectors::Vectors::try_new() {
        return idct.run(work);
    }
    work.run(Portable)
}

/// The plain form, and the reference for the others.
#[derive(Clone, Copy)]
struct Portable;

impl InverseDct for Portable {
    #[inline(always)]
    fn transform_full(self, coefficients: &[i16; 64]) -> Block {
        let rows = coefficients.as_chunks::<8>().0;
        let rows = std::array::from_fn(|y| lanes(|x| i32::from(rows[y][x])));
        let columns = transposed(&pass::<{ CONST_BITS - PASS_BITS }>(&rows));
        let done = transposed(&pass::<{ CONST_BITS + PASS_BITS + 3 }>(&columns));
        done.map(|row| row.map(sample))
    }
}

/// The samples of a block that has only its mean: what both passes give for it.
#[inline(always)]
fn flat(dc: i16) -> u8 {
    sample((i32::from(dc) + 4) >> 3)
}

#[inline(always)]
fn sample(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

#[inline(always)]
fn lanes(value: impl Fn(usize) -> i32) -> Lanes {
    let mut out = [0; 8];
    for (x, lane) in out.iter_mut().enumerate() {
        *lane = value(x);
    }
    out
}

#[inline(always)]
fn add(a: &Lanes, b: &Lanes) -> Lanes {
    lanes(|x| a[x].wrapping_add(b[x]))
}

#[inline(always)]
fn sub(a: &Lanes, b: &Lanes) -> Lanes {
    lanes(|x| a[x].wrapping_sub(b[x]))
}

#[inline(always)]
fn times(a: &Lanes, factor: i32) -> Lanes {
    lanes(|x| a[x].wrapping_mul(factor))
}

/// One pass. Corrupt data may overflow, hence the wrapping arithmetic.
#[inline(always)]
fn pass<const SHIFT: u32>(v: &[Lanes; 8]) -> [Lanes; 8] {
    let shared = times(&add(&v[2], &v[6]), F_0_541);
    let even2 = add(&shared, &times(&v[6], -F_1_847));
    let even3 = add(&shared, &times(&v[2], F_0_765));
    let even0 = lanes(|x| v[0][x].wrapping_add(v[4][x]) << CONST_BITS);
    let even1 = lanes(|x| v[0][x].wrapping_sub(v[4][x]) << CONST_BITS);
    let (a0, a3) = (add(&even0, &even3), sub(&even0, &even3));
    let (a1, a2) = (add(&even1, &even2), sub(&even1, &even2));

    let z3 = add(&v[7], &v[3]);
    let z4 = add(&v[5], &v[1]);
    let z5 = times(&add(&z3, &z4), F_1_175);
    let z1 = times(&add(&v[7], &v[1]), -F_0_899);
    let z2 = times(&add(&v[5], &v[3]), -F_2_562);
    let z3 = add(&times(&z3, -F_1_961), &z5);
    let z4 = add(&times(&z4, -F_0_390), &z5);
    let b0 = add(&times(&v[7], F_0_298), &add(&z1, &z3));
    let b1 = add(&times(&v[5], F_2_053), &add(&z2, &z4));
    let b2 = add(&times(&v[3], F_3_072), &add(&z2, &z3));
    let b3 = add(&times(&v[1], F_1_501), &add(&z1, &z4));

    let rounded = |sum: Lanes| lanes(|x| sum[x].wrapping_add(1 << (SHIFT - 1)) >> SHIFT);
    [
        rounded(add(&a0, &b3)),
        rounded(add(&a1, &b2)),
        rounded(add(&a2, &b1)),
        rounded(add(&a3, &b0)),
        rounded(sub(&a3, &b0)),
        rounded(sub(&a2, &b1)),
        rounded(sub(&a1, &b2)),
        rounded(sub(&a0, &b3)),
    ]
}

#[inline(always)]
fn transposed(v: &[Lanes; 8]) -> [Lanes; 8] {
    let mut out = [[0; 8]; 8];
    for (y, row) in out.iter_mut().enumerate() {
        *row = lanes(|x| v[x][y]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in floating point.
    fn reference(coefficients: &[i16; 64]) -> [[f64; 8]; 8] {
        let scale = |k: usize| if k == 0 { std::f64::consts::FRAC_1_SQRT_2 } else { 1.0 };
        let wave = |k: usize, x: usize| {
            ((2 * x + 1) as f64 * k as f64 * std::f64::consts::PI / 16.0).cos() * scale(k) / 2.0
        };
        std::array::from_fn(|y| {
            std::array::from_fn(|x| {
                let terms = (0..64).map(|k| f64::from(coefficients[k]) * wave(k / 8, y) * wave(k % 8, x));
                (terms.sum::<f64>() + 128.0).clamp(0.0, 255.0)
            })
        })
    }

    /// Coefficients that look random; only the first `size` rows and columns are set.
    fn block(seed: u64, size: usize) -> [i16; 64] {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        std::array::from_fn(|k| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (state >> 40) as i16 % 120;
            if k / 8 < size && k % 8 < size { value } else { 0 }
        })
    }

    #[test]
    fn it_is_within_a_level_of_the_definition() {
        for seed in 0..200 {
            for (size, last) in [(8, 63), (1, 0)] {
                let coefficients = block(seed, size);
                let samples = Portable.transform(&coefficients, last);
                let exact = reference(&coefficients);
                for (y, x) in (0..8).flat_map(|y| (0..8).map(move |x| (y, x))) {
                    assert!((f64::from(samples[y][x]) - exact[y][x]).abs() < 1.0, "seed {seed}, size {size}");
                }
            }
        }
    }

    #[test]
    fn a_flat_block_is_the_same_both_ways() {
        for dc in (-2048..2048).step_by(7) {
            let mut coefficients = [0; 64];
            coefficients[0] = dc;
            assert_eq!(Portable.transform(&coefficients, 0), Portable.transform_full(&coefficients));
        }
    }

    #[test]
    fn every_instruction_set_gives_the_plain_samples() {
        struct One([i16; 64]);
        impl Work for One {
            type Output = Block;
            fn run(self, idct: impl InverseDct) -> Block {
                idct.transform_full(&self.0)
            }
        }
        for seed in 0..2000 {
            let coefficients = block(seed, 8);
            assert_eq!(dispatch(One(coefficients)), Portable.transform_full(&coefficients), "seed {seed}");
        }
    }
}
