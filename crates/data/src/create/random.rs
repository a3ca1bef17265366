//! Random numbers that a seed decides: SplitMix64, one stream for each row.

/// A stream of numbers.
pub(super) struct Random(u64);

impl Random {
    /// The stream of a row: any two rows and seeds have different ones.
    pub fn new(seed: u64, row: u64) -> Self {
        Self(hash(seed).wrapping_add(hash(row ^ 0x5DEE_CE66)))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        hash(self.0)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    /// A number between 0 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u32) as usize]
    }
}

/// Mixes the bits of a number.
pub(super) fn hash(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
