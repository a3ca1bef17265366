//! Several sequences at once: the bits that each gives are those that it gives alone, on every instruction set
//! that `MODEL_GARDEN_ISA` can ask for, whatever runs beside it and whatever was kept from before.

mod common;

use common::{goldens, lora_model, picture};
use garden_model::{BatchDecoder, Decoder, DecoderRoom, Grid, Model, PromptImage, SequenceId};

const ROOM: DecoderRoom =
    DecoderRoom { sequences: 8, tokens: 4096, chunk: 100, patches: 256, image_tokens: 256 };

/// A prompt and the tokens that follow it.
#[derive(Clone)]
struct Case {
    ids: Vec<u32>,
    grids: Vec<Grid>,
    images: Vec<Vec<u8>>,
    answer: Vec<u32>,
}

impl Case {
    /// Text, then images with text between them.
    fn new(model: &Model, seed: u32, text: usize, grids: &[Grid]) -> Self {
        let config = model.config();
        let word = |at: usize| 3 + (at as u32 * 7 + seed * 13) % 40;
        let mut ids: Vec<u32> = (0..text).map(word).collect();
        for grid in grids {
            let count = grid.iter().product::<usize>() / config.vision.merge_unit();
            ids.extend(std::iter::repeat_n(config.image_token_id, count));
            ids.extend((0..5).map(word));
        }
        let images = grids.iter().enumerate();
        let images = images.map(|(at, grid)| picture(u64::from(seed), &format!("{at}"), *grid)).collect();
        Self { ids, grids: grids.to_vec(), images, answer: (0..70).map(|at| word(at + 1000)).collect() }
    }

    fn all(model: &Model) -> Vec<Self> {
        vec![
            Self::new(model, 1, 3, &[]),
            Self::new(model, 2, 150, &[[1, 4, 6]]),
            Self::new(model, 3, 90, &[[1, 8, 8], [1, 4, 4], [1, 12, 6]]),
            Self::new(model, 4, 64, &[]),
            Self::new(model, 5, 1, &[[1, 16, 16]]),
            Self::new(model, 6, 333, &[]),
            Self::new(model, 7, 20, &[[1, 4, 4]]),
            Self::new(model, 8, 257, &[[1, 6, 4], [1, 4, 6]]),
        ]
    }

    fn prompt_images(&self) -> Vec<PromptImage> {
        let images = self.images.iter().zip(&self.grids);
        images.map(|(patches, grid)| PromptImage { patches: patches.clone(), grid: *grid }).collect()
    }

    /// The bits of the logits after the prompt and after every token of the answer, read alone.
    fn alone(&self, model: &Model) -> Vec<Vec<u32>> {
        let mut decoder = Decoder::new(model, self.ids.len(), 1024, self.answer.len()).unwrap();
        let mut all =
            vec![bits(decoder.prompt(model, &self.ids, &self.images.concat(), &self.grids).unwrap())];
        all.extend(self.answer.iter().map(|&token| bits(decoder.next(model, token).unwrap())));
        all
    }

    fn begin(&self, decoder: &mut BatchDecoder, model: &Model) -> SequenceId {
        let begun = decoder.begin(model, self.ids.clone(), self.prompt_images(), self.answer.len());
        begun.unwrap().expect("there is room")
    }

    fn read(&self, decoder: &mut BatchDecoder, model: &Model) -> (SequenceId, Vec<u32>) {
        let id = self.begin(decoder, model);
        loop {
            if let Some(logits) = decoder.read(model, id).unwrap() {
                return (id, bits(logits));
            }
        }
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// A model with an adapter in both towers, whose narrow products are the thin ones.
fn model() -> Model {
    let (golden, _) = goldens().into_iter().next().unwrap();
    lora_model(&golden, "both")
}

#[test]
fn eight_sequences_that_join_and_leave_get_the_bits_that_each_gets_alone() {
    let model = model();
    let cases = Case::all(&model);
    let expected: Vec<_> = cases.iter().map(|case| case.alone(&model)).collect();
    let mut decoder = BatchDecoder::new(&model, ROOM).unwrap();
    let vocabulary = model.config().text.vocab_size;
    // Each joins three passes after the one before it, and leaves at the end of its answer.
    let mut running: Vec<(usize, SequenceId, usize)> = Vec::new();
    let mut waiting = (0..cases.len()).rev().collect::<Vec<_>>();
    let mut pass = 0;
    while !(waiting.is_empty() && running.is_empty()) {
        if pass % 3 == 0
            && let Some(case) = waiting.pop()
        {
            let (id, logits) = cases[case].read(&mut decoder, &model);
            assert_eq!(logits, expected[case][0], "prompt {case}");
            running.push((case, id, 0));
        }
        pass += 1;
        let tokens: Vec<_> = running.iter().map(|&(case, id, at)| (id, cases[case].answer[at])).collect();
        let logits = decoder.next(&model, &tokens).unwrap();
        for ((case, _, at), logits) in running.iter_mut().zip(logits.chunks_exact(vocabulary)) {
            *at += 1;
            assert_eq!(bits(logits), expected[*case][*at], "case {case}, token {at}, pass {pass}");
        }
        running.retain(|&(case, id, at)| {
            let goes_on = at < cases[case].answer.len();
            if !goes_on {
                decoder.end(id);
            }
            goes_on
        });
    }
}

#[test]
fn a_prefix_that_is_kept_is_not_read_again_and_changes_no_bit() {
    let model = model();
    let mut decoder = BatchDecoder::new(&model, ROOM).unwrap();
    let first = &Case::all(&model)[2];
    let (id, _) = first.read(&mut decoder, &model);
    for &token in &first.answer {
        decoder.next(&model, &[(id, token)]).unwrap();
    }
    decoder.end(id);
    // The conversation goes on: prompt, answer and new words. The answer's keys were computed a token at a time.
    let mut longer = first.clone();
    longer.ids.extend(&first.answer);
    longer.ids.extend([9, 8, 7]);
    let (id, logits) = longer.read(&mut decoder, &model);
    assert_eq!(logits, longer.alone(&model)[0]);
    let used = decoder.used(id);
    assert_eq!(used.prompt_tokens, longer.ids.len());
    assert_eq!(used.cached_tokens, (longer.ids.len() - 3) / 64 * 64);
    assert!(used.cached_tokens > first.ids.len(), "a part of the answer was kept");
    assert_eq!(used.image_tokens, (64 + 16 + 72) / 4);
    decoder.end(id);

    // The same words with another image in the same place are another prefix.
    let mut other = longer.clone();
    other.images[0][5] ^= 1;
    let (id, logits) = other.read(&mut decoder, &model);
    assert_eq!(logits, other.alone(&model)[0]);
    assert_eq!(decoder.used(id).cached_tokens, 64, "what lies before the image");
}

#[test]
fn sequences_are_refused_room_until_others_leave() {
    let model = model();
    let room = DecoderRoom { sequences: 2, tokens: 256, chunk: 64, patches: 64, image_tokens: 0 };
    let mut decoder = BatchDecoder::new(&model, room).unwrap();
    let case = Case::new(&model, 1, 60, &[]);
    let begin = |decoder: &mut BatchDecoder, answer| decoder.begin(&model, case.ids.clone(), vec![], answer);
    let first = begin(&mut decoder, 68).unwrap().expect("two pages of four");
    assert!(decoder.has_room(128) && !decoder.has_room(129));
    assert_eq!(begin(&mut decoder, 69).unwrap(), None, "three pages are not left");
    begin(&mut decoder, 4).unwrap().expect("one page");
    assert_eq!(begin(&mut decoder, 4).unwrap(), None, "two sequences are there");
    decoder.end(first);
    assert!(decoder.has_room(192));
    let error = begin(&mut decoder, 1000).unwrap_err().to_string();
    assert_eq!(error, "the batch has 1060 tokens, but memory was laid out for 256");
    let large = Case::new(&model, 1, 3, &[[1, 16, 16]]);
    let error = decoder.begin(&model, large.ids.clone(), large.prompt_images(), 1).unwrap_err().to_string();
    assert_eq!(error, "the batch has 256 patches, but memory was laid out for 64");
}
