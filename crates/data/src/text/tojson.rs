//! `tojson` as HF gives it to chat templates: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Takes a value and gives its text, equal to Python's to the last blank: models were trained on that text.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};
use std::fmt::Write;

/// Deeper values than this are not written; descriptions of tools have a handful of levels.
const MAX_DEPTH: usize = 64;

/// The filter `tojson(indent=None, ensure_ascii=False)`.
pub(super) fn tojson(value: &Value, settings: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = settings.get("indent")?;
    let ascii: Option<bool> = settings.get("ensure_ascii")?;
    settings.assert_all_used()?;
    let mut out = String::new();
    Writer { indent, ascii: ascii.unwrap_or(false), out: &mut out }.value(value, 0)?;
    Ok(Value::from_safe_string(out))
}

struct Writer<'a> {
    indent: Option<usize>,
    ascii: bool,
    out: &'a mut String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "a value too deep for tojson"));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::Map => {
                let keys: Vec<Value> = value.try_iter()?.collect();
                self.list(['{', '}'], depth, keys, |writer, key| {
                    writer.text(&key.to_string());
                    writer.out.push_str(": ");
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(['[', ']'], depth, items, |writer, item| writer.value(item, depth + 1))?;
            }
            _ => self.text(&value.to_string()),
        }
        Ok(())
    }

    fn list(
        &mut self,
        [open, close]: [char; 2],
        depth: usize,
        items: Vec<Value>,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (at, item) in items.iter().enumerate() {
            match (at, self.indent) {
                (0, _) => {}
                (_, None) => self.out.push_str(", "),
                (_, Some(_)) => self.out.push(','),
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.min(16) * depth));
        }
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(number) if !value.is_integer() => self.out.push_str(&python_float(number)),
            _ => self.out.push_str(&value.to_string()),
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python writes it: the fewest digits that tell it apart, with an exponent outside of 1e-4 to
/// 1e16.
fn python_float(number: f64) -> String {
    let written = format!("{number:e}");
    let Some((digits, exponent)) = written.split_once('e') else { return written };
    match exponent.parse::<i32>() {
        Ok(exponent @ -4..16) => {
            let plain = format!("{number}");
            if exponent >= 0 && !plain.contains('.') { plain + ".0" } else { plain }
        }
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        Err(_) => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::{Environment, context};

    fn written(expression: &str) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", tojson);
        let source = format!("{{{{ {expression} }}}}");
        environment.render_str(&source, context! { empty => Value::from_iter::<[Value; 0]>([]) }).unwrap()
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        // Each right side is what Python's json.dumps(..., ensure_ascii=False) prints.
        for (expression, text) in [
            (
                r#"{"b": [1, 2.5, none], "a": "x <y> & 'z'"} | tojson"#,
                r#"{"b": [1, 2.5, null], "a": "x <y> & 'z'"}"#,
            ),
            (r#"[true, false, "Brücke\n\t\"\\"] | tojson"#, r#"[true, false, "Brücke\n\t\"\\"]"#),
            ("[] | tojson", "[]"),
            ("{} | tojson", "{}"),
            ("[1.0, 100000.0, -0.5] | tojson", "[1.0, 100000.0, -0.5]"),
            (r#""é😀" | tojson(ensure_ascii=true)"#, r#""\u00e9\ud83d\ude00""#),
            (r#"{"a": [1, {}]} | tojson(indent=2)"#, "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"),
        ] {
            assert_eq!(written(expression), text, "{expression}");
        }
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e300, "1e+300"),
            (0.1, "0.1"),
            (0.0, "0.0"),
            (123456.789, "123456.789"),
        ] {
            assert_eq!(python_float(number), text);
        }
    }
}
