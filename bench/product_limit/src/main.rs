//! What matrix products can reach here: multiply-adds that touch no memory, our product, and the `gemm` crate's.
//!
//!     cargo run --release --manifest-path bench/product_limit/Cargo.toml
//!
//! Prints GFLOP/s on all threads (`RAYON_NUM_THREADS`), the best of some runs taken in turn: of the arithmetic alone, of squares
//! of 2048, and of the products of a layer of the medium shape on 548 rows.

use garden_engine::product::{Matrix, Output, Right, Start, Term, multiply, scratch_len};
use gemm_common::Parallelism;
use std::arch::x86_64::{__m512, _mm512_add_ps, _mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps};
use std::hint::black_box;
use std::time::Instant;

/// Rows, columns, depth.
const SHAPES: [[usize; 3]; 5] =
    [[2048, 2048, 2048], [548, 5504, 1024], [548, 1024, 5504], [548, 1024, 1024], [548, 256, 1024]];
const RUNS: usize = 12;

fn main() {
    let threads = rayon::current_num_threads();
    let peak = best(|| arithmetic(threads));
    println!("AVX-512, {threads} threads: {peak:.1} GFLOP/s of arithmetic alone");
    println!("rows x columns x depth |   ours (of the arithmetic) |   gemm | ours / gemm");
    for [m, n, k] in SHAPES {
        let (left, right) = (values(m * k), values(k * n));
        let (mut out, mut expected) = (vec![0.0; m * n], vec![0.0; m * n]);
        let mut scratch = vec![0.0; scratch_len(m, k)];
        let (mut ours, mut gemm) = (0.0f64, 0.0f64);
        for _ in 0..RUNS {
            let term =
                Term { left: Matrix::new(&left, m, k), right: Right::Dense(Matrix::new(&right, k, n)) };
            ours = ours.max(rate(2 * m * n * k, || {
                multiply(Output::new(&mut out, m, n), Start::ZERO, &[term], &mut scratch);
            }));
            gemm = gemm.max(rate(2 * m * n * k, || peer(&left, &right, &mut expected, [m, n, k])));
        }
        let apart = out.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-2, "the two products are {apart} apart");
        let shape = format!("{m} x {n} x {k}");
        println!(
            "{shape:<22} | {ours:6.1} ({:3.0} %) {:12} | {gemm:6.1} | {:.2}",
            100.0 * ours / peak,
            "",
            ours / gemm
        );
    }
}

fn best(run: impl Fn() -> f64) -> f64 {
    (0..RUNS).map(|_| run()).fold(0.0, f64::max)
}

/// Billions of `operations` a second.
fn rate(operations: usize, run: impl FnOnce()) -> f64 {
    let began = Instant::now();
    run();
    operations as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.618).sin()).collect()
}

/// Sums that do not wait for each other, as many as a tile of the kernel has.
const SUMS: usize = 28;
const ROUNDS: usize = 1 << 22;

/// GFLOP/s of multiply-adds on registers, on every thread at once.
fn arithmetic(threads: usize) -> f64 {
    rate(2 * threads * ROUNDS * SUMS * 16, || {
        rayon::broadcast(|_| {
            assert!(is_x86_feature_detected!("avx512f"), "this measurement is for a machine with AVX-512");
            // SAFETY: the machine has the instructions, as was asserted just now.
            black_box(unsafe { multiply_adds(black_box(0.999), black_box(1e-3)) });
        });
    })
}

#[target_feature(enable = "avx512f")]
fn multiply_adds(a: f32, b: f32) -> __m512 {
    let (a, b) = (_mm512_set1_ps(a), _mm512_set1_ps(b));
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(a, *sum, b);
        }
    }
    sums.into_iter().fold(_mm512_setzero_ps(), |all, sum| _mm512_add_ps(all, sum))
}

/// The product of the `gemm` crate, with AVX-512.
fn peer(left: &[f32], right: &[f32], out: &mut [f32], [m, n, k]: [usize; 3]) {
    assert!(left.len() >= m * k && right.len() >= k * n && out.len() >= m * n);
    let multiply = gemm_f32::gemm::f32::get_gemm_fn();
    let [n_stride, k_stride] = [n as isize, k as isize];
    // SAFETY: the three matrices lie row by row in slices that are long enough, and the output is nobody else's.
    unsafe {
        let threads = Parallelism::Rayon(0);
        multiply(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n_stride,
            false,
            left.as_ptr(),
            1,
            k_stride,
            right.as_ptr(),
            1,
            n_stride,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}
