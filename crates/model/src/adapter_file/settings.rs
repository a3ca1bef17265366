//! `adapter_config.json`: which of PEFT's settings can be followed.
//!
//! Reads the file as PEFT writes it, and writes our own [`LoraSettings`] as one. What would silently be
//! computed wrong (another kind of adapter, a base that PEFT changes on loading) is refused by its key.

use crate::lora::{LoraSettings, pattern_of_names, target_pattern};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

const MAKE_PLAIN: &str = "PiSSA, CorDA and OLoRA change the base model's weights, which is not implemented; make it a plain \
    adapter with PEFT's `save_pretrained(..., path_initial_model_for_weight_conversion=...)`";
const MERGE_FIRST: &str = "LoftQ changes the base model's weights, which is not implemented; merge it with PEFT's \
    `merge_and_unload` and use the merged model";

/// `adapter_config.json`, the keys that matter; PEFT fills in the rest.
#[derive(Serialize, Deserialize)]
pub(super) struct ConfigFile {
    peft_type: String,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f32,
    #[serde(default)]
    lora_dropout: f32,
    #[serde(default)]
    use_rslora: bool,
    target_modules: Option<TargetModules>,
    #[serde(default = "none")]
    bias: String,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    inference_mode: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    rank_pattern: BTreeMap<String, usize>,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f32>,
    #[serde(default)]
    init_lora_weights: Value,
    #[serde(default, skip_serializing)]
    alora_invocation_tokens: Value,
    #[serde(default, skip_serializing)]
    layer_replication: Value,
    #[serde(default, skip_serializing)]
    layers_to_transform: Value,
    #[serde(default, skip_serializing)]
    layers_pattern: Value,
    #[serde(default, skip_serializing)]
    exclude_modules: Value,
}

fn none() -> String {
    "none".into()
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum TargetModules {
    Pattern(String),
    Names(Vec<String>),
}

impl TargetModules {
    /// PEFT takes a list for the ends of paths, a string for a pattern over whole ones or the word for all
    /// linear layers.
    fn into_pattern(self) -> String {
        match self {
            Self::Pattern(pattern) => target_pattern(&pattern),
            Self::Names(names) => pattern_of_names(&names),
        }
    }
}

impl ConfigFile {
    /// The settings, if they are of an adapter that can be computed.
    pub fn settings(self) -> Result<LoraSettings, String> {
        let refused = [
            (self.peft_type != "LORA", "peft_type", "only LORA can be read"),
            (self.use_dora, "use_dora", "DoRA is not implemented"),
            (self.bias != "none", "bias", "trained biases are not implemented"),
            (self.fan_in_fan_out, "fan_in_fan_out", "transposed layers do not occur in this model"),
            (
                self.modules_to_save.as_ref().is_some_and(|list| !list.is_empty()),
                "modules_to_save",
                "not implemented",
            ),
            (!self.rank_pattern.is_empty(), "rank_pattern", "one rank for all layers is implemented"),
            (!self.alpha_pattern.is_empty(), "alpha_pattern", "one alpha for all layers is implemented"),
            (self.starts_as(&["pissa", "corda", "olora"]), "init_lora_weights", MAKE_PLAIN),
            (self.starts_as(&["loftq"]), "init_lora_weights", MERGE_FIRST),
            (
                !self.alora_invocation_tokens.is_null(),
                "alora_invocation_tokens",
                "adapters that begin at certain tokens are not implemented",
            ),
            (!self.layer_replication.is_null(), "layer_replication", "repeated layers are not implemented"),
        ];
        if let Some((_, key, reason)) = refused.into_iter().find(|(refused, ..)| *refused) {
            return Err(format!("`{key}`: {reason}"));
        }
        let target_modules = self.target_modules.ok_or("`target_modules` is missing")?.into_pattern();
        let settings = LoraSettings {
            rank: self.r,
            alpha: self.lora_alpha,
            dropout: self.lora_dropout,
            rslora: self.use_rslora,
            target_modules,
        };
        settings.check().map_err(|error| error.to_string())?;
        Ok(settings)
    }

    /// The key by which PEFT gives a pair to fewer layers than `target_modules` chooses, if one is set.
    pub fn narrowed_by(&self) -> Option<&'static str> {
        let is_set = |value: &Value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => true,
        };
        let keys = [
            ("layers_to_transform", &self.layers_to_transform),
            ("layers_pattern", &self.layers_pattern),
            ("exclude_modules", &self.exclude_modules),
        ];
        keys.into_iter().find(|(_, value)| is_set(value)).map(|(key, _)| key)
    }

    /// Whether its first values were made in one of these ways; PEFT reads their names in any case.
    fn starts_as(&self, ways: &[&str]) -> bool {
        let name = self.init_lora_weights.as_str().unwrap_or_default().to_lowercase();
        ways.iter().any(|way| name.starts_with(way))
    }
}

impl LoraSettings {
    pub(super) fn to_config_json(&self, base: &str) -> String {
        let file = ConfigFile {
            peft_type: "LORA".into(),
            task_type: Some("CAUSAL_LM".into()),
            base_model_name_or_path: Some(base.into()),
            r: self.rank,
            lora_alpha: self.alpha,
            lora_dropout: self.dropout,
            use_rslora: self.rslora,
            target_modules: Some(TargetModules::Pattern(self.target_modules.clone())),
            bias: none(),
            fan_in_fan_out: false,
            inference_mode: true,
            use_dora: false,
            modules_to_save: None,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            init_lora_weights: Value::Bool(true),
            alora_invocation_tokens: Value::Null,
            layer_replication: Value::Null,
            layers_to_transform: Value::Null,
            layers_pattern: Value::Null,
            exclude_modules: Value::Null,
        };
        // A struct of strings and numbers always has a JSON form.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }
}
