//! Each shape of row that people write, and the conversation it means.

use garden_data::{
    BadRow, Conversation, ImageSource, Part,
    shape::{self, Shape},
    value::Value,
};

fn read(row: &str) -> Result<(Shape, Conversation), BadRow> {
    shape::read(&Value::from_json(row.as_bytes()).expect("the test writes JSON"))
}

/// A conversation in one line: `user[img(a.png) What?] assistant[A cat]`.
fn outline(row: &str) -> (Shape, String) {
    let (shape, conversation) = read(row).unwrap_or_else(|error| panic!("{row}: {error}"));
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Image(ImageSource::Path(path)) => format!("img({})", path.display()),
        Part::Image(ImageSource::Bytes(bytes)) => format!("img({} bytes)", bytes.len()),
        Part::Image(ImageSource::Url(url)) => format!("img({url})"),
    };
    let turns = conversation.turns.iter().map(|turn| {
        let parts: Vec<_> = turn.parts.iter().map(part).collect();
        format!("{}[{}]", turn.role.name(), parts.join("|"))
    });
    (shape, turns.collect::<Vec<_>>().join(" "))
}

fn means(row: &str, shape: Shape, conversation: &str) {
    assert_eq!(outline(row), (shape, conversation.to_owned()), "{row}");
}

#[test]
fn openai_messages_with_text_or_parts() {
    means(
        r#"{"messages": [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                                         {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": "A cat"}]}"#,
        Shape::OpenAiMessages,
        "system[Be brief.] user[img(2 bytes)|What?] assistant[A cat]",
    );
}

#[test]
fn every_spelling_of_an_image_part() {
    let spellings = [
        (r#""type": "image", "image": "a.png""#, "img(a.png)"),
        (r#""type": "image", "image": {"path": "a.png", "bytes": null}"#, "img(a.png)"),
        (r#""type": "image", "image": {"path": "a.png", "bytes": "aGk="}"#, "img(2 bytes)"),
        (r#""type": "image", "path": "a.png""#, "img(a.png)"),
        (r#""type": "image", "path": "file:///data/a.png""#, "img(/data/a.png)"),
        (r#""type": "image", "url": "https://example.org/a.png""#, "img(https://example.org/a.png)"),
        (r#""type": "image", "url": "data:image/png;base64,aGk=""#, "img(2 bytes)"),
        (r#""type": "image", "base64": "aGk=""#, "img(2 bytes)"),
        (r#""type": "image", "base64": "data:image/png;base64,aGk=""#, "img(2 bytes)"),
        (r#""type": "image", "bytes": [255, 216, 255]"#, "img(3 bytes)"),
        (r#""type": "image_url", "image_url": "http://example.org/a.png""#, "img(http://example.org/a.png)"),
        (r#""type": "image_url", "image_url": {"url": "a.png"}"#, "img(a.png)"),
    ];
    for (part, image) in spellings {
        let row = format!(r#"{{"messages": [{{"role": "user", "content": [{{{part}}}]}}]}}"#);
        means(&row, Shape::OpenAiMessages, &format!("user[{image}]"));
    }
}

#[test]
fn bare_base64_in_the_place_of_a_path() {
    let base64 = format!("/9j/{}", "4AAQSkZJRgAB".repeat(6));
    let row = format!(r#"{{"text": "What?", "image": "{base64}", "response": "x"}}"#);
    means(&row, Shape::QuestionAnswer, "user[img(57 bytes)|What?] assistant[x]");
}

#[test]
fn trl_images_go_to_placeholders_or_before_the_first_user_turn() {
    means(
        r#"{"images": ["a.png", "b.png"], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "image"}, {"type": "image", "text": null}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Two"}]}]}"#,
        Shape::TrlMessages,
        "user[One|img(a.png)|img(b.png)] assistant[Two]",
    );
    means(
        r#"{"image": "a.png", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "What?"}]}"#,
        Shape::TrlMessages,
        "system[S] user[img(a.png)|What?]",
    );
}

#[test]
fn trl_prompt_and_completion_as_text_or_messages() {
    means(
        r#"{"images": ["a.png"], "prompt": "What?", "completion": "A cat"}"#,
        Shape::TrlPromptCompletion,
        "user[img(a.png)|What?] assistant[A cat]",
    );
    means(
        r#"{"image": {"bytes": "aGk=", "path": null}, "prompt": [{"role": "user", "content": "What?"}],
            "completion": [{"role": "assistant", "content": "A cat"}]}"#,
        Shape::TrlPromptCompletion,
        "user[img(2 bytes)|What?] assistant[A cat]",
    );
}

#[test]
fn messages_with_markers_beside_their_images() {
    means(
        r#"{"images": ["a.png", "b.png"], "messages": [{"role": "user", "content": "<image>Left or <image>?"},
            {"role": "assistant", "content": "Left"}]}"#,
        Shape::MarkedMessages,
        "user[img(a.png)|Left or |img(b.png)|?] assistant[Left]",
    );
}

#[test]
fn sharegpt_and_llava_conversations() {
    means(
        r#"{"conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A <image> tag"}],
            "images": ["a.png"]}"#,
        Shape::ShareGpt,
        "user[img(a.png)|\nWhat?] assistant[A <image> tag]",
    );
    means(
        r#"{"id": 7, "conversations": [{"from": "human", "value": "What?\n<image>"}, {"from": "gpt", "value": "A cat"}],
            "image": "a.png"}"#,
        Shape::Llava,
        "user[What?\n|img(a.png)] assistant[A cat]",
    );
    means(
        r#"{"conversations": [{"from": "human", "value": "<image> or <image>?"}], "image": ["a.png", "b.png"]}"#,
        Shape::Llava,
        "user[img(a.png)| or |img(b.png)|?]",
    );
    means(
        r#"{"conversations": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}"#,
        Shape::ShareGpt,
        "user[Hello] assistant[Hi]",
    );
}

#[test]
fn text_image_and_response_or_output() {
    means(
        r#"{"system": "S", "text": "What?", "image": "a.png", "response": "A cat"}"#,
        Shape::QuestionAnswer,
        "system[S] user[img(a.png)|What?] assistant[A cat]",
    );
    means(
        r#"{"text": "What?", "images": ["a.png", "b.png"], "output": "Cats"}"#,
        Shape::QuestionAnswer,
        "user[img(a.png)|img(b.png)|What?] assistant[Cats]",
    );
}

#[test]
fn a_marker_stays_text_where_the_shape_has_none() {
    let question = r#"{"text": "What is <image> in HTML?", "response": "No tag"}"#;
    means(question, Shape::QuestionAnswer, "user[What is <image> in HTML?] assistant[No tag]");
    let messages = r#"{"messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"},
        {"type": "text", "text": "<image> <|image_pad|>"}]}]}"#;
    means(messages, Shape::OpenAiMessages, "user[img(a.png)|<image> <|image_pad|>]");
    let placeholders = r#"{"images": ["a.png"], "messages": [{"role": "user", "content": [{"type": "image"},
        {"type": "text", "text": "<image>"}]}]}"#;
    means(placeholders, Shape::TrlMessages, "user[img(a.png)|<image>]");
}

#[test]
fn bad_rows_say_what_is_wrong() {
    let cases = [
        (r#"{"question": "x", "answer": "y"}"#, "no known shape of row: it has question, answer"),
        ("[1.5]", "no known shape of row: it has a list"),
        (r#"{"messages": []}"#, "no turns"),
        (r#"{"messages": "hi"}"#, "'messages' should be a list of messages, found text"),
        (r#"{"messages": [{"role": "narrator", "content": "x"}]}"#, "unknown role 'narrator'"),
        (r#"{"messages": [{"content": "x"}]}"#, "'role' should be text, found nothing"),
        (r#"{"messages": [{"role": "user"}]}"#, "'content' should be text or a list of parts, found nothing"),
        (r#"{"messages": [{"role": "user", "content": [{"type": "video"}]}]}"#, "part of type 'video'"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
            "1 image markers, but 0 images",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": [{"type": "image", "path": "a.png"}]}]}"#,
            "an image in a turn of role 'assistant'",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "<image><image>"}], "image": "a.png"}"#,
            "2 image markers, but 1 images",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "x"}], "image": "a.png"}"#,
            "0 image markers, but 1 images",
        ),
        (r#"{"images": ["a.png"], "messages": [{"role": "system", "content": "x"}]}"#, "no user turn"),
        (r#"{"text": "x", "image": "data:image/png;base64,a*", "response": "y"}"#, "broken base64"),
        (r#"{"text": "x", "image": "data:image/png,hi", "response": "y"}"#, "broken data URI"),
        (r#"{"text": "x", "image": 7, "response": "y"}"#, "an image was expected, found a number"),
        (r#"{"text": "x", "image": {"id": 7}, "response": "y"}"#, "an object without bytes"),
        (r#"{"text": "x", "image": "", "response": "y"}"#, "found an empty text"),
        (r#"{"text": "x", "response": 5}"#, "'response' should be text, found a number"),
    ];
    for (row, message) in cases {
        let error = read(row).expect_err(row).to_string();
        assert!(error.contains(message), "{row}\n  said: {error}\n  not:  {message}");
    }
}

#[test]
fn text_that_is_too_long_for_a_path_is_no_image() {
    let row = |image: &str| format!(r#"{{"text": "What?", "image": "{image}", "response": "A cat"}}"#);
    // A bitmap in base64: nothing here knows its beginning for sure.
    for text in ["Qk02AwAAAAAA".repeat(1000), format!("file:///{}", "a".repeat(5000))] {
        let message = read(&row(&text)).expect_err("too long").to_string();
        assert!(message.contains("too long for a path") && message.len() < 200, "{message}");
    }
    let (_, jpeg) = outline(&row(&format!("_9j_{}", "4AAQ_kZJ".repeat(1000))));
    assert_eq!(jpeg, "user[img(6003 bytes)|What?] assistant[A cat]", "the URL-safe alphabet is base64, too");
    let path = format!("{}/a.png", "a".repeat(200));
    assert_eq!(outline(&row(&path)).1, format!("user[img({path})|What?] assistant[A cat]"));
}
