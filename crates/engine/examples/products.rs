//! Speed of matrix products on the model's real shapes, in GFLOP/s.
use garden_engine::product::{Matrix, Output, Right, Start, Term, multiply, scratch_len};
use garden_engine::{StoredAs, Weight};
use rustix::time::{ClockId, clock_gettime};

/// Seconds of processor time, all threads together: what other programs do meanwhile hardly shows in it.
fn processor_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn main() {
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
        let x: Vec<f32> = (0..m * k).map(|i| (i % 97) as f32 * 0.01).collect();
        let w: Vec<f32> = (0..n * k).map(|i| (i % 89) as f32 * 0.01 - 0.4).collect();
        let mut y = vec![0.0; m * n];
        let mut scratch = vec![0.0; scratch_len(m, k)];
        print!("{m}x{n}x{k}:");
        for stored in [StoredAs::F32, StoredAs::Bf16, StoredAs::Int8, StoredAs::Nf4] {
            let forward = Weight::quantise(n, k, &w, stored).unwrap();
            let backward = Weight::quantise(k, n, &w, stored).unwrap();
            for right in [Right::WeightT(&forward), Right::Weight(&backward)] {
                let mut best = f64::MAX;
                for _ in 0..4 {
                    let start = processor_seconds();
                    multiply(
                        Output::new(&mut y, m, n),
                        Start::ZERO,
                        &[Term { left: Matrix::new(&x, m, k), right }],
                        &mut scratch,
                    );
                    best = best.min(processor_seconds() - start);
                }
                print!(" {:6.1}", 2.0 * (m * n * k) as f64 / best / 1e9);
            }
            print!(" |");
        }
        println!();
    }
}
