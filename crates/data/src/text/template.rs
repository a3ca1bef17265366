//! The checkpoint's chat template, run as HF runs it.
//!
//! In come guarded turns and which of them are to be learned; out goes the rendered text with the spans of what the
//! assistant says. The template is somebody else's program: it gets no files, no other templates, and a bounded
//! number of steps.

use super::{
    TextError,
    guard::{Guard, SafePart, SafeTurn},
};
use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig, value::merge_maps};
use std::{borrow::Cow, ops::Range};

/// Steps of the template engine for one row: thousands of turns need fewer, an endless loop ends within a second.
const MAX_STEPS: u64 = 20_000_000;
/// The longest template read; published ones have a few kilobytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
const NAME: &str = "chat_template";

/// A compiled template and the names it may use.
pub(super) struct Template {
    environment: Environment<'static>,
    /// `bos_token` and its like.
    names: Value,
}

/// A rendered row.
pub(super) struct Rendered {
    /// The text, guarded.
    pub text: String,
    /// What is learned of it: the assistant's words.
    spans: Vec<Range<usize>>,
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
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| format!("{error:#}"))?;
        Ok(Self { environment, names })
    }

    /// Renders a row, finding the words of the marked turns.
    pub fn render(
        &self,
        turns: &[SafeTurn],
        marked: &[bool],
        guard: Guard,
        prompt: bool,
    ) -> Result<Rendered, TextError> {
        let text = self.run(turns, |_| None, prompt)?;
        let mut rendered = Rendered { text, spans: Vec::new(), breaker: guard.breaker };
        if marked.contains(&true) {
            let with_marks = self.run(turns, |turn| marked[turn].then_some(guard.mark), prompt)?;
            rendered.spans = spans_between(guard.mark, &with_marks);
            let without: String = with_marks.split(guard.mark).collect();
            let expected = marked.iter().filter(|&&marked| marked).count();
            if without != rendered.text || rendered.spans.len() != expected {
                return Err(TextError::Rewritten);
            }
        }
        Ok(rendered)
    }

    fn run(
        &self,
        turns: &[SafeTurn],
        mark: impl Fn(usize) -> Option<char>,
        prompt: bool,
    ) -> Result<String, TextError> {
        let failed = |error: minijinja::Error| TextError::Template(format!("{error:#}"));
        let messages: Vec<Value> =
            turns.iter().enumerate().map(|(at, turn)| message(turn, mark(at))).collect();
        let row = context! { messages, add_generation_prompt => prompt, tools => (), documents => () };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(merge_maps([row, self.names.clone()])).map_err(failed)
    }
}

/// A turn as templates expect it: plain text as a string, anything else as a list of parts.
fn message(turn: &SafeTurn, mark: Option<char>) -> Value {
    let content = match &turn.parts[..] {
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
    context! { role => turn.role.name(), content }
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
    /// Whether a control token belongs to what is learned: it lies within the assistant's words, or ends them.
    pub fn is_trained_special(&self, special: &Range<usize>) -> bool {
        self.spans.iter().any(|span| span.start <= special.start && special.start <= span.end)
    }

    /// A piece of the text as it is to be tokenised, and what of it is learned.
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

    fn turns(texts: &[&'static str]) -> Vec<SafeTurn<'static>> {
        let turn = |(at, &text): (usize, &&'static str)| SafeTurn {
            role: if at % 2 == 0 { Role::User } else { Role::Assistant },
            parts: vec![SafePart::Text(text.into())],
        };
        texts.iter().enumerate().map(turn).collect()
    }

    fn render(source: &str, texts: &[&'static str], marked: &[bool]) -> Result<Rendered, TextError> {
        let template = Template::new(source, context! { bos_token => "<s>" }).expect("compiles");
        template.render(&turns(texts), marked, GUARD, false)
    }

    #[test]
    fn the_words_of_the_marked_turns_are_found() {
        let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}";
        let rendered = render(source, &["a", "bc", "d", "ef"], &[false, true, false, true]).expect("renders");
        assert_eq!(rendered.text, "<s>[user]a;[assistant]bc;[user]d;[assistant]ef;");
        let words: Vec<_> = rendered.spans.iter().map(|span| &rendered.text[span.clone()]).collect();
        assert_eq!(words, ["bc", "ef"]);
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
        let rendered = Rendered { text: "a!bc!d".into(), spans: vec![0..1, 3..6], breaker: '!' };
        let (text, spans) = rendered.unguarded(0..6);
        assert_eq!(text, "abcd");
        assert_eq!(spans, [0..1, 2..4]);
    }
}
