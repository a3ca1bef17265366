//! Optimizers, and clipping by the global norm.
//!
//! An [`Optimizer`] takes trained tensors with their summed gradients, one after another, and changes values
//! and state in place; nothing is allocated. Results do not depend on the number of threads: pieces are
//! independent, and sums are taken over fixed pieces in a fixed order. Each optimizer is a file here that
//! implements [`Algorithm`], and a line in the list below.

mod adamw;
mod adamw_8bit;
mod clip;
#[cfg(test)]
mod testing;

pub use clip::SquaredNorm;

use garden_engine::vectorised;
use garden_model::{Dtype, MatrixShape, TrainableTensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Makes [`OptimizerKind`] from the list: flags, configuration files, plans and checkpoints all derive from
/// it.
macro_rules! optimizers {
    ($($(#[$about:meta])* $kind:ident $name:literal $algorithm:expr;)+) => {
        /// An optimizer by its name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
        pub enum OptimizerKind {
            $(
                $(#[$about])*
                #[serde(rename = $name)]
                #[cfg_attr(feature = "clap", value(name = $name))]
                $kind,
            )+
        }

        impl OptimizerKind {
            /// Every optimizer of the list.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),+];

            fn algorithm(self) -> &'static dyn Algorithm {
                match self {
                    $(Self::$kind => &$algorithm,)+
                }
            }
        }
    };
}

// The list: what help says of it, its variant, its name in flags and files, its algorithm.
optimizers! {
    /// AdamW, two f32 a parameter.
    Adamw "adamw" adamw::AdamW;
    /// AdamW, two bytes a parameter, with two f32 per 256.
    #[default]
    Adamw8bit "adamw_8bit" adamw_8bit::AdamW8bit;
}

impl OptimizerKind {
    /// Bytes of state for a tensor.
    pub fn bytes(self, shape: MatrixShape) -> usize {
        self.algorithm().state(shape).iter().map(StatePart::bytes).sum()
    }
}

/// How an optimizer moves a tensor, and what it remembers of it.
trait Algorithm: Sync {
    /// The parts of the state for a tensor of this shape. The memory plan and checkpoints follow from it.
    fn state(&self, shape: MatrixShape) -> Vec<StatePart>;

    /// Moves a tensor against its gradient, which is to be multiplied by the step's scale first. `state`
    /// holds the parts that [`Algorithm::state`] names, in that order; they are zero before the first step.
    fn update(&self, step: &Step<'_>, tensor: TrainableTensor<'_>, state: &mut [StateValues]);
}

/// Elements a task works on: large enough to hide the cost of a task. It is the same for any number of threads,
/// so that results are, too.
const PIECE: usize = 1 << 14;

/// Cuts a tensor into pieces of [`PIECE`] elements and gives each to `update` with its gradient and its state, on
/// all threads and compiled for the widest vectors of this machine. `state` is cut by the caller, such as
/// `m.par_chunks_mut(PIECE)`. `update` should be `#[inline(always)]`, or the compiler may leave it without
/// vectors.
#[inline(always)]
fn in_pieces<S: Send>(
    tensor: TrainableTensor<'_>,
    state: impl IndexedParallelIterator<Item = S>,
    update: impl Fn(&mut [f32], &[f32], S) + Sync,
) {
    let pieces = tensor.values.par_chunks_mut(PIECE).zip(tensor.gradient.par_chunks(PIECE));
    pieces.zip(state).for_each(|((values, gradient), state)| {
        vectorised(
            #[inline(always)]
            || update(values, gradient, state),
        );
    });
}

/// One part of a tensor's state, before it exists.
struct StatePart {
    name: &'static str,
    dtype: Dtype,
    len: usize,
}

impl StatePart {
    fn f32(name: &'static str, len: usize) -> Self {
        Self { name, dtype: Dtype::F32, len }
    }

    fn u8(name: &'static str, len: usize) -> Self {
        Self { name, dtype: Dtype::U8, len }
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.bitsize() / 8
    }

    fn zeros(&self) -> StateValues {
        match self.dtype {
            Dtype::U8 => StateValues::U8(vec![0; self.len]),
            _ => StateValues::F32(vec![0.0; self.len]),
        }
    }
}

/// What is the same for all tensors of a step.
struct Step<'a> {
    /// The optimizer's steps, this one included.
    number: u64,
    /// Learning rate.
    rate: f64,
    /// What gradients are multiplied with.
    scale: f32,
    settings: &'a AdamSettings,
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

/// One part of a tensor's state.
#[derive(Debug, Clone, PartialEq)]
pub enum StateValues {
    /// Numbers.
    F32(Vec<f32>),
    /// Codes of quantised numbers.
    U8(Vec<u8>),
}

impl StateValues {
    /// Type of its elements in a checkpoint.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::U8(_) => Dtype::U8,
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U8(codes) => codes.len(),
        }
    }

    /// Its bytes as they stand in a checkpoint.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::U8(codes) => codes,
        }
    }

    /// The same, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::U8(codes) => codes,
        }
    }
}

/// The state of one tensor.
#[derive(Debug, Clone, PartialEq)]
struct TensorState {
    names: Vec<&'static str>,
    values: Vec<StateValues>,
}

/// An optimizer over a fixed list of tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    kind: OptimizerKind,
    settings: AdamSettings,
    step: u64,
    tensors: Vec<TensorState>,
}

impl Optimizer {
    /// Zero state for tensors of these shapes.
    pub fn new(
        kind: OptimizerKind,
        settings: AdamSettings,
        shapes: impl IntoIterator<Item = MatrixShape>,
    ) -> Self {
        let state = |shape| {
            let parts = kind.algorithm().state(shape);
            let names = parts.iter().map(|part| part.name).collect();
            TensorState { names, values: parts.iter().map(StatePart::zeros).collect() }
        };
        Self { kind, settings, step: 0, tensors: shapes.into_iter().map(state).collect() }
    }

    /// Steps taken so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Continues after this many steps; the state is to be filled through [`Optimizer::state_mut`].
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Counts a step; each tensor is then to be updated once.
    pub fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Moves the tensor of this number against its gradient, which is multiplied by `scale` first.
    pub fn update(&mut self, number: usize, tensor: TrainableTensor<'_>, rate: f64, scale: f32) {
        assert_eq!(tensor.values.len(), tensor.gradient.len(), "a gradient has the length of its tensor");
        let step = Step { number: self.step, rate, scale, settings: &self.settings };
        self.kind.algorithm().update(&step, tensor, &mut self.tensors[number].values);
    }

    /// Bytes held for the state.
    pub fn bytes(&self) -> u64 {
        let parts = self.tensors.iter().flat_map(|tensor| &tensor.values);
        parts.map(|values| values.bytes().len() as u64).sum()
    }

    /// Every part of the state of one tensor, by name.
    pub fn state(&self, number: usize) -> impl Iterator<Item = (&'static str, &StateValues)> {
        let TensorState { names, values } = &self.tensors[number];
        names.iter().copied().zip(values)
    }

    /// The same, to be filled.
    pub fn state_mut(&mut self, number: usize) -> impl Iterator<Item = (&'static str, &mut StateValues)> {
        let TensorState { names, values } = &mut self.tensors[number];
        names.iter().copied().zip(values)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{LENGTHS, SETTINGS, steps, vector},
        *,
    };

    #[test]
    fn the_bytes_of_the_state_are_known_before_it_exists() {
        for &kind in OptimizerKind::ALL {
            let planned: usize = LENGTHS.iter().map(|len| kind.bytes(vector(*len))).sum();
            assert_eq!(Optimizer::new(kind, SETTINGS, LENGTHS.map(vector)).bytes(), planned as u64);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        // Several pieces, the last of them neither whole nor a whole number of blocks.
        const LENGTHS: [usize; 2] = [3 * PIECE + 1100, 300];
        for &kind in OptimizerKind::ALL {
            let run = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| steps(kind, LENGTHS, 5))
            };
            let alone = run(1);
            for threads in [2, 3] {
                assert!(run(threads) == alone, "{kind:?} differs with {threads} threads");
            }
        }
    }
}
