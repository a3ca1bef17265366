//! How each tensor of a model is held, in files or in memory.
//!
//! Takes a configuration or a checkpoint, and the [`Precision`] that a run asks for, and gives the bytes that
//! the weights take and whether an MLP can be computed in parts. Tensors are counted one by one: a checkpoint
//! may hold its vision tower in 16 bits and its language model in 4.

use crate::config::ModelConfig;
use crate::parameters::{Parameter, parameters};
use crate::weights::Precision;
use garden_engine::ops::linear::Linear;
use garden_engine::{StoredAs, stored_bytes};

/// How each tensor lies, in the order of [`parameters`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held(Vec<(Parameter, StoredAs)>);

impl Held {
    /// Every matrix as `of` says. What has one axis alone (norms, biases) is f32 in memory, however it is
    /// stored.
    pub(crate) fn new<E>(
        config: &ModelConfig,
        mut of: impl FnMut(&Parameter) -> Result<StoredAs, E>,
    ) -> Result<Self, E> {
        let one = |parameter: Parameter| {
            let stored = if parameter.shape.len() > 1 { of(&parameter)? } else { StoredAs::F32 };
            Ok((parameter, stored))
        };
        parameters(config).into_iter().map(one).collect::<Result<_, E>>().map(Self)
    }

    /// How tensors that lie so in the files are held by a run.
    pub fn loaded(mut self, precision: Precision) -> Self {
        for (parameter, stored) in self.0.iter_mut().filter(|(parameter, _)| parameter.shape.len() > 1) {
            *stored = match (precision, parameter.quantizable) {
                (Precision::F32, _) => StoredAs::F32,
                (Precision::Bits16, _) if *stored == StoredAs::F32 => StoredAs::Bf16,
                (Precision::Bits8, true) => StoredAs::Int8,
                (Precision::Bits4, true) => StoredAs::Nf4,
                _ => *stored,
            };
        }
        self
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        let bytes = |(Parameter { shape, .. }, stored): &(Parameter, StoredAs)| {
            stored_bytes(shape[0], shape[1..].iter().product(), *stored)
        };
        self.0.iter().map(bytes).sum()
    }

    /// Whether every MLP can be computed a part of its inner width after another.
    pub(crate) fn divided(&self) -> bool {
        let mut down =
            self.0.iter().filter(|(parameter, _)| parameter.name.ends_with(".mlp.down_proj.weight"));
        down.all(|(_, stored)| Linear::divides_inputs(*stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::new_model::Preset;
    use crate::parameters::Part;
    use std::convert::Infallible;

    /// A vision tower in 16 bits beside a language model in 4.
    fn mixed(config: &ModelConfig) -> Held {
        let of = |parameter: &Parameter| {
            Ok::<_, Infallible>(match (parameter.quantizable, parameter.part) {
                (true, Part::Language) => StoredAs::Nf4,
                (_, Part::Vision) => StoredAs::Bf16,
                _ => StoredAs::F32,
            })
        };
        let Ok(held) = Held::new(config, of);
        held
    }

    #[test]
    fn tensors_of_several_types_are_counted_one_by_one() {
        let config = Preset::named("tiny").unwrap().model_config().unwrap();
        let (mut vision, mut language, mut vectors, mut others) = (0, 0, 0, 0);
        for parameter in parameters(&config) {
            let sum = match (&parameter.shape[..], parameter.part, parameter.quantizable) {
                ([_], ..) => &mut vectors,
                (_, Part::Vision, _) => &mut vision,
                (_, _, true) => &mut language,
                _ => &mut others,
            };
            *sum += parameter.elements();
        }
        let held = mixed(&config);
        let bytes = 2 * vision + 4 * vectors + 4 * others;
        // Half a byte a value, a byte of scale for 64 of them, and a little more.
        let codes = held.bytes() - bytes;
        assert!((language * 33 / 64..language * 34 / 64).contains(&codes), "{codes} for {language} values");
        assert!(!held.divided());

        let all = vision + language + vectors + others;
        assert_eq!(held.clone().loaded(Precision::F32).bytes(), 4 * all);
        assert!(held.clone().loaded(Precision::F32).divided());
        assert_eq!(held.clone().loaded(Precision::AsStored), held);
        assert_eq!(held.clone().loaded(Precision::Bits16).bytes(), held.bytes() - 2 * others);
        assert!(held.clone().loaded(Precision::Bits4).bytes() < held.bytes());
    }
}
