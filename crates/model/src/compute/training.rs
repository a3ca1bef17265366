//! What is trained, as far as memory and the way back are concerned.
//!
//! In come the modules that have pairs, or that all weights are trained; out comes what every buffer's size and life depends on. A
//! plan makes it from a configuration and a run from its model: both here, so that they cannot disagree.

use crate::config::ModelConfig;
use crate::lora::LoraSettings;

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Training {
    /// Rank of the pairs in the vision tower and in the language model; zero for none.
    pub rank: [usize; 2],
    /// Rank of the pairs in the merger; zero for none.
    pub merger_rank: usize,
    /// The lowest block of each tower that backward visits: below it no gradient is needed, and nothing is kept.
    pub lowest: [usize; 2],
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
const TOWERS: [&str; 2] = ["model.visual.blocks.", "model.language_model.layers."];

/// Where the layers between the two are.
const MERGER: &str = "model.visual.merger.";

impl Training {
    /// All weights.
    pub fn full(divided: bool) -> Self {
        Self {
            rank: [0; 2],
            merger_rank: 0,
            lowest: [0; 2],
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
        let [vision, text] =
            TOWERS.map(|tower| modules.clone().filter_map(|module| index(module, tower)).min());
        let rank = settings.map_or(0, |settings| settings.rank);
        let merger = modules.clone().any(|module| module.starts_with(MERGER));
        let through_vision = vision.is_some() || merger;
        Self {
            rank: [vision, text].map(|lowest| if lowest.is_some() { rank } else { 0 }),
            merger_rank: if merger { rank } else { 0 },
            // On its way down to the pictures a gradient passes every layer of the language model.
            lowest: [
                vision.unwrap_or(usize::MAX),
                if through_vision { 0 } else { text.unwrap_or(usize::MAX) },
            ],
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

    /// Blocks of the vision tower and layers of the language model that backward visits.
    pub fn visited(&self, config: &ModelConfig) -> [usize; 2] {
        match self.backward {
            true => [
                config.vision.depth.saturating_sub(self.lowest[0]),
                config.text.layers.saturating_sub(self.lowest[1]),
            ],
            false => [0; 2],
        }
    }
}
