//! The vector instructions of the machine at hand, chosen when the program starts.
//!
//! Takes a piece of arithmetic, either a loop that the compiler vectorises ([`vectorised`]) or a [`Kernel`]
//! written over [`Lanes`], and runs it compiled for AVX-512, for AVX2, or for any machine. One binary holds
//! all three and the choice is made once; what a kernel computes must not depend on it beyond rounding. A
//! value of a type that implements [`Lanes`] is the proof that the machine has its instructions: only
//! detection makes one.

mod choice;

pub use choice::IsaError;

use std::sync::OnceLock;

/// The instruction sets the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// 16 lanes, 32 registers.
    Avx512,
    /// 8 lanes with fused multiply-add, 16 registers.
    Avx2,
    /// Whatever the compiler may use everywhere.
    Portable,
}

impl Isa {
    /// Refuses a set in the variable `MODEL_GARDEN_ISA` that does not exist or that this machine lacks. A
    /// program calls it before it computes, because computing itself cannot fail.
    pub fn check() -> Result<(), IsaError> {
        choice::asked().map(drop)
    }

    /// The widest set this machine has, or the one that the variable `MODEL_GARDEN_ISA` (`avx512`, `avx2`,
    /// `portable`) names.
    pub fn best() -> Self {
        match Detected::best() {
            #[cfg(target_arch = "x86_64")]
            Detected::Avx512(_) => Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            Detected::Avx2(_) => Self::Avx2,
            Detected::Portable(_) => Self::Portable,
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Portable => "portable",
        })
    }
}

/// The set in use, with the proof that the machine has it.
#[derive(Clone, Copy)]
enum Detected {
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    Portable(Portable),
}

impl Detected {
    fn best() -> Self {
        static BEST: OnceLock<Detected> = OnceLock::new();
        *BEST.get_or_init(|| Self::of(choice::asked().ok().flatten()))
    }

    /// The set that was asked for, or the widest of this machine.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn of(asked: Option<Isa>) -> Self {
        let may_be = |isa: Isa| asked.is_none_or(|asked| asked == isa);
        let avx512 = || x86::Avx512::detect().filter(|_| may_be(Isa::Avx512)).map(Self::Avx512);
        let avx2 = || x86::Avx2::detect().filter(|_| may_be(Isa::Avx2)).map(Self::Avx2);
        avx512().or_else(avx2).unwrap_or(Self::Portable(Portable))
    }

    #[cfg(any(not(target_arch = "x86_64"), miri))]
    fn of(_asked: Option<Isa>) -> Self {
        Self::Portable(Portable)
    }
}

/// The sets this machine has, the widest first.
fn detected() -> Vec<Isa> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let vectors = [x86::Avx512::detect().map(|_| Isa::Avx512), x86::Avx2::detect().map(|_| Isa::Avx2)];
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let vectors: [Option<Isa>; 0] = [];
    vectors.into_iter().flatten().chain([Isa::Portable]).collect()
}

/// A piece of arithmetic that is compiled for every instruction set.
pub(crate) trait Kernel {
    /// What it computes.
    type Output;
    /// Computes it with the instructions that `lanes` stands for.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs `kernel` with the widest registers of this machine.
#[inline(always)]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    match Detected::best() {
        #[cfg(target_arch = "x86_64")]
        Detected::Avx512(lanes) => kernel.run(lanes),
        #[cfg(target_arch = "x86_64")]
        Detected::Avx2(lanes) => kernel.run(lanes),
        Detected::Portable(lanes) => kernel.run(lanes),
    }
}

/// Runs `work`, compiled for the widest vectors of this machine.
#[inline(always)]
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    match Detected::best() {
        #[cfg(target_arch = "x86_64")]
        Detected::Avx512(lanes) => lanes.enter(work),
        #[cfg(target_arch = "x86_64")]
        Detected::Avx2(lanes) => lanes.enter(work),
        Detected::Portable(lanes) => lanes.enter(work),
    }
}

/// Registers of f32 lanes, and the shape of the matrix tile that fits them.
///
/// A value is the proof that the machine has the instructions: safe functions over lanes take one.
///
/// # Safety
/// A value of the type exists only on a machine that has the instructions. Of its functions' callers the
/// trait asks that they hold such a value, and that pointers are valid for the lanes read or written.
pub(crate) unsafe trait Lanes: Copy + Send + Sync {
    /// One register.
    type V: Copy;
    /// Lanes of a register.
    const WIDTH: usize;
    /// Rows of a tile; a tile is two registers wide.
    const ROWS: usize;
    /// Runs `work` compiled for these instructions. Kernels enter here one by one, because the compiler only
    /// keeps sums in registers while the function that it compiles stays small.
    fn enter<R>(self, work: impl FnOnce() -> R) -> R;
    /// All lanes zero.
    unsafe fn zero() -> Self::V;
    /// `WIDTH` values from `from`.
    unsafe fn load(from: *const f32) -> Self::V;
    /// The one value at `from` in every lane.
    unsafe fn splat(from: *const f32) -> Self::V;
    /// `WIDTH` values to `to`.
    unsafe fn store(to: *mut f32, v: Self::V);
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a + b`.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// Asks for the two registers' worth of values at `at` to be brought near.
    unsafe fn prefetch(at: *const f32);
    /// Asks for the cache line at `at` to be brought into the L1.
    unsafe fn prefetch_near(at: *const f32);
    /// Writes the transpose of a `WIDTH x WIDTH` square; row `i` of it starts at `from + i * from_stride`.
    /// Every row of the result is written whole, in order, so rows may overlap when `to_stride < WIDTH`.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
    /// Thirty-two 4-bit codes (16 bytes, high half first) looked up in `codes` and scaled.
    unsafe fn lookup(packed: *const u8, codes: &[f32; 16], scale: f32, to: *mut f32);
}

/// Plain arrays: every machine, and the interpreter that checks memory accesses.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

// SAFETY: plain Rust on plain arrays, which every machine has.
unsafe impl Lanes for Portable {
    type V = [f32; 4];
    const WIDTH: usize = 4;
    const ROWS: usize = 4;

    #[inline(always)]
    fn enter<R>(self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline(always)]
    unsafe fn zero() -> [f32; 4] {
        [0.0; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for four values.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> [f32; 4] {
        // SAFETY: the caller vouches for one value.
        [unsafe { *from }; 4]
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller vouches for four values.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn prefetch_near(_at: *const f32) {}

    #[inline(always)]
    unsafe fn prefetch(_at: *const f32) {}

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for j in 0..4 {
            for i in 0..4 {
                // SAFETY: the caller vouches for a 4 x 4 square on both sides.
                unsafe { *to.add(j * to_stride + i) = *from.add(i * from_stride + j) };
            }
        }
    }

    #[inline(always)]
    unsafe fn lookup(packed: *const u8, codes: &[f32; 16], scale: f32, to: *mut f32) {
        for i in 0..16 {
            // SAFETY: the caller vouches for 16 bytes and 32 values.
            unsafe {
                let byte = *packed.add(i);
                *to.add(2 * i) = codes[usize::from(byte >> 4)] * scale;
                *to.add(2 * i + 1) = codes[usize::from(byte & 15)] * scale;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

#[cfg(test)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod tests {
    use super::{Isa, x86};
    use std::process::Command;

    /// Every other test of this crate, in a process that may use no more than `isa`. A test binary runs on
    /// one set only, the widest: this is how the kernels for older machines are executed too.
    fn all_tests_with(isa: &str) {
        let tests = std::env::current_exe().expect("the test's own binary");
        let arguments = ["--skip", "with_older_instructions", "--skip", "freed_memory_goes_back"];
        let done = Command::new(tests).args(arguments).env("MODEL_GARDEN_ISA", isa).output().expect("runs");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "with {isa}:\n{said}");
        assert!(said.contains("the_isa_is_the_one_that_was_asked_for ... ok"), "{said}");
    }

    #[test]
    fn everything_holds_with_older_instructions_avx2() {
        all_tests_with("avx2");
    }

    #[test]
    fn everything_holds_with_older_instructions_portable() {
        all_tests_with("portable");
    }

    #[test]
    fn the_isa_is_the_one_that_was_asked_for() {
        let (avx512, avx2) = (x86::Avx512::detect().is_some(), x86::Avx2::detect().is_some());
        let expected = match std::env::var("MODEL_GARDEN_ISA").as_deref() {
            Ok("portable") => Isa::Portable,
            Ok("avx2") if avx2 => Isa::Avx2,
            _ if avx512 => Isa::Avx512,
            _ if avx2 => Isa::Avx2,
            _ => Isa::Portable,
        };
        assert_eq!(Isa::best(), expected);
    }
}
