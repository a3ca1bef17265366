//! AdamW with f32 or 8-bit moments, and clipping by the global norm.
//!
//! In come parameters and their summed gradients, one tensor after another; parameters and moments are changed in
//! place and nothing is allocated. Results do not depend on the number of threads: blocks are independent, and sums
//! are taken over fixed pieces in a fixed order.

mod adamw;
mod clip;

pub use clip::SquaredNorm;

use adamw::Coefficients;
use garden_engine::dynamic_map::DYNAMIC_BLOCK as BLOCK;
use serde::{Deserialize, Serialize};

/// Tensors with fewer elements keep f32 moments in the 8-bit optimizer: the saving is small and they are often the
/// sensitive ones. The figure is bitsandbytes'.
const SMALLEST_8BIT: usize = 4096;

/// How moments are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "snake_case"))]
pub enum OptimizerKind {
    /// Two f32 a parameter.
    Adamw,
    /// Two bytes a parameter, with two f32 per 256.
    #[default]
    #[serde(rename = "adamw_8bit")]
    #[cfg_attr(feature = "clap", value(name = "adamw_8bit"))]
    Adamw8bit,
}

impl OptimizerKind {
    /// Bytes of state for a tensor of `len` values.
    pub fn bytes(self, len: usize) -> usize {
        match self {
            Self::Adamw8bit if len >= SMALLEST_8BIT => 2 * (len + 4 * len.div_ceil(BLOCK)),
            _ => 8 * len,
        }
    }
}

/// The constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AdamSettings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, per unit of learning rate.
    pub weight_decay: f64,
}

/// The moments of one tensor.
#[derive(Debug, Clone, PartialEq)]
enum Moments {
    Full { m: Vec<f32>, v: Vec<f32> },
    Quantised { m: Vec<u8>, v: Vec<u8>, m_scale: Vec<f32>, v_scale: Vec<f32> },
}

impl Moments {
    fn new(kind: OptimizerKind, len: usize) -> Self {
        if kind == OptimizerKind::Adamw || len < SMALLEST_8BIT {
            return Self::Full { m: vec![0.0; len], v: vec![0.0; len] };
        }
        let blocks = len.div_ceil(BLOCK);
        let (m, v) = (vec![0; len], vec![0; len]);
        Self::Quantised { m, v, m_scale: vec![0.0; blocks], v_scale: vec![0.0; blocks] }
    }
}

/// AdamW over a fixed list of tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    settings: AdamSettings,
    step: u64,
    moments: Vec<Moments>,
}

/// Part of an optimizer's state, to be saved or filled.
pub enum StateSlice<'a> {
    /// Moments or scales in f32.
    F32(&'a mut [f32]),
    /// Codes of 8-bit moments.
    U8(&'a mut [u8]),
}

impl Optimizer {
    /// Zero moments for tensors of these lengths.
    pub fn new(
        kind: OptimizerKind,
        settings: AdamSettings,
        lengths: impl IntoIterator<Item = usize>,
    ) -> Self {
        let moments = lengths.into_iter().map(|len| Moments::new(kind, len)).collect();
        Self { settings, step: 0, moments }
    }

    /// Steps taken so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Continues after this many steps; the moments are to be filled through [`Optimizer::state`].
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Counts a step; each tensor is then to be updated once.
    pub fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Moves one tensor against its gradient, which is multiplied by `scale` first.
    ///
    /// Weights that must not shrink (biases, norms) are given with `decay` false.
    pub fn update(
        &mut self,
        tensor: usize,
        values: &mut [f32],
        gradient: &[f32],
        rate: f64,
        scale: f32,
        decay: bool,
    ) {
        let moments = &mut self.moments[tensor];
        assert_eq!(values.len(), gradient.len(), "a gradient has the length of its tensor");
        let coefficients = Coefficients::new(&self.settings, self.step, rate, scale, decay);
        match moments {
            Moments::Full { m, v } => adamw::update_full(&coefficients, values, gradient, m, v),
            Moments::Quantised { m, v, m_scale, v_scale } => {
                adamw::update_quantised(&coefficients, values, gradient, m, v, m_scale, v_scale);
            }
        }
    }

    /// Bytes held for moments.
    pub fn bytes(&self) -> u64 {
        let of = |moments: &Moments| match moments {
            Moments::Full { m, v } => 4 * (m.len() + v.len()),
            Moments::Quantised { m, v, m_scale, v_scale } => {
                m.len() + v.len() + 4 * (m_scale.len() + v_scale.len())
            }
        };
        self.moments.iter().map(of).sum::<usize>() as u64
    }

    /// Every part of the state of one tensor, by name.
    pub fn state(&mut self, tensor: usize) -> Vec<(&'static str, StateSlice<'_>)> {
        match &mut self.moments[tensor] {
            Moments::Full { m, v } => vec![("m", StateSlice::F32(m)), ("v", StateSlice::F32(v))],
            Moments::Quantised { m, v, m_scale, v_scale } => vec![
                ("m", StateSlice::U8(m)),
                ("v", StateSlice::U8(v)),
                ("m_scale", StateSlice::F32(m_scale)),
                ("v_scale", StateSlice::F32(v_scale)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Goldens, uniform};
    use garden_engine::dynamic_map::DynamicMap;

    const SETTINGS: AdamSettings =
        AdamSettings { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.05 };
    const LENGTHS: [usize; 2] = [256 * 17 + 100, 300];

    fn gradient(step: u32, len: usize) -> Vec<f32> {
        let mut values: Vec<f32> = uniform(len, 1000 + step).iter().map(|x| x * x * x * 0.01).collect();
        values.iter_mut().step_by(7).for_each(|x| *x = 0.0);
        if step < 50 {
            let end = len.min(512);
            values[256.min(len)..end].fill(0.0);
        }
        values
    }

    fn hundred_steps(kind: OptimizerKind) -> (Optimizer, Vec<Vec<f32>>) {
        let mut params: Vec<Vec<f32>> = LENGTHS.iter().map(|&len| uniform(len, len as u32)).collect();
        let mut optimizer = Optimizer::new(kind, SETTINGS, LENGTHS);
        for step in 0..100 {
            optimizer.begin_step();
            for (index, param) in params.iter_mut().enumerate() {
                let gradient = gradient(step, param.len());
                optimizer.update(index, param, &gradient, 1e-3, 1.0, true);
            }
        }
        (optimizer, params)
    }

    /// To the bit; or, where the peer's roundings are not IEEE's, to a few units in the last place of the tensor's scale.
    fn assert_close(name: &str, ours: &[f32], theirs: &[f32], exact: bool) {
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let largest = theirs.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let tolerance = if exact { 0.0 } else { 5e-7 * largest };
        let wrong = ours.iter().zip(theirs).filter(|(a, b)| (*a - *b).abs() > tolerance).count();
        assert_eq!(wrong, 0, "{name}: values that differ, of {}", ours.len());
    }

    fn assert_state_equals_golden(kind: OptimizerKind, name: &str) {
        let goldens = Goldens::open("optimizers.safetensors");
        let (mut optimizer, params) = hundred_steps(kind);
        for (index, param) in params.iter().enumerate() {
            let prefix = format!("{name}.{index}");
            // bitsandbytes updates small tensors by a formula of its own.
            let exact = kind == OptimizerKind::Adamw || param.len() >= SMALLEST_8BIT;
            // PyTorch's square root is not always rounded correctly, so values may differ in the last bit; moments
            // are made without it.
            assert_close(&prefix, param, &goldens.f32(&format!("{prefix}.param")), false);
            for (part, slice) in optimizer.state(index) {
                let key = format!("{prefix}.{part}");
                match slice {
                    StateSlice::F32(ours) => assert_close(&key, ours, &goldens.f32(&key), exact),
                    StateSlice::U8(ours) => {
                        let wrong = ours.iter().zip(goldens.bytes(&key)).filter(|(a, b)| a != b).count();
                        assert_eq!(wrong, 0, "{key}: codes that differ");
                    }
                }
            }
        }
    }

    #[test]
    fn a_hundred_steps_end_where_torch_ends() {
        assert_state_equals_golden(OptimizerKind::Adamw, "adamw");
    }

    #[test]
    fn a_hundred_8bit_steps_leave_the_state_of_bitsandbytes() {
        assert_state_equals_golden(OptimizerKind::Adamw8bit, "adamw_8bit");
    }

    #[test]
    fn the_bytes_of_the_state_are_known_before_it_exists() {
        for kind in [OptimizerKind::Adamw, OptimizerKind::Adamw8bit] {
            let planned: usize = LENGTHS.iter().map(|len| kind.bytes(*len)).sum();
            assert_eq!(Optimizer::new(kind, SETTINGS, LENGTHS).bytes(), planned as u64);
        }
    }

    #[test]
    fn zero_gradients_do_not_explode() {
        // A block that once had gradients and then only zeros: the second moment fades faster than the codes can
        // tell from zero, and a division by its root must still be harmless.
        let mut values = vec![0.5f32; SMALLEST_8BIT];
        let mut optimizer = Optimizer::new(OptimizerKind::Adamw8bit, SETTINGS, [values.len()]);
        let settle = gradient(60, values.len());
        for step in 0..3000 {
            let zero = vec![0.0; values.len()];
            optimizer.begin_step();
            optimizer.update(0, &mut values, if step < 5 { &settle } else { &zero }, 1e-3, 1.0, false);
            assert!(values.iter().all(|x| (x - 0.5).abs() < 0.1), "step {step}");
        }
    }

    /// As bitsandbytes does on a CPU; docs/training.md says so.
    #[test]
    fn a_parameter_without_a_gradient_moves_a_little_in_8_bits_and_not_at_all_in_f32() {
        let moved = |kind| {
            let mut values = vec![0.5f32; SMALLEST_8BIT];
            let mut optimizer = Optimizer::new(kind, SETTINGS, [values.len()]);
            for step in 0..20 {
                let mut gradient = uniform(values.len(), step);
                gradient[7] = 0.0;
                optimizer.begin_step();
                optimizer.update(0, &mut values, &gradient, 1e-3, 1.0, false);
            }
            (values[7] - 0.5).abs()
        };
        assert_eq!(moved(OptimizerKind::Adamw), 0.0);
        let little = moved(OptimizerKind::Adamw8bit);
        assert!(little > 0.0 && little < 20.0 * 1e-3, "{little}");
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let run = |threads| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap()
                .install(|| hundred_steps(OptimizerKind::Adamw8bit))
        };
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn code_books_are_those_of_bitsandbytes() {
        let goldens = Goldens::open("optimizers.safetensors");
        assert_eq!(goldens.f32("map.signed"), *DynamicMap::signed().values());
        assert_eq!(goldens.f32("map.unsigned"), *DynamicMap::unsigned().values());
    }

    #[test]
    fn codes_and_scales_are_those_of_bitsandbytes() {
        let goldens = Goldens::open("optimizers.safetensors");
        let cases = [("signed", 5, DynamicMap::signed()), ("unsigned", 6, DynamicMap::unsigned())];
        for (kind, seed, map) in cases {
            let values: Vec<f32> = uniform(4096, seed)
                .iter()
                .map(|x| x * x * x * x * x)
                .map(|x| if kind == "unsigned" { x.abs() } else { x })
                .collect();
            let mut codes = vec![0; 4096];
            let scales: Vec<f32> = values
                .chunks(BLOCK)
                .zip(codes.chunks_mut(BLOCK))
                .map(|(block, codes)| map.quantise(block, codes))
                .collect();
            assert_eq!(goldens.bytes(&format!("quantise.{kind}")), codes, "{kind}");
            assert_eq!(goldens.f32(&format!("quantise.{kind}.scale")), scales, "{kind}");
        }
    }
}
