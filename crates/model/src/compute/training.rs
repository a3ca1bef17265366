//! What is trained, as far as memory and the backward are concerned.
//!
//! Takes the modules that have pairs, or that all weights are trained, and gives what every buffer's size and
//! life depends on. A plan makes it from a configuration and a run from its model: both here, so that they
//! cannot disagree.

use crate::config::ModelConfig;
use crate::lora::LoraSettings;

/// One thing for the vision tower and one for the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PerTower<T> {
    pub vision: T,
    pub text: T,
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Training {
    /// Rank of the pairs in each tower; zero for none.
    pub rank: PerTower<usize>,
    /// Rank of the pairs in the merger; zero for none.
    pub merger_rank: usize,
    /// The lowest block of each tower that backward visits: below it no gradient is needed, and nothing is
    /// kept.
    pub lowest: PerTower<usize>,
    /// Whether weights themselves are trained.
    pub full: bool,
    /// Whether gradients go down to the merger, and into the vision tower where something is trained there.
    pub through_vision: bool,
    /// Whether the pairs drop some of their inputs.
    pub dropout: bool,
    /// Whether the weights allow for an MLP in parts.
    pub divided: bool,
    /// Whether there is a backward at all.
    pub backward: bool,
}

/// Where the blocks of the two towers are found by name.
const TOWERS: PerTower<&str> =
    PerTower { vision: "model.visual.blocks.", text: "model.language_model.layers." };

/// Where the layers between the two are.
const MERGER: &str = "model.visual.merger.";

impl Training {
    /// All weights.
    pub fn full(divided: bool) -> Self {
        Self {
            rank: PerTower::default(),
            merger_rank: 0,
            lowest: PerTower::default(),
            full: true,
            through_vision: true,
            dropout: false,
            divided,
            backward: true,
        }
    }

    /// Pairs at these modules; nothing where there are none.
    pub fn pairs<'a>(
        modules: impl Iterator<Item = &'a str> + Clone,
        settings: Option<&LoraSettings>,
        divided: bool,
    ) -> Self {
        let index = |module: &str, tower| -> Option<usize> {
            module.strip_prefix(tower)?.split('.').next()?.parse().ok()
        };
        let lowest = |tower| modules.clone().filter_map(|module| index(module, tower)).min();
        let (vision, text) = (lowest(TOWERS.vision), lowest(TOWERS.text));
        let rank = settings.map_or(0, |settings| settings.rank);
        let rank_of = |lowest: Option<usize>| if lowest.is_some() { rank } else { 0 };
        let merger = modules.clone().any(|module| module.starts_with(MERGER));
        let through_vision = vision.is_some() || merger;
        Self {
            rank: PerTower { vision: rank_of(vision), text: rank_of(text) },
            merger_rank: if merger { rank } else { 0 },
            // On its way down to the images a gradient passes every layer of the language model.
            lowest: PerTower {
                vision: vision.unwrap_or(usize::MAX),
                text: if through_vision { 0 } else { text.unwrap_or(usize::MAX) },
            },
            full: false,
            through_vision,
            dropout: settings.is_some_and(|settings| settings.dropout > 0.0),
            divided,
            backward: true,
        }
    }

    /// Whether the merger's pairs drop some of their inputs.
    pub fn merger_drops(&self) -> bool {
        self.dropout && self.merger_rank > 0
    }

    /// Whether a row's bits must not depend on the rows beside it: an answer does not change with what else is
    /// asked.
    pub fn rowwise(&self) -> bool {
        !self.backward
    }

    /// Blocks of the vision tower and layers of the language model that backward visits.
    pub fn visited(&self, config: &ModelConfig) -> PerTower<usize> {
        match self.backward {
            true => PerTower {
                vision: config.vision.depth.saturating_sub(self.lowest.vision),
                text: config.text.layers.saturating_sub(self.lowest.text),
            },
            false => PerTower::default(),
        }
    }
}
