//! OpenAI's hyperparameters, from the two places that a request may have them in.

use super::wrong;
use crate::{
    api::error::ApiError,
    job::record::{Hyperparameters, OrAuto},
};
use serde_json::{Map, Value};

/// OpenAI's hyperparameters, and the settings of the trainer that mean the same.
pub(super) const SAME_MEANING: [(&str, &str); 3] =
    [("batch_size", "batch_size"), ("n_epochs", "epochs"), ("learning_rate_multiplier", "learning_rate")];

/// Hyperparameters, as far as they were asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    batch_size: Option<OrAuto<u64>>,
    learning_rate_multiplier: Option<OrAuto<f64>>,
    n_epochs: Option<OrAuto<u64>>,
}

impl Asked {
    pub(super) fn of(asked: &Hyperparameters) -> Self {
        Self {
            batch_size: Some(asked.batch_size),
            learning_rate_multiplier: Some(asked.learning_rate_multiplier),
            n_epochs: Some(asked.n_epochs),
        }
    }

    /// What was asked for, and `auto` for the rest.
    pub(crate) fn complete(&self) -> Hyperparameters {
        Hyperparameters {
            batch_size: self.batch_size.unwrap_or(OrAuto::AUTO),
            learning_rate_multiplier: self.learning_rate_multiplier.unwrap_or(OrAuto::AUTO),
            n_epochs: self.n_epochs.unwrap_or(OrAuto::AUTO),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match name {
            "batch_size" => self.batch_size.is_some(),
            "n_epochs" => self.n_epochs.is_some(),
            _ => self.learning_rate_multiplier.is_some(),
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        match name {
            "batch_size" => self.batch_size = None,
            "n_epochs" => self.n_epochs = None,
            _ => self.learning_rate_multiplier = None,
        }
    }

    pub(super) fn take_over(&mut self, other: Self) {
        self.batch_size = other.batch_size.or(self.batch_size);
        self.learning_rate_multiplier = other.learning_rate_multiplier.or(self.learning_rate_multiplier);
        self.n_epochs = other.n_epochs.or(self.n_epochs);
    }

    /// Reads both places of a body and joins them.
    pub(super) fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let older = Self::of_object(body.get("hyperparameters"))?;
        let newer = Self::of_object(of_method(body.get("method"))?)?;
        Ok(Self {
            batch_size: same(older.batch_size, newer.batch_size, "batch_size")?,
            learning_rate_multiplier: same(
                older.learning_rate_multiplier,
                newer.learning_rate_multiplier,
                "learning_rate_multiplier",
            )?,
            n_epochs: same(older.n_epochs, newer.n_epochs, "n_epochs")?,
        })
    }

    fn of_object(value: Option<&Value>) -> Result<Self, ApiError> {
        let mut asked = Self::default();
        for (name, value) in object("hyperparameters", value)? {
            match name.as_str() {
                "batch_size" => asked.batch_size = number(name, value, "a whole number from 1 on", count)?,
                "n_epochs" => asked.n_epochs = number(name, value, "a whole number from 1 on", count)?,
                "learning_rate_multiplier" => {
                    let above_zero = |value: &Value| value.as_f64().filter(|factor| *factor > 0.0);
                    asked.learning_rate_multiplier = number(name, value, "a number above 0", above_zero)?;
                }
                name => {
                    let known = SAME_MEANING.map(|(name, _)| name).join(", ");
                    return Err(wrong(name, format!("there is no hyperparameter {name}: there are {known}")));
                }
            }
        }
        Ok(asked)
    }
}

/// The hyperparameters of OpenAI's `method`. The trainer's word has none.
fn of_method(method: Option<&Value>) -> Result<Option<&Value>, ApiError> {
    if method.is_some_and(Value::is_string) {
        return Ok(None);
    }
    let method = object("method", method)?;
    match method.get("type").map(Value::as_str) {
        Some(Some("supervised")) => {}
        None if method.is_empty() => return Ok(None),
        kind => {
            let kind = kind.flatten().map_or(String::new(), |kind| format!(", not {kind}"));
            let message =
                format!("method: the type must be supervised{kind}; or give lora or full as the method");
            return Err(wrong("method", message));
        }
    }
    if let Some(name) = method.keys().find(|name| !["type", "supervised"].contains(&name.as_str())) {
        return Err(wrong("method", format!("method: there is no {name} in a supervised one")));
    }
    let supervised = object("method", method.get("supervised"))?;
    if let Some(name) = supervised.keys().find(|name| *name != "hyperparameters") {
        return Err(wrong("method", format!("method: there is no {name} in supervised")));
    }
    Ok(supervised.get("hyperparameters"))
}

/// The fields of an object; none where it is absent or null.
fn object<'a>(name: &str, value: Option<&'a Value>) -> Result<&'a Map<String, Value>, ApiError> {
    static NOTHING: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    match value {
        None | Some(Value::Null) => Ok(&NOTHING),
        Some(Value::Object(fields)) => Ok(fields),
        Some(_) => Err(wrong(name, format!("{name} must be an object"))),
    }
}

/// A number or `"auto"`, unless it is null.
fn number<T>(
    name: &str,
    value: &Value,
    what: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<OrAuto<T>>, ApiError> {
    match value {
        Value::Null => Ok(None),
        Value::String(word) if word == "auto" => Ok(Some(OrAuto::AUTO)),
        value => match read(value) {
            Some(number) => Ok(Some(OrAuto::Number(number))),
            None => Err(wrong(name, format!("{name} must be {what}, or \"auto\""))),
        },
    }
}

/// A whole number from 1 on, however it is written: 2 and 2.0 are the same in JSON.
fn count(value: &Value) -> Option<u64> {
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..=9e15).contains(number);
    value
        .as_u64()
        .or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
        .filter(|count| *count > 0)
}

/// What two places say, if they do not contradict each other.
fn same<T: PartialEq>(older: Option<T>, newer: Option<T>, name: &str) -> Result<Option<T>, ApiError> {
    match (older, newer) {
        (Some(older), Some(newer)) if older != newer => {
            let message =
                format!("{name} is given twice with different values, in hyperparameters and in method");
            Err(wrong(name, message))
        }
        (older, newer) => Ok(newer.or(older)),
    }
}
