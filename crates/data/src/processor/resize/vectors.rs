//! The arithmetic of a resize in vectors: two products an instruction, eight or more outputs at once.
//!
//! Takes and gives the same as [`super::plain`]. Sums of products are exact in 32 bits, so their order
//! changes no bit. `pulp` hands out the instructions only on machines that have them, so all of it is safe
//! code.

use super::{
    CHANNELS, VECTOR,
    plain::{Inputs, half},
    weights::Weights,
};
use pulp::{NullaryFnOnce, cast, i32x8, u8x16, u8x32, x86::V3};

/// Outputs that are made together: two halves of four, each half from one load of inputs.
const GROUP: usize = 8;
const HALF: usize = GROUP / 2;
/// Inputs of one load.
const LOAD: usize = 16;
/// Tells a shuffle to put a zero.
const ZERO: u8 = 0x80;

/// A row's weights, laid out as the vectors take them.
pub(super) struct Groups {
    simd: V3,
    groups: Vec<Group>,
    /// For each group and each pair of inputs: the weights of the two for each of the eight outputs.
    weights: Vec<[[i16; 2]; GROUP]>,
    pairs: usize,
    precision: u32,
}

/// Where a group's inputs are.
struct Group {
    /// First input of each half.
    starts: [usize; 2],
    /// The bytes of a load that are an output's next two inputs, as 16-bit numbers.
    shuffle: [u8; VECTOR],
}

impl Groups {
    /// `None` on machines without the instructions, and where four outputs take more inputs than one load
    /// has.
    pub fn new(across: &Weights) -> Option<Self> {
        let simd = V3::try_new()?;
        let pairs = across.taps / 2;
        let start = |output: usize| across.windows[output.min(across.to - 1)].start;
        let count = across.to.div_ceil(GROUP);
        let (mut groups, mut weights) = (Vec::with_capacity(count), Vec::with_capacity(count * pairs));
        for first in (0..across.to).step_by(GROUP) {
            let starts = [start(first), start(first + HALF)];
            let mut shuffle = [ZERO; VECTOR];
            for (output, bytes) in shuffle.chunks_exact_mut(4).enumerate() {
                let at = start(first + output) - starts[output / HALF];
                if at + 1 >= LOAD {
                    return None;
                }
                (bytes[0], bytes[2]) = (at as u8, at as u8 + 1);
            }
            groups.push(Group { starts, shuffle });
            for pair in 0..pairs {
                weights.push(std::array::from_fn(|output| match first + output {
                    output if output < across.to => {
                        let weights = across.of(output);
                        [weights[2 * pair], weights[2 * pair + 1]]
                    }
                    _ => [0; 2],
                }));
            }
        }
        Some(Self { simd, groups, weights, pairs, precision: across.precision })
    }

    pub fn buffer_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>() + self.weights.capacity() * size_of::<[[i16; 2]; GROUP]>()
    }

    /// As [`super::plain::narrow`].
    pub fn narrow(&self, incoming: &[u8], stride: usize, out: &mut [u8], plane: usize) {
        let work = Narrow { groups: self, incoming, stride, out, plane };
        dispatch(self.simd, 2 * self.pairs, work);
    }
}

/// Makes the usual numbers of inputs constants, so that the loop over them is unrolled.
fn dispatch(simd: V3, taps: usize, work: impl Taps) {
    match taps {
        4 => simd.vectorize(Unrolled::<4, _>(work)),
        6 => simd.vectorize(Unrolled::<6, _>(work)),
        8 => simd.vectorize(Unrolled::<8, _>(work)),
        10 => simd.vectorize(Unrolled::<10, _>(work)),
        _ => simd.vectorize(Counted(taps, work)),
    }
}

struct Narrow<'a> {
    groups: &'a Groups,
    incoming: &'a [u8],
    stride: usize,
    out: &'a mut [u8],
    plane: usize,
}

impl Taps for Narrow<'_> {
    #[inline(always)]
    fn run(self, taps: usize) {
        let pairs = taps / 2;
        let Self { groups, incoming, stride, out, plane } = self;
        let (simd, avx2) = (groups.simd, groups.simd.avx2);
        let channels: [&[u8]; CHANNELS] =
            std::array::from_fn(|channel| &incoming[channel * stride..][..stride]);
        let (red, rest) = out.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);
        let outs = red.as_chunks_mut().0.iter_mut().zip(green.as_chunks_mut().0).zip(blue.as_chunks_mut().0);
        let weights = groups.weights.chunks_exact(pairs);
        let shift = simd.sse2._mm_cvtsi32_si128(groups.precision as i32);
        for ((group, weights), ((red, green), blue)) in groups.groups.iter().zip(weights).zip(outs) {
            let shuffle = cast(group.shuffle);
            let mut sums = [simd.splat_i32x8(half(groups.precision)); CHANNELS];
            let (weights, span) = (&weights[..pairs], LOAD + 2 * (pairs - 1));
            for (sum, samples) in sums.iter_mut().zip(channels) {
                let first = &samples[group.starts[0]..][..span];
                let second = &samples[group.starts[1]..][..span];
                for (pair, &weights) in weights.iter().enumerate() {
                    let halves = [load16(first, 2 * pair), load16(second, 2 * pair)];
                    let paired = avx2._mm256_shuffle_epi8(cast(halves), shuffle);
                    let products = avx2._mm256_madd_epi16(paired, cast(weights));
                    *sum = simd.wrapping_add_i32x8(*sum, cast(products));
                }
            }
            let [r, g, b] = sums.map(|sum: i32x8| avx2._mm256_sra_epi32(cast(sum), shift));
            // Packing works within halves; the permutation puts the two halves of each channel together.
            let bytes =
                avx2._mm256_packus_epi16(avx2._mm256_packs_epi32(r, g), avx2._mm256_packs_epi32(b, b));
            let order = cast([0u32, 4, 1, 5, 2, 6, 3, 7]);
            let [r, g, b, _]: [[u8; GROUP]; 4] = cast(avx2._mm256_permutevar8x32_epi32(bytes, order));
            (*red, *green, *blue) = (r, g, b);
        }
    }
}

/// As [`super::plain::combine`]; false on machines without the instructions.
pub(super) fn combine(inputs: &Inputs, precision: u32, out: &mut [u8]) -> bool {
    let Some(simd) = V3::try_new() else { return false };
    dispatch(simd, inputs.offsets.len(), Combine { simd, inputs, precision, out });
    true
}

struct Combine<'a> {
    simd: V3,
    inputs: &'a Inputs<'a>,
    precision: u32,
    /// Whole vectors.
    out: &'a mut [u8],
}

impl Taps for Combine<'_> {
    #[inline(always)]
    fn run(self, taps: usize) {
        let Self { simd, inputs, precision, out } = self;
        let avx2 = simd.avx2;
        let zero = cast(simd.splat_i32x8(0));
        let shift = simd.sse2._mm_cvtsi32_si128(precision as i32);
        let (offsets, weights) = (&inputs.offsets[..taps], &inputs.weights[..taps]);
        let length = out.len();
        for (vector, to) in out.as_chunks_mut::<VECTOR>().0.iter_mut().enumerate() {
            let at = vector * VECTOR;
            let mut sums = [simd.splat_i32x8(half(precision)); 4];
            for tap in (0..taps).step_by(2) {
                let (low, high) = (weights[tap], weights[tap + 1]);
                let weights = cast(simd.splat_i32x8(i32::from(high) << 16 | i32::from(low) & 0xFFFF));
                let upper = load32(&inputs.rows[offsets[tap]..][..length], at);
                let lower = load32(&inputs.rows[offsets[tap + 1]..][..length], at);
                // Unpacking works within halves. The packing below does too, and undoes it.
                let first = avx2._mm256_unpacklo_epi8(cast(upper), cast(lower));
                let second = avx2._mm256_unpackhi_epi8(cast(upper), cast(lower));
                let pairs = [
                    avx2._mm256_unpacklo_epi8(first, zero),
                    avx2._mm256_unpackhi_epi8(first, zero),
                    avx2._mm256_unpacklo_epi8(second, zero),
                    avx2._mm256_unpackhi_epi8(second, zero),
                ];
                for (sum, pairs) in sums.iter_mut().zip(pairs) {
                    *sum = simd.wrapping_add_i32x8(*sum, cast(avx2._mm256_madd_epi16(pairs, weights)));
                }
            }
            let [a, b, c, d] = sums.map(|sum: i32x8| avx2._mm256_sra_epi32(cast(sum), shift));
            let packed =
                avx2._mm256_packus_epi16(avx2._mm256_packs_epi32(a, b), avx2._mm256_packs_epi32(c, d));
            *to = cast(packed);
        }
    }
}

/// Work whose inner loop runs over the inputs of an output.
trait Taps {
    fn run(self, taps: usize);
}

/// Work with a number of inputs that the compiler knows.
struct Unrolled<const TAPS: usize, W>(W);

impl<const TAPS: usize, W: Taps> NullaryFnOnce for Unrolled<TAPS, W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run(TAPS);
    }
}

/// Work with any number of inputs.
struct Counted<W>(usize, W);

impl<W: Taps> NullaryFnOnce for Counted<W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.1.run(self.0);
    }
}

#[inline(always)]
fn load16(samples: &[u8], at: usize) -> u8x16 {
    let bytes: &[u8; LOAD] = samples[at..at + LOAD].try_into().expect("as long as it was cut");
    cast(*bytes)
}

#[inline(always)]
fn load32(samples: &[u8], at: usize) -> u8x32 {
    let bytes: &[u8; VECTOR] = samples[at..at + VECTOR].try_into().expect("as long as it was cut");
    cast(*bytes)
}
