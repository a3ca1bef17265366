//! The form of a request for a job, for the OpenAPI document. Requests are read field by field, to name what
//! is wrong.

#![allow(dead_code, reason = "only the document's form of it")]

use crate::job::record::OrAuto;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A request for a fine-tuning job.
#[derive(Deserialize, ToSchema)]
#[schema(as = CreateJob)]
pub(crate) struct CreateJobForm {
    /// The model by its name in `/v1/models`, or a hub id.
    #[schema(min_length = 1, max_length = 256)]
    model: String,
    /// The id of an uploaded file with the rows to train on.
    #[schema(min_length = 1, max_length = 256)]
    training_file: String,
    /// The id of an uploaded file with the rows to evaluate on.
    validation_file: Option<String>,
    /// A word in the tuned model's name.
    #[schema(max_length = 64)]
    suffix: Option<String>,
    seed: Option<u64>,
    /// Up to 16 pairs.
    metadata: Option<BTreeMap<String, String>>,
    method: Option<MethodRequest>,
    /// Deprecated by OpenAI: use `method.supervised.hyperparameters`. Both are joined.
    hyperparameters: Option<HyperparametersRequest>,
    /// None are known: null or empty.
    #[schema(value_type = Option<Vec<Object>>)]
    integrations: Option<Vec<Value>>,
    /// Jobs with a higher priority go first.
    #[schema(minimum = -1000, maximum = 1000)]
    priority: Option<i64>,
    /// How often the job is started again from its checkpoint after it was killed or stopped at its memory
    /// limit.
    #[schema(maximum = 100)]
    max_restarts: Option<u32>,
    /// The trainer's settings, in snake case: `learning_rate`, `lora_r`, `eval_split` ...
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    settings: Map<String, Value>,
}

/// OpenAI's method, or the trainer's.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
enum MethodRequest {
    OpenAi(SupervisedMethod),
    Trainer(TrainerMethod),
}

/// What is trained: an adapter, or all weights.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum TrainerMethod {
    Lora,
    Full,
}

/// The methods of OpenAI's that are known.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum MethodKind {
    Supervised,
}

/// How a model is tuned.
#[derive(Deserialize, ToSchema)]
#[schema(as = SupervisedMethodRequest)]
#[serde(deny_unknown_fields)]
struct SupervisedMethod {
    #[serde(rename = "type")]
    kind: MethodKind,
    supervised: Option<SupervisedRequest>,
}

/// Supervised tuning.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SupervisedRequest {
    hyperparameters: Option<HyperparametersRequest>,
}

/// OpenAI's hyperparameters: numbers or `"auto"`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HyperparametersRequest {
    batch_size: Option<OrAuto<u64>>,
    learning_rate_multiplier: Option<OrAuto<f64>>,
    n_epochs: Option<OrAuto<u64>>,
}
