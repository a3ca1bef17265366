//! The checkpoint's chat template, run as HF runs it.
//!
//! Takes a guarded row and which of its turns are marked, and gives the rendered text with the spans of what
//! the assistant says in them. The template is somebody else's program: it gets no files, no other templates,
//! and a bounded number of steps.

use super::{
    TextError,
    guard::{Guard, SafePart, SafeRow, SafeTurn, Specials},
    tojson,
};
use crate::{row::Json, value::Value as Raw};
use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig, value::merge_maps};
use std::{borrow::Cow, ops::Range};

/// Steps of the template engine for one row: thousands of turns need fewer, an endless loop ends within a
/// second.
const MAX_STEPS: u64 = 20_000_000;
/// The longest template read; published ones have a few kilobytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
const NAME: &str = "chat_template";

/// A compiled template and the names it may use.
pub(super) struct Template {
    environment: Environment<'static>,
    /// `bos_token` and the other named tokens.
    names: Value,
    /// Whether it handles arguments of calls as text and as objects.
    knows_text_arguments: bool,
}

/// A rendered row.
pub(super) struct Rendered {
    /// The text, guarded.
    pub text: String,
    /// What the assistant says in the marked turns.
    spans: Vec<Range<usize>>,
    /// Whether everything outside the spans is learned, instead of the spans.
    pub all_but_spans: bool,
    breaker: char,
}

impl Template {
    /// Compiles a template.
    pub fn new(source: &str, names: Value) -> Result<Self, String> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(format!("{} bytes is over the limit of {MAX_TEMPLATE_BYTES}", source.len()));
        }
        let mut environment = Environment::new();
        // HF compiles templates with these two.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson::tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| format!("{error:#}"))?;
        Ok(Self { environment, names, knows_text_arguments: source.contains("arguments is string") })
    }

    /// Renders a row, finding the words of the marked turns.
    pub fn render(
        &self,
        row: &SafeRow,
        marked: &[bool],
        specials: &Specials,
        guard: Guard,
        prompt: bool,
    ) -> Result<Rendered, TextError> {
        let text = self.run(row, Shown::all(row, prompt))?;
        self.check_tools(row, prompt, &text)?;
        let calls = |turn: &usize| !row.turns[*turn].tool_calls.is_empty();
        let (calling, speaking): (Vec<usize>, _) =
            (0..row.turns.len()).filter(|at| marked[*at]).partition(calls);
        let mut spans = self.words(row, &speaking, guard, prompt, &text)?;
        for turn in calling {
            spans.push(self.words_and_calls(row, turn, specials, &text)?);
        }
        spans.sort_unstable_by_key(|span| span.start);
        Ok(Rendered { text, spans, all_but_spans: false, breaker: guard.breaker })
    }

    /// Refuses a row whose tools the template leaves out.
    fn check_tools(&self, row: &SafeRow, prompt: bool, text: &str) -> Result<(), TextError> {
        let without = |shown: Shown| Ok::<_, TextError>(self.run(row, shown)? == text);
        let all = Shown::all(row, prompt);
        if !row.tools.is_empty() && without(Shown { tools: false, ..all })? {
            return Err(TextError::NoTools);
        }
        let has_calls = row.turns.iter().any(|turn| !turn.tool_calls.is_empty());
        if has_calls && without(Shown { calls: false, ..all })? {
            return Err(TextError::NoToolCalls);
        }
        Ok(())
    }

    /// Finds the words of turns by rendering the row once more, with marks around them.
    fn words(
        &self,
        row: &SafeRow,
        turns: &[usize],
        guard: Guard,
        prompt: bool,
        text: &str,
    ) -> Result<Vec<Range<usize>>, TextError> {
        if turns.is_empty() {
            return Ok(Vec::new());
        }
        let with_marks =
            self.run(row, Shown { marks: Some((guard.mark, turns)), ..Shown::all(row, prompt) })?;
        let spans = spans_between(guard.mark, &with_marks);
        let without: String = with_marks.split(guard.mark).collect();
        if without != text || spans.len() != turns.len() {
            return Err(TextError::Rewritten);
        }
        Ok(spans)
    }

    /// The words of a turn that calls tools: what follows the prompt for it, up to the token that ends it.
    /// The template writes the calls, so there is nothing to put marks around.
    fn words_and_calls(
        &self,
        row: &SafeRow,
        turn: usize,
        specials: &Specials,
        text: &str,
    ) -> Result<Range<usize>, TextError> {
        let before = self.run(row, Shown { turns: turn, ..Shown::all(row, true) })?;
        let after = self.run(row, Shown { turns: turn + 1, ..Shown::all(row, false) })?;
        if !text.starts_with(&after) || !after.starts_with(&before) {
            return Err(TextError::Rewritten);
        }
        Ok(before.len()..before.len() + specials.last(&after[before.len()..]))
    }

    fn run(&self, row: &SafeRow, shown: Shown) -> Result<String, TextError> {
        let failed = |error: minijinja::Error| TextError::Template(format!("{error:#}"));
        let mark = |turn| shown.marks.filter(|(_, turns)| turns.contains(&turn)).map(|(mark, _)| mark);
        let turns = row.turns.iter().take(shown.turns).enumerate();
        let messages: Vec<Value> =
            turns.map(|(at, turn)| self.message(turn, mark(at), shown.calls)).collect();
        let tools =
            (shown.tools && !row.tools.is_empty()).then(|| row.tools.iter().map(json).collect::<Value>());
        let row = context! { messages, add_generation_prompt => shown.prompt, tools, documents => () };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(merge_maps([row, self.names.clone()])).map_err(failed)
    }

    /// A turn as templates expect it: plain text as a string, anything else as a list of parts.
    fn message(&self, turn: &SafeTurn, mark: Option<char>, calls: bool) -> Value {
        let content = match &turn.parts[..] {
            [] if mark.is_none() => Value::from(""),
            [SafePart::Text(text)] => Value::from(match mark {
                Some(mark) => format!("{mark}{text}{mark}"),
                None => text.to_string(),
            }),
            parts => {
                let bound = mark.map(|mark| text_part(&mark.to_string()));
                let parts = parts.iter().map(|part| match part {
                    SafePart::Text(text) => text_part(text),
                    SafePart::Image => context! { type => "image" },
                });
                bound.clone().into_iter().chain(parts).chain(bound).collect()
            }
        };
        let mut message = vec![("role", Value::from(turn.role.name())), ("content", content)];
        let texts = [("name", &turn.name), ("tool_call_id", &turn.tool_call_id)];
        message.extend(
            texts.into_iter().filter_map(|(key, text)| Some((key, Value::from(text.as_ref()?.as_str())))),
        );
        if calls && !turn.tool_calls.is_empty() {
            message.push(("tool_calls", turn.tool_calls.iter().map(|call| json(&self.call(call))).collect()));
        }
        Value::from_pairs(message)
    }

    /// A call with its arguments as an object. OpenAI writes them as text, and a template that does not
    /// expect this would quote the text once more: no model should learn that.
    fn call(&self, call: &Json) -> Json {
        let Json::Map(fields) = call else { return call.clone() };
        let field = |(key, value): &(String, Json)| {
            let value = match (key.as_str(), value) {
                ("function", function) => self.call(function),
                ("arguments", Json::Text(text)) if !self.knows_text_arguments => {
                    let parsed = Raw::from_json(text.as_bytes()).ok();
                    parsed
                        .filter(|parsed| matches!(parsed, Raw::Map(_)))
                        .map_or(value.clone(), |raw| Json::from(&raw))
                }
                (_, value) => value.clone(),
            };
            (key.clone(), value)
        };
        Json::Map(fields.iter().map(field).collect())
    }
}

/// What of a row is rendered.
#[derive(Clone, Copy)]
struct Shown<'a> {
    /// How many turns, from the first on.
    turns: usize,
    tools: bool,
    calls: bool,
    /// Whether the next turn is opened for the assistant.
    prompt: bool,
    /// A character around the words of some turns.
    marks: Option<(char, &'a [usize])>,
}

impl Shown<'_> {
    fn all(row: &SafeRow, prompt: bool) -> Self {
        Self { turns: row.turns.len(), tools: true, calls: true, prompt, marks: None }
    }
}

fn json(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Integer(number) => Value::from(*number),
        Json::Number(number) => Value::from(*number),
        Json::Text(text) => Value::from(text.as_str()),
        Json::List(list) => list.iter().map(json).collect(),
        Json::Map(fields) => Value::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), json(value)))),
    }
}

fn text_part(text: &str) -> Value {
    context! { type => "text", text }
}

/// `{% generation %}` marks labels for HF only; without it a template renders the same text.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let (before, tag) = (&rest[..open], &rest[open + 2..open + length]);
        out.push_str(before);
        let name = tag.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        };
        out.push_str("{%");
        out.push_str(&tag.replacen(name, replacement, usize::from(name != replacement)));
        out.push_str("%}");
        rest = &rest[open + length + 2..];
    }
    out.push_str(rest);
    out
}

/// The ranges between each two marks, in the coordinates of the text without marks.
fn spans_between(mark: char, text: &str) -> Vec<Range<usize>> {
    let places = text.match_indices(mark).enumerate().map(|(before, (at, _))| at - before * mark.len_utf8());
    let places: Vec<usize> = places.collect();
    places.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
}

impl Rendered {
    /// Whether a special token is learned. It belongs to the assistant's words if it lies within them, or
    /// ends them.
    pub fn is_trained_special(&self, special: &Range<usize>) -> bool {
        let said = self.spans.iter().any(|span| span.start < special.end && special.start <= span.end);
        said != self.all_but_spans
    }

    /// A piece of the text as it is to be tokenised, and what of it is in the spans.
    pub fn unguarded(&self, piece: Range<usize>) -> (Cow<'_, str>, Vec<Range<usize>>) {
        let text = &self.text[piece.clone()];
        let breakers = |up_to: usize| text[..up_to].matches(self.breaker).count();
        let inside = |at: usize| at.clamp(piece.start, piece.end) - piece.start;
        let moved = |at: usize| inside(at) - breakers(inside(at)) * self.breaker.len_utf8();
        let spans = self.spans.iter().map(|span| moved(span.start)..moved(span.end));
        let spans = spans.filter(|span| !span.is_empty()).collect();
        match text.contains(self.breaker) {
            true => (text.split(self.breaker).collect::<String>().into(), spans),
            false => (text.into(), spans),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Role;

    const GUARD: Guard = Guard { breaker: '!', mark: '^' };

    fn row(texts: &[&'static str]) -> SafeRow<'static> {
        let turn = |(at, &text): (usize, &&'static str)| SafeTurn {
            role: if at % 2 == 0 { Role::User } else { Role::Assistant },
            parts: vec![SafePart::Text(text.into())],
            tool_calls: Vec::new(),
            name: None,
            tool_call_id: None,
        };
        SafeRow { turns: texts.iter().enumerate().map(turn).collect(), tools: Vec::new() }
    }

    fn render_row(source: &str, row: &SafeRow, marked: &[bool]) -> Result<Rendered, TextError> {
        let template = Template::new(source, context! { bos_token => "<s>" }).expect("compiles");
        let specials = Specials::new([(";".to_owned(), 1)].into(), |_| true).expect("one short token");
        template.render(row, marked, &specials, GUARD, false)
    }

    fn render(source: &str, texts: &[&'static str], marked: &[bool]) -> Result<Rendered, TextError> {
        render_row(source, &row(texts), marked)
    }

    fn words(rendered: &Rendered) -> Vec<&str> {
        rendered.spans.iter().map(|span| &rendered.text[span.clone()]).collect()
    }

    #[test]
    fn the_words_of_the_marked_turns_are_found() {
        let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}";
        let rendered = render(source, &["a", "bc", "d", "ef"], &[false, true, false, true]).expect("renders");
        assert_eq!(rendered.text, "<s>[user]a;[assistant]bc;[user]d;[assistant]ef;");
        assert_eq!(words(&rendered), ["bc", "ef"]);
    }

    const CALLING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]\
        {{ m.content }}{% for call in m.tool_calls %}<{{ call.function.name }} \
        {{ call.function.arguments | tojson }}>{% endfor %};{% endfor %}\
        {% if add_generation_prompt %}[assistant]{% endif %}";

    fn call(arguments: Json) -> Json {
        let function = vec![("name".into(), Json::Text("f".into())), ("arguments".into(), arguments)];
        Json::Map(vec![("id".into(), Json::Text("1".into())), ("function".into(), Json::Map(function))])
    }

    #[test]
    fn the_words_of_a_turn_that_calls_tools_are_its_text_and_its_calls() {
        let object = Json::Map(vec![("b".into(), Json::Integer(1)), ("a".into(), Json::Null)]);
        for arguments in [object, Json::Text(r#"{"b": 1, "a": null}"#.into())] {
            let mut row = row(&["a", "bc", "d", "ef"]);
            row.turns[1].tool_calls = vec![call(arguments.clone()), call(Json::Map(vec![]))];
            let rendered = render_row(CALLING, &row, &[false, true, false, true]).expect("renders");
            assert_eq!(words(&rendered), [r#"bc<f {"b": 1, "a": null}><f {}>"#, "ef"]);
        }
    }

    #[test]
    fn a_template_that_shows_no_tools_is_refused() {
        let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}";
        let mut row = row(&["a", "bc"]);
        row.tools = vec![call(Json::Null)];
        assert_eq!(render_row(source, &row, &[false, true]).err(), Some(TextError::NoTools));
        assert!(render_row(CALLING, &row, &[false, true]).is_ok());
        row.tools.clear();
        row.turns[1].tool_calls = vec![call(Json::Null)];
        assert_eq!(render_row(source, &row, &[false, true]).err(), Some(TextError::NoToolCalls));
    }

    #[test]
    fn a_template_that_rewrites_the_words_is_refused() {
        let source = "{% for m in messages %}{{ m.content.strip() }};{% endfor %}";
        assert!(render(source, &["a", "bc"], &[false, true]).is_ok(), "nothing to strip");
        assert_eq!(render(source, &["a", "bc "], &[false, true]).err(), Some(TextError::Rewritten));
        let silent = "{% for m in messages %}{{ m.role }}{% endfor %}";
        assert_eq!(render(silent, &["a", "bc"], &[false, true]).err(), Some(TextError::Rewritten));
    }

    #[test]
    fn generation_tags_are_read_over() {
        let source =
            "{% for m in messages %}{%- generation -%} {{ m.content }}{% endgeneration %}{% endfor %}";
        assert_eq!(render(source, &["a"], &[false]).expect("renders").text, "a");
    }

    #[test]
    fn templates_can_refuse_a_row_and_cannot_run_for_ever() {
        let refused = render("{{ raise_exception('no tools') }}", &[], &[]).err();
        assert!(
            matches!(&refused, Some(TextError::Template(why)) if why.contains("no tools")),
            "{refused:?}"
        );
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, &[], &[]), Err(TextError::Template(_))));
        assert!(Template::new("{% for", context! {}).is_err());
    }

    #[test]
    fn breakers_vanish_and_spans_follow() {
        let rendered =
            Rendered { text: "a!bc!d".into(), spans: vec![0..1, 3..6], all_but_spans: false, breaker: '!' };
        let (text, spans) = rendered.unguarded(0..6);
        assert_eq!(text, "abcd");
        assert_eq!(spans, [0..1, 2..4]);
    }
}
