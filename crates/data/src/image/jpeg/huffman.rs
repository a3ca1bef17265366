//! Huffman codes and the bits they are read from.
//!
//! Takes a table's code lengths and symbols, and entropy-coded bytes without stuffing; gives symbols and
//! signed values. Reading past the end gives zero bits and is noticed by [`Bits::overran`], so the loops need
//! no checks.

/// Codes of up to this many bits are found by one table lookup. Almost all codes are this short.
const LOOK_BITS: u32 = 10;
const LOOK_SIZE: usize = 1 << LOOK_BITS;

/// The most bits that an AC code and its value take.
pub(super) const STEP_BITS: u32 = 16 + 15;

/// A Huffman code for decoding.
pub(super) struct HuffmanTable {
    /// Indexed by the next bits: the code's length in the low byte, its symbol in the high byte; 0 for longer
    /// codes.
    look: Box<[u16; LOOK_SIZE]>,
    /// Indexed by the next bits, for AC codes: what the code says; empty for longer codes.
    steps: Box<[Step; LOOK_SIZE]>,
    /// For each length: codes below this, shifted to 16 bits, have at most that length.
    limits: [u32; 17],
    /// For each length: what to add to a code to get the symbol's place.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

/// What an AC code says: where the next coefficient is, and which bits are its value.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    /// Bits of the code, and of code and value together; 0 means that the code is longer than [`LOOK_BITS`].
    code: u8,
    total: u8,
    /// Zeros before the coefficient, or [`Step::END`].
    pub run: u8,
    /// Bits of the value; 0 where there is none.
    pub size: u8,
}

impl Step {
    /// The run that stands for the end of a block: longer than any block.
    pub const END: u8 = 64;

    fn new(symbol: u8, code: u32) -> Self {
        let (run, size) = (symbol >> 4, symbol & 15);
        let run = if size == 0 && run < 15 { Self::END } else { run };
        Self { code: code as u8, total: code as u8 + size, run, size }
    }
}

impl HuffmanTable {
    /// Builds the table; `counts[n]` codes have `n + 1` bits.
    pub fn new(counts: &[u8; 16], symbols: &[u8], is_dc: bool) -> Result<Self, String> {
        if is_dc && symbols.iter().any(|&symbol| symbol > 15) {
            return Err("a Huffman table for DC with a symbol over 15".into());
        }
        let mut table = Self {
            look: Box::new([0; LOOK_SIZE]),
            steps: Box::new([Step::default(); LOOK_SIZE]),
            limits: [0; 17],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = usize::from(counts[length as usize - 1]);
            table.offsets[length as usize] = place as i32 - code as i32;
            for &symbol in &symbols[place..place + count] {
                if code >= 1 << length {
                    return Err("a Huffman table with too many codes".into());
                }
                if length <= LOOK_BITS {
                    let spare = LOOK_BITS - length;
                    let first = (code << spare) as usize;
                    table.look[first..first + (1 << spare)].fill(u16::from(symbol) << 8 | length as u16);
                }
                code += 1;
            }
            place += count;
            table.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        for (step, &look) in table.steps.iter_mut().zip(table.look.iter()).filter(|(_, look)| **look != 0) {
            *step = Step::new((look >> 8) as u8, u32::from(look & 255));
        }
        Ok(table)
    }

    /// Reads a symbol; `None` if the bits are no code. Needs 16 bits.
    #[inline(always)]
    pub fn symbol(&self, bits: &mut Bits) -> Option<u8> {
        let look = self.look[bits.peek(LOOK_BITS) as usize];
        if look != 0 {
            bits.skip(u32::from(look & 255));
            return Some((look >> 8) as u8);
        }
        let (symbol, length) = self.long_code(bits.peek(16))?;
        bits.skip(length);
        Some(symbol)
    }

    /// The symbol and length of a code that is longer than [`LOOK_BITS`], by the next 16 bits.
    #[cold]
    fn long_code(&self, code: u32) -> Option<(u8, u32)> {
        let length = (LOOK_BITS as usize + 1..=16).find(|&length| code < self.limits[length])?;
        let place = (code >> (16 - length)) as i32 + self.offsets[length];
        Some((*self.symbols.get(usize::try_from(place).ok()?)?, length as u32))
    }

    /// Reads an AC code and its value; `None` if the bits are no code. Needs [`STEP_BITS`].
    ///
    /// The value is computed without branches, because coded bits cannot be predicted.
    #[inline(always)]
    pub fn step(&self, bits: &mut Bits) -> Option<(Step, i16)> {
        let mut step = self.steps[bits.peek(LOOK_BITS) as usize];
        if step.code == 0 {
            let (symbol, length) = self.long_code(bits.peek(16))?;
            step = Step::new(symbol, length);
        }
        let size = u32::from(step.size);
        // Two shifts, because one shift by 64 would overflow.
        let value = (bits.window << step.code >> 1 >> (63 - size)) as u32;
        bits.skip(u32::from(step.total));
        Some((step, extend(value, size) as i16))
    }
}

/// Gives a value of `size` bits its sign: it is positive if its first bit is 1.
#[inline(always)]
pub(super) fn extend(value: u32, size: u32) -> i32 {
    let below = 1i32 << size >> 1;
    let value = value as i32;
    // Subtracts 2^size - 1 where the first bit is 0, without a branch, because signs cannot be predicted.
    value + (((value - below) >> 31) & (1 - (1 << size)))
}

/// Bits of a segment, most significant first.
#[derive(Clone)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// Where the next refill reads.
    at: usize,
    /// The next bits, left-aligned.
    window: u64,
    /// How many of them are valid.
    held: u32,
}

impl<'a> Bits<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, window: 0, held: 0 }
    }

    /// Makes at least 56 bits available: enough for a code of 16 and two values of 16.
    #[inline(always)]
    pub fn refill(&mut self) {
        let next = match self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => near_end(self.bytes, self.at),
        };
        self.window |= next >> self.held;
        self.at += ((63 - self.held) >> 3) as usize;
        self.held |= 56;
    }

    /// How many bits can be read before the next refill.
    #[inline(always)]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The next `count` bits, 1 to 16 of them.
    #[inline(always)]
    pub fn peek(&self, count: u32) -> u32 {
        (self.window >> (64 - count)) as u32
    }

    #[inline(always)]
    pub fn skip(&mut self, count: u32) {
        self.window <<= count;
        self.held -= count;
    }

    /// Reads `count` bits, 0 to 16 of them.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> u32 {
        // Two shifts, because one shift by 64 would overflow.
        let value = (self.window >> 1 >> (63 - count)) as u32;
        self.skip(count);
        value
    }

    /// Reads a value of `size` bits with its sign.
    #[inline(always)]
    pub fn signed(&mut self, size: u32) -> i32 {
        extend(self.take(size), size)
    }

    /// Whether more bits were used than there are.
    pub fn overran(&self) -> bool {
        self.at * 8 - self.held as usize > self.bytes.len() * 8
    }
}

/// The last bytes, followed by zeros. Takes its arguments by value, so that the state of the reader can stay
/// in registers.
#[cold]
fn near_end(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut chunk = [0; 8];
    chunk[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_sign_of_their_first_bit() {
        assert_eq!([0, 1].map(|value| extend(value, 1)), [-1, 1]);
        assert_eq!([0, 3, 4, 7].map(|value| extend(value, 3)), [-7, -4, 4, 7]);
        assert_eq!(extend(0, 0), 0);
        assert_eq!(extend(0x7FFF, 15), 32767);
    }

    #[test]
    fn bits_come_in_order_and_the_end_is_noticed() {
        let bytes: Vec<u8> = (1..=11).collect();
        let mut bits = Bits::new(&bytes);
        for byte in &bytes {
            bits.refill();
            assert_eq!((bits.take(3) << 5 | bits.take(5)) as u8, *byte);
            assert!(!bits.overran());
        }
        bits.refill();
        assert_eq!(bits.take(1), 0, "zeros follow");
        assert!(bits.overran());
    }

    #[test]
    fn short_and_long_codes_are_found() {
        // Lengths 1, 2, ... 16: codes 0, 10, 110, ...
        let table = HuffmanTable::new(&[1; 16], &[0x11; 16].map(|s| s), false).expect("valid");
        let mut symbols: Vec<u8> = (1..=16).collect();
        symbols.reverse();
        let distinct = HuffmanTable::new(&[1; 16], &symbols, false).expect("valid");
        for length in 1..=16u32 {
            let code = ((1u32 << (length - 1)) - 1) << 1;
            let bytes = (code << (32 - length)).to_be_bytes();
            let mut bits = Bits::new(&bytes);
            bits.refill();
            assert_eq!(distinct.symbol(&mut bits), Some(17 - length as u8));
        }
        let mut bits = Bits::new(&[0b0100_0000]);
        bits.refill();
        let (step, value) = table.step(&mut bits).expect("a code");
        assert_eq!((value, step.run, bits.peek(6)), (1, 1, 0), "code 0, then a 1");
        let mut bits = Bits::new(&[0xFF, 0xFF]);
        bits.refill();
        assert_eq!(table.symbol(&mut bits), None, "no code is all ones");
    }

    #[test]
    fn overfull_codes_are_refused() {
        let mut counts = [0; 16];
        counts[0] = 3;
        assert!(HuffmanTable::new(&counts, &[1, 2, 3], false).is_err());
        assert!(HuffmanTable::new(&[1; 16], &[16; 16], true).is_err());
    }
}
