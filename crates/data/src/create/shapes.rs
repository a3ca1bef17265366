//! Makes one coloured shape on a quiet ground and a question about it: a task that a small model learns in
//! minutes.

use super::{Made, random::Random};

const COLOURS: [(&str, [u8; 3]); 6] = [
    ("red", [220, 40, 40]),
    ("green", [40, 160, 60]),
    ("blue", [50, 80, 220]),
    ("yellow", [240, 210, 40]),
    ("purple", [150, 60, 180]),
    ("orange", [245, 140, 30]),
];

#[derive(Clone, Copy)]
enum Shape {
    Circle,
    Square,
    Triangle,
    Cross,
}

const SHAPES: [(&str, Shape); 4] = [
    ("circle", Shape::Circle),
    ("square", Shape::Square),
    ("triangle", Shape::Triangle),
    ("cross", Shape::Cross),
];

impl Shape {
    /// Whether a point is inside a shape of half-size 1 around the origin.
    fn contains(self, x: f32, y: f32) -> bool {
        match self {
            Self::Circle => x * x + y * y <= 1.0,
            Self::Square => x.abs() <= 0.85 && y.abs() <= 0.85,
            Self::Triangle => (-1.0..=0.8).contains(&y) && x.abs() <= (y + 1.0) * 0.55,
            Self::Cross => (x.abs() <= 0.3 && y.abs() <= 1.0) || (y.abs() <= 0.3 && x.abs() <= 1.0),
        }
    }
}

/// The names of the colours.
pub fn shape_colours() -> impl Iterator<Item = &'static str> {
    COLOURS.iter().map(|(name, _)| *name)
}

/// An image of a shape with a question: about its colour, or about anything in it.
pub(super) fn make(width: u32, height: u32, about_colour: bool, random: &mut Random) -> Made {
    let (colour, rgb) = *random.pick(&COLOURS);
    let (name, shape) = *random.pick(&SHAPES);
    let ground = 200 + random.below(50) as u8;
    let half = width.min(height) as f32 * (0.2 + 0.15 * random.unit());
    let centre = |side: u32, random: &mut Random| half + (side as f32 - 2.0 * half) * random.unit();
    let (x0, y0) = (centre(width, random), centre(height, random));
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
    for y in 0..height {
        for x in 0..width {
            let inside = shape.contains((x as f32 + 0.5 - x0) / half, (y as f32 + 0.5 - y0) / half);
            pixels.extend(if inside { rgb } else { [ground; 3] });
        }
    }
    let (question, answer) = match if about_colour { 0 } else { random.below(3) } {
        0 => ("What colour is the shape?", colour.to_owned()),
        1 => ("Which shape is it?", name.to_owned()),
        _ => ("What is in the picture?", format!("a {colour} {name}")),
    };
    Made { rgb: pixels, question: question.into(), answer }
}
