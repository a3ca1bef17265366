//! Numbers that depend on a seed, a name and an index, and on nothing else.
//!
//! Gives any element of a named tensor, in any order and on any thread, the same on every machine (integer
//! arithmetic and one rounding). It is splitmix64 over a counter: for weights and tests, not for secrets.

const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
/// Deviation of the sum of four independent uniform 16-bit numbers, and its mean.
const SUM_DEVIATION: f64 = 65536.0 / 1.732_050_807_568_877_2;
const SUM_MEAN: i32 = 131_070;

/// An endless row of numbers under one name.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The row that belongs to `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        });
        Self { key: mix(seed ^ mix(hash)) }
    }

    /// 64 random bits at place `index`.
    pub fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_RATIO)))
    }

    /// A number in `[-1, 1)` at place `index`.
    pub fn uniform(self, index: u64) -> f32 {
        (self.bits(index) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Numbers of mean zero and the given deviation, nearly normal (never beyond 3.5 deviations), by place.
    pub fn normal(self, deviation: f32) -> impl Fn(u64) -> f32 + Copy + Send + Sync {
        let scale = (f64::from(deviation) / SUM_DEVIATION) as f32;
        move |index| {
            let bits = self.bits(index);
            let sum = (0..4).map(|part| (bits >> (16 * part)) as u16 as i32).sum::<i32>();
            (sum - SUM_MEAN) as f32 * scale
        }
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_have_the_moments_they_claim() {
        let count = 200_000u64;
        let normal = Stream::new(1, "moments").normal(0.5);
        let values: Vec<f64> = (0..count).map(|index| f64::from(normal(index))).collect();
        let mean = values.iter().sum::<f64>() / count as f64;
        let deviation = (values.iter().map(|value| value * value).sum::<f64>() / count as f64).sqrt();
        // Three standard errors of each estimate.
        assert!(mean.abs() < 0.0035, "{mean}");
        assert!((deviation - 0.5).abs() < 0.0025, "{deviation}");
    }

    #[test]
    fn seed_name_and_place_all_matter() {
        let word = |seed, name, index| Stream::new(seed, name).bits(index);
        let words = [word(0, "a", 0), word(1, "a", 0), word(0, "b", 0), word(0, "a", 1)];
        let distinct: std::collections::HashSet<u64> = words.into_iter().collect();
        assert_eq!(distinct.len(), words.len());
    }

    #[test]
    fn uniform_numbers_fill_their_interval_and_stay_inside() {
        let stream = Stream::new(3, "uniform");
        let values: Vec<f32> = (0..10_000).map(|index| stream.uniform(index)).collect();
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        assert!(values.iter().any(|value| *value < -0.99) && values.iter().any(|value| *value > 0.99));
    }
}
