//! The vector instructions of the machine at hand, chosen when the program starts.
//!
//! In comes a piece of arithmetic, either a loop that the compiler vectorises ([`vectorised`]) or a kernel written over
//! [`Lanes`]; out comes the same arithmetic compiled for AVX-512, for AVX2, and for any machine. One binary holds
//! all three and [`Isa::best`] picks once; what a kernel computes must not depend on which was picked beyond rounding.

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
    /// The widest set this machine has, or the narrower one that the variable `MODEL_GARDEN_ISA` (`avx2`, `portable`) names.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let asked = std::env::var("MODEL_GARDEN_ISA").unwrap_or_default();
            match (Self::detect(), asked.as_str()) {
                (_, "portable") => Self::Portable,
                (Self::Avx512, "avx2") => Self::Avx2,
                (detected, _) => detected,
            }
        })
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn detect() -> Self {
        let has = |all: &[bool]| all.iter().all(|&one| one);
        // All that `x86` compiles for: a virtual machine may hide any one of them.
        let avx2 = [
            is_x86_feature_detected!("avx2"),
            is_x86_feature_detected!("fma"),
            is_x86_feature_detected!("f16c"),
            is_x86_feature_detected!("bmi1"),
            is_x86_feature_detected!("bmi2"),
            is_x86_feature_detected!("popcnt"),
            is_x86_feature_detected!("lzcnt"),
        ];
        let avx512 = [
            is_x86_feature_detected!("avx512f"),
            is_x86_feature_detected!("avx512bw"),
            is_x86_feature_detected!("avx512dq"),
            is_x86_feature_detected!("avx512vl"),
        ];
        match (has(&avx2), has(&avx512)) {
            (true, true) => Self::Avx512,
            (true, false) => Self::Avx2,
            _ => Self::Portable,
        }
    }

    #[cfg(any(not(target_arch = "x86_64"), miri))]
    fn detect() -> Self {
        Self::Portable
    }
}

/// Runs `work`, compiled for the widest vectors of this machine.
#[inline(always)]
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    match Isa::best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `best` says Avx512 only on a machine that has these features.
        Isa::Avx512 => unsafe { x86::with_avx512(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `best` says Avx2 only on a machine that has these features.
        Isa::Avx2 => unsafe { x86::with_avx2(work) },
        _ => work(),
    }
}

/// Registers of f32 lanes, and the shape of the matrix tile that fits them.
///
/// # Safety
/// Methods may use instructions of the set they are named after: they are called only below a function that was
/// entered after [`Isa::best`] said the machine has them. Pointers must be valid for the lanes read or written.
pub(crate) unsafe trait Lanes {
    /// One register.
    type V: Copy;
    /// Lanes of a register.
    const WIDTH: usize;
    /// Rows of a tile; a tile is two registers wide.
    const ROWS: usize;
    /// Runs `work` compiled for these instructions. Kernels enter here one by one, because the compiler only keeps
    /// sums in registers while the function that it compiles stays small.
    unsafe fn enter<R>(work: impl FnOnce() -> R) -> R;
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
pub(crate) struct Portable;

// SAFETY: plain Rust on plain arrays.
unsafe impl Lanes for Portable {
    type V = [f32; 4];
    const WIDTH: usize = 4;
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn enter<R>(work: impl FnOnce() -> R) -> R {
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

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::Isa;
    use std::process::Command;

    /// Every other test of this crate, in a process that may use no more than `isa`. A test binary runs on one set only, the
    /// widest: this is how the kernels for older machines are executed too.
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
        let expected = match std::env::var("MODEL_GARDEN_ISA").as_deref() {
            Ok("portable") => Isa::Portable,
            Ok("avx2") if Isa::detect() != Isa::Portable => Isa::Avx2,
            _ => Isa::detect(),
        };
        assert_eq!(Isa::best(), expected);
    }
}
