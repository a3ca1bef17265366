//! Makes an image with the statistics of a photo: soft light, clouds of detail at every scale, and a little
//! grain, so that its JPEG is as large and as slow to decode as a camera's.

use super::{
    Made,
    random::{Random, hash},
};

const TINTS: [(&str, [f32; 3]); 5] = [
    ("warm", [1.0, 0.75, 0.5]),
    ("cool", [0.5, 0.75, 1.0]),
    ("green", [0.55, 1.0, 0.6]),
    ("grey", [0.85, 0.85, 0.85]),
    ("pink", [1.0, 0.65, 0.8]),
];

/// Detail comes in layers, each twice as fine and half as strong as the one before; the coarsest has this
/// many cells across the image.
const COARSEST: u32 = 3;
const LAYERS: u32 = 7;
/// Grain of the sensor, in levels.
const GRAIN: f32 = 6.0;

/// An image with a question about its tint.
pub(super) fn make(width: u32, height: u32, random: &mut Random) -> Made {
    let (name, tint) = *random.pick(&TINTS);
    let seed = random.next();
    let longest = width.max(height) as f32;
    let mut rgb = Vec::with_capacity(width as usize * height as usize * 3);
    let mut light = vec![0.0; width as usize];
    for y in 0..height {
        let across = y as f32 / longest;
        // Light falls from above.
        light.fill(0.65 - 0.3 * across);
        for layer in 0..LAYERS {
            let cells = (COARSEST << layer) as f32;
            add_layer(
                &mut light,
                hash(seed ^ u64::from(layer)),
                across * cells,
                cells / longest,
                0.5 / (1 << layer) as f32,
            );
        }
        let mut grain = hash(seed ^ (u64::from(y) << 32));
        for light in &light {
            grain = grain.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let noise = ((grain >> 56) as f32 / 255.0 - 0.5) * GRAIN;
            rgb.extend(tint.map(|tint| (light * tint * 255.0 + noise).clamp(0.0, 255.0) as u8));
        }
    }
    Made { rgb, question: "Which tint does the photo have?".into(), answer: name.into() }
}

/// Adds smooth noise along a row: values at the corners of cells, blended in between.
fn add_layer(light: &mut [f32], seed: u64, y: f32, step: f32, strength: f32) {
    let (row, v) = (y.floor(), smooth(y.fract()));
    let corner = |column: u32, row: f32| {
        let value = hash(seed ^ (u64::from(column) << 32) ^ row as u64);
        (value >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let edge = |column| corner(column, row) * (1.0 - v) + corner(column, row + 1.0) * v;
    let (mut column, mut left, mut right) = (0, edge(0), edge(1));
    for (i, light) in light.iter_mut().enumerate() {
        let x = i as f32 * step;
        while x as u32 > column {
            column += 1;
            (left, right) = (right, edge(column + 1));
        }
        let u = smooth(x.fract());
        *light += strength * (left * (1.0 - u) + right * u);
    }
}

fn smooth(t: f32) -> f32 {
    t * t * (3.0 - 2.0 * t)
}
