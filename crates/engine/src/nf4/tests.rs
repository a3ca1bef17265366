//! NF4 against bitsandbytes, bit for bit: codes, scales, offset, map and the values they stand for.

use super::{Nf4, Nf4Scales};
use crate::DynamicMap;
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/goldens/nf4.json")).unwrap()
}

/// The values of the golden tensors, made from integers so that Python makes the same ones.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let value = |i: u64| {
        let mixed = i.wrapping_mul(6364136223846793005).wrapping_add(seed.wrapping_mul(1442695040888963407));
        let top = ((mixed >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32;
        top * top * top
    };
    (0..count as u64).map(value).collect()
}

fn digest(bytes: &[u8]) -> String {
    let step = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x100000001b3);
    format!("{:016x}", bytes.iter().fold(0xcbf29ce484222325, step))
}

fn digest_f32(values: &[f32]) -> String {
    digest(bytemuck::cast_slice(values))
}

#[test]
fn the_dynamic_map_is_bitsandbytes_own() {
    let expected: Vec<u32> =
        golden()["dynamic_map"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    let found: Vec<u32> = DynamicMap::signed().values().iter().map(|v| v.to_bits()).collect();
    assert_eq!(found, expected);
}

#[test]
fn codes_and_scales_are_bitsandbytes_own() {
    let golden = golden();
    for case in golden["cases"].as_array().unwrap() {
        let (count, seed) = (case["count"].as_u64().unwrap() as usize, case["seed"].as_u64().unwrap());
        let values = values(count, seed);
        let nf4 = Nf4::quantise(&values).unwrap();
        assert_eq!(digest(nf4.packed()), case["packed"], "codes of {count}");
        let Nf4Scales::Nested { codes, scales, offset, .. } = nf4.scales() else {
            panic!("nested by default")
        };
        assert_eq!(u64::from(offset.to_bits()), case["offset"], "offset of {count}");
        assert_eq!(digest(codes), case["scale_codes"], "scale codes of {count}");
        let bits: Vec<u32> = scales.iter().map(|s| s.to_bits()).collect();
        assert_eq!(serde_json::json!(bits), case["nested_scales"], "nested scales of {count}");

        let Nf4Scales::Plain(plain) = Nf4::quantise_plain(&values).unwrap().scales().clone() else {
            panic!("plain when asked")
        };
        assert_eq!(digest_f32(&plain), case["plain_scales"], "plain scales of {count}");

        let mut back = vec![0.0; count];
        nf4.dequantise(0, &mut back);
        assert_eq!(digest_f32(&back), case["values"], "values of {count}");
    }
}
