//! Speed of matrix products on the model's real shapes, in GFLOP/s: each type of weight, forward and
//! backward, then an adapter's thin products by rank (see `THIN` in `product/direct.rs`).
use garden_engine::product::{Matrix, Output, Right, Start, Term, multiply, scratch_len};
use garden_engine::{StoredAs, Weight};
use rustix::time::{ClockId, clock_gettime};

/// Seconds of processor time, all threads together: what other programs do meanwhile hardly shows in it.
fn processor_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// The best of some runs, in GFLOP/s of one processor.
fn speed(flops: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..6).map(|_| {
        let start = processor_seconds();
        run();
        processor_seconds() - start
    });
    flops as f64 / seconds.fold(f64::MAX, f64::min) / 1e9
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 97) as f32 * 0.01 - 0.4).collect()
}

fn main() {
    weights();
    ranks();
}

fn weights() {
    let shapes = [
        (548, 5504, 1024),
        (548, 1024, 5504),
        (548, 1024, 1024),
        (548, 256, 1024),
        (548, 48, 1024),
        (1152, 1710, 640),
        (254, 32000, 1024),
        (548, 11008, 2048),
        (548, 2048, 11008),
    ];
    for (m, n, k) in shapes {
        let (x, w) = (values(m * k), values(n * k));
        let mut y = vec![0.0; m * n];
        let mut scratch = vec![0.0; scratch_len(m, k)];
        print!("{m}x{n}x{k}:");
        for stored in [StoredAs::F32, StoredAs::Bf16, StoredAs::Int8, StoredAs::Nf4] {
            let forward = Weight::quantise(n, k, &w, stored).unwrap();
            let backward = Weight::quantise(k, n, &w, stored).unwrap();
            for right in [Right::WeightT(&forward), Right::Weight(&backward)] {
                let term = Term { left: Matrix::new(&x, m, k), right };
                let best = speed(2 * m * n * k, || {
                    multiply(Output::new(&mut y, m, n), Start::ZERO, &[term], &mut scratch);
                });
                print!(" {best:6.1}");
            }
            print!(" |");
        }
        println!();
    }
}

/// The products of a pair on 548 rows of 1024 and of 5504 values: down to the rank, and the two gradients.
fn ranks() {
    const ROWS: usize = 548;
    println!("rank: x A^T, then the gradients of A and of B, of 1024 and of 5504 values");
    for rank in [8, 16, 32, 48, 64, 80, 96, 128] {
        print!("{rank:4}:");
        for width in [1024, 5504] {
            let (x, a, narrow) = (values(ROWS * width), values(rank * width), values(ROWS * rank));
            let mut scratch = vec![0.0; scratch_len(ROWS, width).max(scratch_len(width, ROWS))];
            let (x, a, narrow) = (
                Matrix::new(&x, ROWS, width),
                Matrix::new(&a, rank, width),
                Matrix::new(&narrow, ROWS, rank),
            );
            for (left, right, m, n) in
                [(x, a.t(), ROWS, rank), (narrow.t(), x, rank, width), (x.t(), narrow, width, rank)]
            {
                let mut out = vec![0.0; m * n];
                let term = Term { left, right: Right::Dense(right) };
                let best = speed(2 * ROWS * width * rank, || {
                    multiply(Output::new(&mut out, m, n), Start::ZERO, &[term], &mut scratch);
                });
                print!(" {best:6.1}");
            }
        }
        println!();
    }
}
