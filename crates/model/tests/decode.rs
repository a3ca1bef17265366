//! Generation against Hugging Face: logits after a prompt, the past kept in a cache, and greedy answers.

mod common;

use common::{PLAIN, Packed, adapter, goldens, load_model, lora_model, picture, relative};
use garden_model::{Decoder, Model, Precision, Sampler};

#[test]
fn logits_after_every_prompt_are_hugging_faces() {
    for (golden, tensors) in goldens() {
        for adapter in ["lm", "both"] {
            let model = lora_model(&golden, adapter);
            let mut decoder = Decoder::new(&model, 64, 256, 0).unwrap();
            let vocabulary = model.config().text.vocab_size;
            for name in ["one", "three", "text"] {
                let [row] = golden.batch(name).try_into().ok().unwrap();
                let packed = Packed::new(&golden, &[row]);
                let expected = tensors.f32(&format!("{name}.{adapter}.logits"));
                let labelled = (1..packed.ids.len()).filter(|&at| packed.labels[at] >= 0);
                for (place, expected) in labelled.zip(expected.chunks_exact(vocabulary)) {
                    let prompt = &packed.ids[..place];
                    let logits = decoder.prompt(&model, prompt, &packed.patches, &packed.grids).unwrap();
                    let difference = relative(logits, expected);
                    assert!(difference < 1e-4, "{name}.{adapter} before {place}: differs by {difference}");
                }
            }
        }
    }
}

#[test]
fn a_token_read_after_the_others_gives_the_logits_of_all_read_at_once() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let model = lora_model(&golden, "both");
    let [row] = golden.batch("one").try_into().ok().unwrap();
    let packed = Packed::new(&golden, &[row]);
    let first = packed.ids.iter().rposition(|&id| id == model.config().image_token_id).unwrap() + 1;
    let mut whole = Decoder::new(&model, packed.ids.len(), 256, 0).unwrap();
    let mut stepwise = Decoder::new(&model, first, 256, packed.ids.len() - first).unwrap();
    stepwise.prompt(&model, &packed.ids[..first], &packed.patches, &packed.grids).unwrap();
    for place in first..packed.ids.len() {
        let stepped = stepwise.next(&model, packed.ids[place]).unwrap();
        let expected = whole.prompt(&model, &packed.ids[..=place], &packed.patches, &packed.grids).unwrap();
        assert_eq!(stepped, expected, "after token {place}");
    }
    let error = stepwise.next(&model, 1).unwrap_err();
    assert!(error.to_string().ends_with(&format!("memory was laid out for {}", packed.ids.len())), "{error}");
}

#[test]
fn greedy_answers_are_hugging_faces() {
    for (golden, _) in goldens() {
        let weights = load_model(&golden, PLAIN, Precision::AsStored);
        let model = Model::frozen(golden.config(), weights);
        let greedy = &golden.greedy;
        let patches: Vec<u8> = (greedy.grids.iter().enumerate())
            .flat_map(|(index, grid)| picture(golden.seed, &format!("picture.{index}"), *grid))
            .collect();
        let mut sampler = Sampler::new(0.0, 1.0, 0).unwrap();
        let mut decoder = Decoder::new(&model, greedy.prompt.len(), 256, greedy.tokens.len()).unwrap();
        let mut logits = decoder.prompt(&model, &greedy.prompt, &patches, &greedy.grids).unwrap();
        let mut answer = Vec::new();
        while answer.len() < greedy.tokens.len() {
            answer.push(sampler.choose(logits, &[]).unwrap());
            logits = decoder.next(&model, answer[answer.len() - 1]).unwrap();
        }
        assert_eq!(answer, greedy.tokens, "seed {}", golden.seed);
        // The last token is read too, so the decoder is full now and can be used again for another prompt.
        let again = decoder.prompt(&model, &greedy.prompt, &patches, &greedy.grids).unwrap();
        assert_eq!(sampler.choose(again, &[]), Ok(greedy.tokens[0]));
    }
}

#[test]
fn an_adapter_without_training_changes_the_answer_as_it_changes_the_model() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let plain = Model::frozen(golden.config(), load_model(&golden, PLAIN, Precision::AsStored));
    let mut fresh = adapter(&golden, "both");
    fresh.pairs.iter_mut().for_each(|pair| pair.b.fill(0.0));
    let weights = load_model(&golden, PLAIN, Precision::AsStored);
    let adapted = Model::with_adapter(golden.config(), weights, fresh);
    let logits = |model: &Model| {
        let mut decoder = Decoder::new(model, 8, 0, 1).unwrap();
        decoder.prompt(model, &[3, 4, 5], &[], &[]).unwrap().to_vec()
    };
    assert!(relative(&logits(&adapted), &logits(&plain)) < 1e-6, "a pair with B = 0 adds nothing");
    assert!(relative(&logits(&lora_model(&golden, "both")), &logits(&plain)) > 1e-3);
}

#[test]
fn a_prompt_beyond_what_was_laid_out_is_refused() {
    let (golden, _) = goldens().into_iter().next().unwrap();
    let model = lora_model(&golden, "lm");
    let [row] = golden.batch("one").try_into().ok().unwrap();
    let packed = Packed::new(&golden, &[row]);
    let refusal = |tokens, patches, answer| {
        let mut decoder = Decoder::new(&model, tokens, patches, answer).unwrap();
        decoder.prompt(&model, &packed.ids, &packed.patches, &packed.grids).unwrap_err().to_string()
    };
    let tokens = packed.ids.len();
    let of =
        |what, found, limit| format!("the batch has {found} {what}, but memory was laid out for {limit}");
    assert_eq!(refusal(tokens - 1, 256, 8), of("tokens", tokens, tokens - 1));
    assert_eq!(refusal(tokens, 16, 8), of("patches", 60, 16));
    let mut decoder = Decoder::new(&model, 8, 0, 1).unwrap();
    assert!(decoder.prompt(&model, &[], &[], &[]).is_err(), "nothing to go on from");
    assert!(decoder.prompt(&model, &[u32::MAX], &[], &[]).is_err(), "no such token");
    decoder.prompt(&model, &[1], &[], &[]).unwrap();
    assert!(decoder.next(&model, u32::MAX).is_err(), "no such token");
}
