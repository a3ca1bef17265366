//! The colours of pictures and pages, light and dark.
//!
//! One table serves the SVG pictures, the pages and the canvas of their charts, as CSS variables. The colours
//! of lines are told apart with any kind of colour vision; a test holds them to it.

use std::fmt::Write;

/// Name of a CSS variable, and its value on a light and on a dark page.
const TONES: [(&str, &str, &str); 13] = [
    ("page", "#f6f8fa", "#0d1117"),
    ("card", "#ffffff", "#10151c"),
    ("ink", "#1c2733", "#e6edf3"),
    ("soft", "#5b6b7f", "#93a1b3"),
    ("rule", "#e1e7ee", "#29323e"),
    ("accent", "#0b6b62", "#2dd4bf"),
    ("good", "#15803d", "#4ade80"),
    ("calm", "#0369a1", "#38bdf8"),
    ("open", "#a14a06", "#fbbf24"),
    ("bad", "#b91c1c", "#f87171"),
    ("mark", "#7c5a10", "#d9b65c"),
    ("shade", "#eef3f8", "#171e28"),
    ("quiet", "#8795a6", "#77869a"),
];

/// Colours of lines in their order, light and dark.
const LINES: [(&str, &str); 6] = [
    ("#0a5bb5", "#4c9dff"),
    ("#d7720e", "#e0834f"),
    ("#0f9079", "#8ff0c4"),
    ("#7a0f45", "#e8348f"),
    ("#8a3ffc", "#c3bbf4"),
    ("#4d3f00", "#ecc92e"),
];

/// How many lines have a colour of their own; further ones take the colours again, dashed.
pub const DISTINCT: usize = LINES.len();

/// CSS that defines the variables on `root`: light ones, and dark ones where the reader prefers them. A page
/// whose reader has chosen says so in `data-theme`.
pub fn variables(root: &str) -> String {
    let mut css = String::new();
    let _ = write!(css, "{root}{{{}}}", declarations(|light, _| light));
    let dark = declarations(|_, dark| dark);
    let _ = write!(css, "@media (prefers-color-scheme:dark){{{root}:not([data-theme=light]){{{dark}}}}}");
    let _ = write!(css, "{root}[data-theme=dark]{{{dark}}}");
    css
}

fn declarations(choose: fn(&'static str, &'static str) -> &'static str) -> String {
    let mut css = String::new();
    for (name, light, dark) in TONES {
        let _ = write!(css, "--{name}:{};", choose(light, dark));
    }
    for (index, (light, dark)) in LINES.into_iter().enumerate() {
        let _ = write!(css, "--line{index}:{};", choose(light, dark));
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What eyes without one kind of cone make of linear RGB (Machado, Oliveira and Fernandes 2009, severity
    /// 1).
    const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
        ("usual", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367322, 0.860646, -0.227968],
                [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255528, -0.076749, -0.178779],
                [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900],
            ],
        ),
    ];

    fn linear(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn luminance(colour: &str) -> f64 {
        let [r, g, b] = linear(colour);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// CIE Lab of linear RGB as an eye sees it.
    fn lab(rgb: [f64; 3], vision: [[f64; 3]; 3]) -> [f64; 3] {
        let seen = vision.map(|row| row.iter().zip(rgb).map(|(a, b)| a * b).sum::<f64>().clamp(0.0, 1.0));
        let [r, g, b] = seen;
        let root = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let x = root((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
        let y = root(0.2126 * r + 0.7152 * g + 0.0722 * b);
        let z = root((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn lines_are_told_apart_with_any_colour_vision() {
        let palettes = [LINES.map(|(light, _)| light), LINES.map(|(_, dark)| dark)];
        for (name, vision) in VISIONS {
            for palette in palettes {
                for (i, a) in palette.iter().enumerate() {
                    for b in &palette[..i] {
                        let (a_lab, b_lab) = (lab(linear(a), vision), lab(linear(b), vision));
                        let squares = a_lab.iter().zip(b_lab).map(|(a, b)| (a - b).powi(2));
                        let distance = squares.sum::<f64>().sqrt();
                        assert!(distance > 20.0, "{a} and {b} are {distance:.0} apart: {name}");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_and_words_stand_out_from_their_page() {
        let card = TONES[1];
        for (light, dark) in LINES {
            assert!(contrast(light, card.1) > 3.0 && contrast(dark, card.2) > 3.0, "{light} {dark}");
        }
        for (name, light, dark) in TONES {
            if ["ink", "soft", "accent", "good", "calm", "open", "bad", "mark"].contains(&name) {
                let least = contrast(light, card.1).min(contrast(dark, card.2));
                assert!(least > 4.5, "{name}: {least:.1}");
            }
        }
    }
}
