//! Each shape of row that people write, and the conversation it means.

mod compatible_rows;
mod outline;

use outline::{outline, read, reading};

fn means(row: &str, shape: &str, conversation: &str) {
    let (read, said) = outline(row);
    assert_eq!((read.id(), said.as_str()), (shape, conversation), "{row}");
}

#[test]
fn openai_messages_with_text_or_parts() {
    means(
        r#"{"messages": [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                                         {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": "A cat"}]}"#,
        "open-ai-messages",
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
        (r#""type": "image", "base64": " \n data:image/png;base64,aGk=\n""#, "img(2 bytes)"),
        (r#""type": "image", "url": "\n data:image/png;base64, aGk= \n""#, "img(2 bytes)"),
        (r#""type": "image", "bytes": [255, 216, 255]"#, "img(3 bytes)"),
        (r#""type": "image_url", "image_url": "http://example.org/a.png""#, "img(http://example.org/a.png)"),
        (r#""type": "image_url", "image_url": {"url": "a.png"}"#, "img(a.png)"),
    ];
    for (part, image) in spellings {
        let row = format!(r#"{{"messages": [{{"role": "user", "content": [{{{part}}}]}}]}}"#);
        means(&row, "open-ai-messages", &format!("user[{image}]"));
    }
}

#[test]
fn bare_base64_in_the_place_of_a_path() {
    let base64 = format!("/9j/{}", "4AAQSkZJRgAB".repeat(6));
    let row = format!(r#"{{"text": "What?", "image": "{base64}", "response": "x"}}"#);
    means(&row, "question-answer", "user[img(57 bytes)|What?] assistant[x]");
    let spaced = row.replace(&base64, &format!(r" \n {base64}\n "));
    means(&spaced, "question-answer", "user[img(57 bytes)|What?] assistant[x]");
}

#[test]
fn trl_images_go_to_placeholders_or_before_the_first_user_turn() {
    means(
        r#"{"images": ["a.png", "b.png"], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "image"}, {"type": "image", "text": null}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Two"}]}]}"#,
        "trl-messages",
        "user[One|img(a.png)|img(b.png)] assistant[Two]",
    );
    means(
        r#"{"image": "a.png", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "What?"}]}"#,
        "trl-messages",
        "system[S] user[img(a.png)|What?]",
    );
}

#[test]
fn trl_prompt_and_completion_as_text_or_messages() {
    means(
        r#"{"images": ["a.png"], "prompt": "What?", "completion": "A cat"}"#,
        "trl-prompt-completion",
        "user[img(a.png)|What?] assistant[A cat]",
    );
    means(
        r#"{"image": {"bytes": "aGk=", "path": null}, "prompt": [{"role": "user", "content": "What?"}],
            "completion": [{"role": "assistant", "content": "A cat"}]}"#,
        "trl-prompt-completion",
        "user[img(2 bytes)|What?] assistant[A cat]",
    );
}

#[test]
fn messages_with_markers_beside_their_images() {
    means(
        r#"{"images": ["a.png", "b.png"], "messages": [{"role": "user", "content": "<image>Left or <image>?"},
            {"role": "assistant", "content": "Left"}]}"#,
        "marked-messages",
        "user[img(a.png)|Left or |img(b.png)|?] assistant[Left]",
    );
}

#[test]
fn sharegpt_and_llava_conversations() {
    means(
        r#"{"conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A <image> tag"}],
            "images": ["a.png"]}"#,
        "share-gpt",
        "user[img(a.png)|\nWhat?] assistant[A <image> tag]",
    );
    means(
        r#"{"id": 7, "conversations": [{"from": "human", "value": "What?\n<image>"}, {"from": "gpt", "value": "A cat"}],
            "image": "a.png"}"#,
        "llava",
        "user[What?\n|img(a.png)] assistant[A cat]",
    );
    means(
        r#"{"conversations": [{"from": "human", "value": "<image> or <image>?"}], "image": ["a.png", "b.png"]}"#,
        "llava",
        "user[img(a.png)| or |img(b.png)|?]",
    );
    means(
        r#"{"conversations": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}"#,
        "share-gpt",
        "user[Hello] assistant[Hi]",
    );
}

#[test]
fn text_image_and_response_or_output() {
    means(
        r#"{"system": "S", "text": "What?", "image": "a.png", "response": "A cat"}"#,
        "question-answer",
        "system[S] user[img(a.png)|What?] assistant[A cat]",
    );
    means(
        r#"{"text": "What?", "images": ["a.png", "b.png"], "output": "Cats"}"#,
        "question-answer",
        "user[img(a.png)|img(b.png)|What?] assistant[Cats]",
    );
}

#[test]
fn a_marker_stays_text_where_parts_say_what_is_an_image() {
    let parts =
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "<image> in HTML?"}]}]}"#;
    means(parts, "open-ai-messages", "user[<image> in HTML?]");
    let messages = r#"{"messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"},
        {"type": "text", "text": "<image> <|image_pad|>"}]}]}"#;
    means(messages, "open-ai-messages", "user[img(a.png)|<image> <|image_pad|>]");
    let placeholders = r#"{"images": ["a.png"], "messages": [{"role": "user", "content": [{"type": "image"},
        {"type": "text", "text": "<image>"}]}]}"#;
    means(placeholders, "trl-messages", "user[img(a.png)|<image>]");
}

#[test]
fn system_beside_the_turns_comes_first() {
    let turns = r#"[{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A cat"}]"#;
    for (field, shape) in [("messages", "open-ai-messages"), ("conversations", "share-gpt")] {
        let row = |system: &str| format!(r#"{{"system": {system}, "{field}": {turns}}}"#);
        means(&row(r#""Be brief.""#), shape, "system[Be brief.] user[What?] assistant[A cat]");
        let parts = r#"[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]"#;
        means(&row(parts), shape, "system[Be brief.] user[What?] assistant[A cat]");
        for blank in ["null", r#""""#, r#"" ""#] {
            means(&row(blank), shape, "user[What?] assistant[A cat]");
        }
    }
    let both = |system: &str| {
        let turns = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}]"#;
        format!(r#"{{"system": "{system}", "messages": {turns}}}"#)
    };
    means(&both("Be brief."), "open-ai-messages", "system[Be brief.] user[What?]");
    let error = read(&both("Be long.")).expect_err("two systems").to_string();
    assert_eq!(error, "'system' and a message of role system say different things: keep one of them");
}

#[test]
fn a_message_of_weight_0_is_not_learned() {
    let row = |first: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "1"}}, {{"role": "assistant", "content": "2", {first}}},
                {{"role": "user", "content": "3"}}, {{"role": "assistant", "content": "4", "weight": 1}}]}}"#
        )
    };
    for excluded in [r#""weight": 0"#, r#""weight": 0.0"#, r#""train": false"#, r#""loss": false"#] {
        means(&row(excluded), "open-ai-messages", "user[1] -assistant[2] user[3] assistant[4]");
    }
    let error = read(&row(r#""weight": 0.5"#)).expect_err("half").to_string();
    assert!(error.starts_with("'weight' of a message is neither 0 (not learned) nor 1 (learned)"), "{error}");
    let user = r#"{"messages": [{"role": "user", "content": "1", "train": true}]}"#;
    let error = read(user).expect_err("a learned user").to_string();
    assert!(error.starts_with("'train' asks to learn a message of role 'user'"), "{error}");
}

#[test]
fn only_the_completion_of_a_prompt_is_learned() {
    means(
        r#"{"prompt": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"},
            {"role": "user", "content": "3"}], "completion": [{"role": "assistant", "content": "4"}]}"#,
        "trl-prompt-completion",
        "user[1] -assistant[2] user[3] assistant[4]",
    );
    let error = read(r#"{"prompt": "What?"}"#).expect_err("no completion").to_string();
    assert!(error.starts_with("'prompt' without an answer: there is nothing to learn"), "{error}");
}

#[test]
fn tools_and_calls_by_every_spelling() {
    let tools = r#"[{"type": "function", "function": {"name": "look", "parameters": {"z": 1, "a": 2.5}}}]"#;
    let calls = r#"[{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]"#;
    let quoted = |text: &str| serde_json::to_string(text).expect("a text");
    for (tools, calls) in [(tools.to_owned(), calls.to_owned()), (quoted(tools), quoted(calls))] {
        let row = format!(
            r#"{{"tools": {tools}, "messages": [{{"role": "user", "content": "Where?"}},
                {{"role": "assistant", "content": null, "tool_calls": {calls}}},
                {{"role": "tool", "tool_call_id": "1", "name": "look", "content": "here"}}]}}"#
        );
        means(&row, "open-ai-messages", "user[Where?] assistant[]->look tool[here]");
        let (_, conversation) = read(&row).expect("reads");
        let written = serde_json::to_string(&conversation.tools).expect("JSON");
        assert_eq!(written, tools_as_written(), "in its order, numbers as they are");
        assert_eq!(conversation.turns[2].name.as_deref(), Some("look"));
    }
    means(
        r#"{"conversations": [{"from": "human", "value": "Where?"},
            {"from": "function_call", "value": "{\"name\": \"look\", \"arguments\": {}}"},
            {"from": "observation", "value": "here"}], "tools": ""}"#,
        "share-gpt",
        "user[Where?] assistant[]->look tool[here]",
    );
    let user = format!(r#"{{"messages": [{{"role": "user", "content": "x", "tool_calls": {calls}}}]}}"#);
    assert!(
        read(&user).expect_err("a user that calls").to_string().contains("only the assistant calls tools")
    );
}

fn tools_as_written() -> &'static str {
    r#"[{"type":"function","function":{"name":"look","parameters":{"z":1,"a":2.5}}}]"#
}

#[test]
fn image_and_images_must_agree() {
    let row = |image: &str, images: &str| {
        format!(
            r#"{{"image": {image}, "images": {images}, "messages": [{{"role": "user", "content": "x"}}]}}"#
        )
    };
    means(&row(r#""a.png""#, r#"["a.png"]"#), "trl-messages", "user[img(a.png)|x]");
    means(&row("null", r#"["a.png"]"#), "trl-messages", "user[img(a.png)|x]");
    means(&row(r#""a.png""#, "[]"), "trl-messages", "user[img(a.png)|x]");
    let error = read(&row(r#""a.png""#, r#"["b.png"]"#)).expect_err("two lists").to_string();
    assert!(error.starts_with("'image' and 'images' are both given: keep one of them"), "{error}");
    let inside = r#"{"images": ["b.png"], "messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"}]}]}"#;
    let error = read(inside).expect_err("inside and beside").to_string();
    assert!(error.starts_with("1 image inside the messages and 1 beside them"), "{error}");
}

#[test]
fn markers_in_messages_must_match_the_images() {
    let row = |content: &str, images: &str| {
        format!(r#"{{"messages": [{{"role": "user", "content": "{content}"}}], "images": {images}}}"#)
    };
    let refused = [
        (
            "<image><image>What?",
            r#"["a.png"]"#,
            "2 <image> markers, but 1 image: write one <image> marker for each image",
        ),
        ("<image>What?", r#"["a.png", "b.png"]"#, "1 <image> marker, but 2 images"),
        ("<image>What?", "[]", "1 <image> marker, but 0 images"),
    ];
    for (content, images, message) in refused {
        let error = read(&row(content, images)).expect_err(content).to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn markers_in_questions_and_parts_must_match_the_images_too() {
    for (row, message) in [
        (r#"{"prompt": "<image>What?", "completion": "A cat"}"#, "1 <image> marker, but 0 images"),
        (r#"{"text": "<image>What?", "response": "A cat", "images": []}"#, "1 <image> marker, but 0 images"),
        (r#"{"instruction": "<image>What?", "output": "A cat"}"#, "1 <image> marker, but 0 images"),
        (
            r#"{"images": ["a.png"], "messages": [{"role": "user", "content":
                [{"type": "text", "text": "<image><image>Same?"}]}]}"#,
            "2 <image> markers, but 1 image",
        ),
    ] {
        let error = read(row).expect_err(row).to_string();
        assert!(error.starts_with(message), "{row}: {error}");
    }
}

#[test]
fn markers_of_what_is_not_shown_are_refused_by_name() {
    for (text, marker) in
        [("<video>What?", "<video>"), ("<audio>What?", "<audio>"), ("1: <img>a.png</img> What?", "<img>")]
    {
        for row in [
            format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#),
            format!(r#"{{"conversations": [{{"from": "user", "value": "{text}"}}]}}"#),
            format!(r#"{{"prompt": "{text}", "completion": "A cat"}}"#),
        ] {
            let error = read(&row).expect_err(&row).to_string();
            assert!(error.starts_with(&format!("'{marker}' is not followed: ")), "{error}");
        }
    }
    for text in ["What does <img src='a'> do?", "A <video src='a'> tag"] {
        let row = format!(r#"{{"prompt": "{text}", "completion": "<video>"}}"#);
        read(&row).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

#[test]
fn fields_that_say_nothing_do_not_get_in_the_way() {
    for row in [
        r#"{"conversations": [], "messages": [{"role": "user", "content": "What?"}], "image": null}"#,
        r#"{"messages": [{"role": "user", "content": "What?", "from": ""}], "images": [], "conversations": null}"#,
    ] {
        means(row, "open-ai-messages", "user[What?]");
    }
    means(
        r#"{"question": "What?", "text": " ", "answer": "A cat", "answers": [], "image": null}"#,
        "question-answer",
        "user[What?] assistant[A cat]",
    );
    means(
        r#"{"prompt": "Say nothing.", "completion": ""}"#,
        "trl-prompt-completion",
        "user[Say nothing.] assistant[]",
    );
}

#[test]
fn an_image_that_no_shape_reads_is_not_left_out_silently() {
    let row = |field: &str| format!(r#"{{"question": "What?", "answer": "A cat", {field}}}"#);
    for (field, name) in [
        (r#""image_path": "cats/1.JPG""#, "image_path"),
        (r#""img": "1.png""#, "img"),
        (r#""photo": {"bytes": [255, 216, 255, 224], "path": null}"#, "photo"),
        (r#""scan": {"path": "1.webp"}"#, "scan"),
        (r#""pictures": ["1.png", "2.png"]"#, "pictures"),
    ] {
        let error = read(&row(field)).expect_err(field).to_string();
        let message = format!("'{name}' holds an image, and the row would be learned without it");
        assert!(error.starts_with(&message), "{error}");
    }
    for field in [
        r#""id": "1.png""#,
        r#""image_size": [112, 112]"#,
        r#""image_id": 7"#,
        r#""image_path": "1.png", "image": "1.png""#,
    ] {
        read(&row(field)).unwrap_or_else(|error| panic!("{field}: {error}"));
    }
}

#[test]
fn anthropic_images_in_parts() {
    let row = |source: &str| {
        format!(
            r#"{{"system": "S", "messages": [{{"role": "user", "content": [{{"type": "image", "source": {source}}},
                {{"type": "text", "text": "What?"}}]}}]}}"#
        )
    };
    let base64 = r#"{"type": "base64", "media_type": "image/png", "data": "aGk="}"#;
    means(&row(base64), "open-ai-messages", "system[S] user[img(2 bytes)|What?]");
    let url = r#"{"type": "url", "url": "https://example.org/a.png"}"#;
    means(&row(url), "open-ai-messages", "system[S] user[img(https://example.org/a.png)|What?]");
    let error = read(&row(r#"{"type": "file", "file_id": "x"}"#)).expect_err("a file").to_string();
    assert!(error.contains("a part of type 'file'"), "{error}");
}

#[test]
fn alpaca_with_images_and_history() {
    means(
        r#"{"instruction": "Describe it.", "input": "In German.", "output": "Eine Katze", "images": ["a.png"],
            "system": "S", "history": [["Hello", "Hi"]]}"#,
        "alpaca",
        "system[S] user[img(a.png)|Hello] assistant[Hi] user[Describe it.\nIn German.] assistant[Eine Katze]",
    );
    means(
        r#"{"instruction": "Compare <image> with <image>.", "input": "", "output": "Same", "images": ["a.png", "b.png"]}"#,
        "alpaca",
        "user[Compare |img(a.png)| with |img(b.png)|.] assistant[Same]",
    );
    let error = read(r#"{"instruction": "<image>", "output": "x", "images": ["a.png", "b.png"]}"#);
    assert!(error.expect_err("one marker").to_string().starts_with("1 <image> marker, but 2 images"));
}

#[test]
fn questions_and_answers_by_every_name() {
    for (question, answer) in [("question", "answer"), ("prompt", "response"), ("question", "output")] {
        let row = format!(r#"{{"image": "a.png", "{question}": "What?", "{answer}": "A cat"}}"#);
        means(&row, "question-answer", "user[img(a.png)|What?] assistant[A cat]");
    }
    let answers = [
        (r#"["dog", "cat", "cat"]"#, "cat"),
        (r#"["dog", "cat"]"#, "dog"),
        (r#"[{"answer": "cat", "answer_id": 1}, {"answer": "cat", "answer_id": 2}]"#, "cat"),
    ];
    for (answers, most) in answers {
        let row = format!(r#"{{"image": "a.png", "question": "What?", "answers": {answers}}}"#);
        means(&row, "question-answer", &format!("user[img(a.png)|What?] assistant[{most}]"));
    }
    let both = read(r#"{"text": "x", "question": "y", "answer": "z"}"#).expect_err("two questions");
    assert!(both.to_string().starts_with("'question' and 'text' are both given"), "{both}");
}

#[test]
fn an_image_folders_metadata_names_its_images() {
    means(r#"{"file_name": "a.PNG", "text": "A cat"}"#, "caption", "user[img(a.PNG)] assistant[A cat]");
    means(
        r#"{"file_name": "a.png", "question": "What?", "answer": "A cat"}"#,
        "question-answer",
        "user[img(a.png)|What?] assistant[A cat]",
    );
    means(r#"{"image": "a.png", "caption": "A cat"}"#, "caption", "user[img(a.png)] assistant[A cat]");
    let rendered =
        r#"{"images": ["a.png"], "text": "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\nA cat"}"#;
    let refused = read(rendered).expect_err("no caption");
    assert!(refused.to_string().ends_with("was already applied to: give its 'messages'"), "{refused}");
    let document = r#"{"file_name": "report.pdf", "messages": [{"role": "user", "content": "x"}]}"#;
    means(document, "open-ai-messages", "user[x]");
    assert_eq!(reading(document).expect("reads").ignored, ["file_name"]);
}

#[test]
fn what_would_change_training_is_refused_by_name() {
    let row = |fields: &str| format!(r#"{{"text": "x", "response": "y", {fields}}}"#);
    let message =
        |fields: &str| format!(r#"{{"messages": [{{"role": "assistant", "content": "x", {fields}}}]}}"#);
    let part = |fields: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": [{{"type": "image", "path": "a.png", {fields}}}]}}]}}"#
        )
    };
    let cases = [
        (row(r#""videos": ["a.mp4"]"#), "videos"),
        (row(r#""audio": {"path": "a.wav"}"#), "audio"),
        (row(r#""rejected": "no""#), "rejected"),
        (row(r#""label": false"#), "label"),
        (row(r#""weight": 0.5"#), "weight"),
        (row(r#""choices": ["a", "b"]"#), "choices"),
        (row(r#""system_prompt": "Be brief.""#), "system_prompt"),
        (message(r#""function_call": {"name": "f"}"#), "function_call"),
        (message(r#""reasoning_content": "Hm.""#), "reasoning_content"),
        (message(r#""images": ["a.png"]"#), "images"),
        (part(r#""max_pixels": 50176"#), "max_pixels"),
    ];
    for (row, field) in cases {
        let error = read(&row).expect_err(&row).to_string();
        assert!(error.starts_with(&format!("'{field}' is not followed: ")), "{row}: {error}");
    }
    let harmless = row(
        r#""videos": [], "audio": null, "label": 3, "weight": 1, "id": 7, "source": "web", "choices": []"#,
    );
    assert_eq!(
        reading(&harmless).expect("reads").ignored,
        ["label", "weight", "id", "source"],
        "and what is ignored is named"
    );
}

#[test]
fn bad_rows_say_what_is_wrong() {
    let cases = [
        (
            r#"{"input_ids": [1, 2], "labels": [1, 2]}"#,
            "no known shape of row: it has input_ids, labels; expected",
        ),
        ("[1.5]", "no known shape of row: it has a list"),
        (r#"{"messages": []}"#, "no turns"),
        (r#"{"messages": "hi"}"#, "'messages' should be a list of messages, found text"),
        (r#"{"messages": [{"role": "narrator", "content": "x"}]}"#, "unknown role 'narrator'"),
        (r#"{"messages": [{"content": "x"}]}"#, "'role' should be text, found nothing"),
        (r#"{"messages": [{"role": "user"}]}"#, "'content' should be text or a list of parts, found nothing"),
        (r#"{"messages": [{"role": "user", "content": [{"type": "video"}]}]}"#, "part of type 'video'"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
            "1 image placeholder, but 0 images: write one image placeholder for each image",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": [{"type": "image", "path": "a.png"}]}]}"#,
            "an image in a turn of role 'assistant'",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "<image><image>"}], "image": "a.png"}"#,
            "2 <image> markers, but 1 image",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "x"}], "image": "a.png"}"#,
            "0 <image> markers, but 1 image",
        ),
        (r#"{"images": ["a.png"], "messages": [{"role": "system", "content": "x"}]}"#, "no user turn"),
        (r#"{"text": "x", "image": "data:image/png;base64,a*", "response": "y"}"#, "broken base64"),
        (r#"{"text": "x", "image": "data:image/png,hi", "response": "y"}"#, "broken data URI"),
        (r#"{"text": "x", "image": 7, "response": "y"}"#, "an image was expected, found a number"),
        (r#"{"text": "x", "image": {"id": 7}, "response": "y"}"#, "an object without bytes"),
        (r#"{"text": "x", "image": "", "response": "y"}"#, "found an empty text"),
        (r#"{"messages": [{"role": "user", "content": "x"}], "image": ""}"#, "found an empty text"),
        (
            r#"{"text": "x", "response": 5}"#,
            "'response' should be text or a list of messages, found a number",
        ),
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
