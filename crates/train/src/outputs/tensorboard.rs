//! TensorBoard event files: scalars over steps.
//!
//! Takes log entries and writes a file of framed records (length, masked CRC-32C, protocol buffer) that
//! TensorBoard reads while it grows. A resumed run opens a new file that tells TensorBoard to forget later
//! steps of the old one.

use crate::trainer::LogEntry;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// An open event file.
pub struct EventFile {
    file: File,
}

impl EventFile {
    /// Creates a file in the folder; steps after `resumed_at` in older files are declared void.
    pub fn create(dir: &Path, resumed_at: Option<u64>) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("events.out.tfevents.{}.{}.model-garden", now.as_secs(), std::process::id());
        let mut events = Self { file: File::create(dir.join(name))? };
        let mut version = Message::default();
        version.double(1, wall_time());
        version.bytes(3, b"brain.Event:2");
        events.record(&version)?;
        if let Some(step) = resumed_at {
            // SessionLog { status: START }: readers purge what they hold from this step on.
            let mut session = Message::default();
            session.varint(1, 1);
            let mut event = Message::default();
            event.double(1, wall_time());
            event.varint(2, step + 1);
            event.bytes(7, &session.bytes);
            events.record(&event)?;
        }
        Ok(events)
    }

    /// Adds the numbers of a log entry. Tags are split into `train/` and `eval/` as Hugging Face's are.
    pub fn add(&mut self, entry: &LogEntry) -> io::Result<()> {
        let mut summary = Message::default();
        for (name, value) in &entry.values {
            let tag = match name.strip_prefix("eval_") {
                Some(name) => format!("eval/{name}"),
                None => format!("train/{name}"),
            };
            let mut scalar = Message::default();
            scalar.bytes(1, tag.as_bytes());
            scalar.float(2, *value as f32);
            summary.bytes(1, &scalar.bytes);
        }
        let mut event = Message::default();
        event.double(1, wall_time());
        event.varint(2, entry.step);
        event.bytes(5, &summary.bytes);
        self.record(&event)
    }

    fn record(&mut self, message: &Message) -> io::Result<()> {
        let length = (message.bytes.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked_crc(&length).to_le_bytes());
        record.extend(&message.bytes);
        record.extend(masked_crc(&message.bytes).to_le_bytes());
        self.file.write_all(&record)
    }
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A protocol buffer under construction.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    const VARINT: u64 = 0;
    const FIXED64: u64 = 1;
    const LENGTH: u64 = 2;
    const FIXED32: u64 = 5;

    fn key(&mut self, field: u64, wire: u64) {
        self.raw_varint(field << 3 | wire);
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.key(field, Self::VARINT);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, Self::FIXED64);
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, Self::FIXED32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, Self::LENGTH);
        self.raw_varint(bytes.len() as u64);
        self.bytes.extend(bytes);
    }
}

/// CRC-32C, rotated and offset as the record format wants it, so that a checksum of data with checksums in it
/// stays sound.
fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The Castagnoli checksum, bit by bit: records are a few hundred bytes, ten steps apart.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let byte = |crc: u32, byte: &u8| {
        let fold = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| fold(crc))
    };
    !bytes.iter().fold(u32::MAX, byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_checksum_is_castagnolis() {
        // Test vectors of RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn records_are_framed_and_hold_the_scalars() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(dir.path(), Some(300)).unwrap();
        let values = BTreeMap::from([("eval_loss".to_owned(), 0.5), ("loss".to_owned(), 2.0)]);
        events.add(&LogEntry { epoch: 1.0, step: 301, values }).unwrap();
        let path = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let bytes = fs::read(path).unwrap();
        let records = split(&bytes);
        assert_eq!(records.len(), 3);
        assert!(records[0].ends_with(b"brain.Event:2"));
        assert_eq!(&records[1][9..], [0x10, 0xad, 0x02, 0x3a, 0x02, 0x08, 0x01], "step 301, session start");
        let scalar =
            |tag: &[u8], value: f32| [&[0x0a, tag.len() as u8], tag, &[0x15], &value.to_le_bytes()].concat();
        for expected in [scalar(b"eval/loss", 0.5), scalar(b"train/loss", 2.0)] {
            assert!(records[2].windows(expected.len()).any(|window| window == expected));
        }
    }

    /// Cuts a file into records, checking both checksums of each.
    fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(bytes[8..12], masked_crc(&bytes[..8]).to_le_bytes());
            let (record, rest) = bytes[12..].split_at(length);
            assert_eq!(rest[..4], masked_crc(record).to_le_bytes());
            records.push(record);
            bytes = &rest[4..];
        }
        records
    }
}
