//! Answers: equal to those given alone, cut where they should be, and held to what was asked.

mod common;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::{Collected, Garden, ask, finish, image, text, user};
use garden_chat::{ChatRequest, Fault, FaultKind, Finish, Format, Message, MessagePart, Speaker};
use serde_json::{Value, json};

fn questions() -> Vec<ChatRequest> {
    let words = "What is shown here, and what is not? ".repeat(6);
    let seeded = |seed| ChatRequest { temperature: 1.2, seed, ..user(vec![text(&words)]) };
    vec![
        user(vec![text("Hello")]),
        user(vec![image("alpha.png"), image("grey.jpg"), text("What differs?")]),
        seeded(7),
        user(vec![text("Between "), image("exif-6.jpg"), text(" words")]),
        seeded(8),
        ChatRequest { temperature: 0.7, seed: 3, ..user(vec![image("cmyk.jpg"), text("Colours?")]) },
        user(vec![text(&words)]),
        ChatRequest { max_tokens: Some(70), ..user(vec![text(&words), text("On and on")]) },
    ]
}

#[test]
fn eight_at_once_get_the_answers_that_each_gets_alone_and_again_from_the_cache() {
    let garden = Garden::new();
    let mut engine = garden.engine();
    let questions = questions();
    for round in 0..2 {
        let mut collected = Collected::default();
        for (id, question) in questions.iter().enumerate() {
            engine.ask(id as u64, question).unwrap();
        }
        finish(&mut engine, &mut collected);
        for (id, question) in questions.iter().enumerate() {
            let (expected, tokens) = garden.alone(question, question.max_tokens.unwrap());
            let answer = &collected.0[&(id as u64)];
            assert_eq!(answer.text, expected, "question {id}, round {round}");
            assert_eq!(answer.usage().completion_tokens, tokens.len());
            assert_eq!(answer.finish() == Finish::Length, tokens.len() == question.max_tokens.unwrap());
        }
        let cached = collected.0[&7].usage().cached_tokens;
        assert_eq!(cached > 0, round == 1 || cached > 0);
        assert!(collected.0[&1].usage().image_tokens > 0);
        assert_eq!(collected.0[&0].usage().image_tokens, 0);
    }
    let again = ask(&mut engine, &questions[7]).usage();
    assert_eq!(again.cached_tokens, (again.prompt_tokens - 1) / 64 * 64, "all whole pages of the prompt");
    assert!(again.cached_tokens > 0);
}

#[test]
fn a_conversation_goes_on_from_what_is_kept_and_gets_the_same_answer() {
    let garden = Garden::new();
    let mut engine = garden.engine();
    let mut request = user(vec![image("grey.png"), text(&"Tell me all about it. ".repeat(12))]);
    request.messages.insert(0, Message { role: Speaker::System, parts: vec![text("Be brief.")] });
    request.max_tokens = Some(40);
    let first = ask(&mut engine, &request);
    request.messages.push(Message { role: Speaker::Assistant, parts: vec![text(&first.text)] });
    request.messages.push(Message { role: Speaker::User, parts: vec![text("And then?")] });
    let second = ask(&mut engine, &request);
    assert!(second.usage().cached_tokens >= 64, "{:?}", second.usage());
    assert_eq!(second.text, garden.alone(&request, 40).0);
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_told() {
    let garden = Garden::new();
    let mut engine = garden.engine();
    let mut ended_early = false;
    for seed in 0..6 {
        let hello = user(vec![text("Hello")]);
        let request = ChatRequest { max_tokens: Some(30), temperature: 1.0, seed, ..hello };
        let whole = ask(&mut engine, &request).text;
        let characters: Vec<char> = whole.chars().collect();
        let stop: String = characters[characters.len() / 3..][..2].iter().collect();
        let cut = whole.find(&stop).unwrap();
        let stopped = ask(&mut engine, &ChatRequest { stop: vec!["\u{1}never".into(), stop], ..request });
        assert_eq!(stopped.text, whole[..cut]);
        assert_eq!(stopped.finish(), Finish::Stop);
        ended_early |= stopped.usage().completion_tokens < 30;
    }
    assert!(ended_early);
}

#[test]
fn likelihoods_are_told_token_by_token() {
    let garden = Garden::new();
    let mut engine = garden.engine();
    let request = ChatRequest { logprobs: Some(5), ..user(vec![text("Hello")]) };
    let answer = ask(&mut engine, &request);
    assert_eq!(answer.tokens.len(), 12);
    let bytes: Vec<u8> = answer.tokens.iter().flat_map(|token| token.chosen.bytes.clone()).collect();
    assert!(String::from_utf8_lossy(&bytes).starts_with(answer.text.trim_end_matches('\u{fffd}')));
    for token in &answer.tokens {
        assert_eq!(token.top.len(), 5);
        assert_eq!(token.top[0], token.chosen, "greedy takes the likeliest");
        assert!(token.top.is_sorted_by(|a, b| a.logprob >= b.logprob) && token.chosen.logprob < 0.0);
    }
    let none = ask(&mut engine, &ChatRequest { logprobs: Some(0), ..request.clone() });
    assert!(none.tokens.iter().all(|token| token.top.is_empty()) && none.tokens.len() == 12);
    assert!(ask(&mut engine, &ChatRequest { logprobs: None, ..request }).tokens.is_empty());
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green", "a \"blue\""]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
        },
        "required": ["colour", "count", "sure", "tags"],
        "additionalProperties": false,
    })
}

#[test]
fn answers_of_random_weights_follow_a_schema() {
    let garden = Garden::new();
    let mut engine = garden.engine();
    let format = Format::JsonSchema { schema: schema(), strict: true };
    for seed in 0..8 {
        let request = ChatRequest {
            temperature: if seed == 0 { 0.0 } else { 1.5 },
            seed,
            max_tokens: Some(300),
            format: format.clone(),
            ..user(vec![text("Describe it as JSON")])
        };
        let answer = ask(&mut engine, &request);
        assert_eq!(answer.finish(), Finish::Stop, "{answer:?}");
        let value: Value = serde_json::from_str(&answer.text).unwrap_or_else(|_| panic!("{:?}", answer.text));
        let object = value.as_object().unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), ["colour", "count", "sure", "tags"]);
        assert!(["red", "green", "a \"blue\""].contains(&object["colour"].as_str().unwrap()));
        assert!((0..=99).contains(&object["count"].as_i64().unwrap()));
        assert!(object["sure"].is_boolean());
        let tags = object["tags"].as_array().unwrap();
        assert!(tags.len() <= 3 && tags.iter().all(|tag| tag.as_str().unwrap().chars().count() <= 6));
    }
    // Beside an answer without a format, neither changes the other.
    let plain = user(vec![text("Hello")]);
    let constrained = ChatRequest { max_tokens: Some(300), format, ..user(vec![text("JSON")]) };
    let expected = (ask(&mut engine, &plain).text, ask(&mut engine, &constrained).text);
    let mut collected = Collected::default();
    engine.ask(1, &plain).unwrap();
    engine.ask(2, &constrained).unwrap();
    finish(&mut engine, &mut collected);
    assert_eq!((collected.0[&1].text.clone(), collected.0[&2].text.clone()), expected);
    let object = ChatRequest { format: Format::JsonObject, max_tokens: Some(40), ..plain };
    assert!(ask(&mut engine, &object).text.starts_with('{'));
}

#[test]
fn what_cannot_be_answered_is_refused_by_name() {
    let garden = Garden::new();
    let mut engine = garden.engine();
    let limit = engine.settings().tokens;
    let mut refused = |request: ChatRequest| -> Fault {
        let fault = engine.ask(1, &request).expect_err(&format!("{request:?}"));
        assert_eq!(fault.kind, FaultKind::Request, "{fault}");
        fault
    };
    let hello = || user(vec![text("Hello")]);
    let param = |fault: &Fault| fault.param.clone().unwrap();
    assert_eq!(param(&refused(ChatRequest::new(vec![]))), "messages");
    assert_eq!(param(&refused(ChatRequest { temperature: -1.0, ..hello() })), "temperature");
    assert_eq!(param(&refused(ChatRequest { top_p: 0.0, ..hello() })), "top_p");
    assert_eq!(param(&refused(ChatRequest { max_tokens: Some(0), ..hello() })), "max_tokens");
    assert_eq!(param(&refused(ChatRequest { max_tokens: Some(limit), ..hello() })), "max_tokens");
    assert_eq!(param(&refused(ChatRequest { stop: vec!["x".into(); 5], ..hello() })), "stop");
    assert_eq!(param(&refused(ChatRequest { logprobs: Some(21), ..hello() })), "top_logprobs");
    let long = refused(user(vec![text(&"word ".repeat(limit * 2))]));
    assert!(long.message.contains(&format!("no more than {limit}")), "{long}");
    let broken = refused(user(vec![garden_chat::MessagePart::Image("!!".into()), text("?")]));
    assert!(broken.message.starts_with("image 1 is no base64"), "{broken}");
    let broken = refused(user(vec![image("grey.png"), garden_chat::MessagePart::Image("AAAA".into())]));
    assert!(broken.message.starts_with("image 2 of the messages: "), "{broken}");
    let format = |schema| Format::JsonSchema { schema, strict: true };
    for wrong in [
        json!({"type": "string", "pattern": "(?=a)b"}),
        json!({"type": "object", "properties": {"a": {"$ref": "http://example.org/x.json"}}}),
        json!({"type": "integer", "minimum": 3, "maximum": 1}),
        json!({"type": "nothing"}),
        json!([]),
        json!({"enum": vec!["a long word".repeat(100); 300]}),
    ] {
        let fault = refused(ChatRequest { format: format(wrong.clone()), ..hello() });
        assert_eq!(param(&fault), "response_format", "{wrong}");
    }
}

#[test]
fn a_full_row_is_refused_and_a_cancelled_question_makes_room() {
    let garden = Garden::new();
    let settings = garden_chat::HostSettings { sequences: 2, waiting: 3, ..garden.engine().settings() };
    let mut engine = garden.engine_with(Some(settings));
    let long = ChatRequest { max_tokens: Some(500), ..user(vec![text("Hello")]) };
    let mut collected = Collected::default();
    let mut step = |engine: &mut garden_chat::Engine, times: usize| {
        (0..times).for_each(|_| {
            engine.step(&mut |id, reply| collected.take(id, reply));
        });
    };
    engine.ask(1, &long).unwrap();
    engine.ask(2, &long).unwrap();
    step(&mut engine, 3);
    assert_eq!(engine.load_now(), (0, 2));
    for id in 3..6 {
        engine.ask(id, &long).unwrap();
    }
    let full = engine.ask(6, &long).unwrap_err();
    assert_eq!(full.kind, FaultKind::Busy);
    step(&mut engine, 5);
    assert_eq!(engine.load_now(), (3, 2), "two answers at a time");
    engine.cancel(2);
    engine.cancel(4);
    assert_eq!(engine.load_now(), (2, 1));
    step(&mut engine, 3);
    assert_eq!(engine.load_now(), (1, 2), "question 3 has the place of 2");
    for id in [1, 3, 5, 99] {
        engine.cancel(id);
    }
    assert_eq!(engine.load_now(), (0, 0));
    assert!(!engine.step(&mut |_, _| panic!("nothing is told of what was cancelled")));
}

/// A BMP of one colour, whose width is a multiple of four.
fn bitmap(width: u32, height: u32) -> MessagePart {
    let mut bytes = b"BM".to_vec();
    let pixels = 3 * width * height;
    for word in [54 + pixels, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(bytes.len() + pixels as usize, 7);
    MessagePart::Image(STANDARD.encode(bytes))
}

#[test]
fn an_image_that_is_larger_than_planned_is_refused_by_its_header() {
    let garden = Garden::new();
    let settings = garden_chat::HostSettings { decoding: 3 * 300 * 300, ..garden.engine().settings() };
    let mut engine = garden.engine_with(Some(settings));
    engine.ask(1, &user(vec![bitmap(300, 300)])).unwrap();
    let fault = engine.ask(2, &user(vec![bitmap(300, 301)])).unwrap_err();
    assert_eq!((fault.kind, fault.param.as_deref()), (FaultKind::Request, Some("messages")));
    assert!(fault.message.contains("300x301") && fault.message.contains("90000"), "{fault}");
}

#[test]
fn the_limit_of_a_host_leaves_room_for_the_largest_image() {
    let garden = Garden::new();
    let plan = garden_chat::plan(&garden.model(), None, garden_model::Precision::AsStored, None).unwrap();
    let question = garden_chat::LARGEST_QUESTION as u64;
    assert!(plan.limit() >= plan.total() as u64 + plan.settings.decoding + 3 * question);
    let mut more = plan.clone();
    more.settings.decoding *= 2;
    assert_eq!(more.limit() - plan.limit(), plan.settings.decoding);
}
